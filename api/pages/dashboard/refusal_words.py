"""Refusals in the words of the pages: what a person did, and what a person can do.

The API's texts name routes, headers and fields. A refusal without a row here keeps its text.
"""

from collections.abc import Mapping

from ... import refusals
from ...error_table import Links, body_of
from ...refusals import InvalidRequest, Refusal

AGAIN = "Try again in a few seconds."
CORRECT = "Correct it, and send it again."
MINUTE = "Try again in a minute."
# refusal -> what is wrong, and what to do; templates over its fields
WORDS: Mapping[type[Refusal], tuple[str, str]] = {
    refusals.NoSuchRoute: ("There is no such page.", "Go to the overview."),
    refusals.MethodNotAllowed: ("There is no such page.", "Go to the overview."),
    refusals.MissingKey: ("You are not signed in.", "Sign in."),
    refusals.InvalidKey: ("That is not an active key.", "Sign in with another one."),
    refusals.WrongKeyType: (
        "This key does not open the dashboard.", "Sign in with a provisioning key (sk_mgmt_…)."
    ),
    refusals.PayloadTooLarge: ("That is too large.", "Send less at a time."),
    refusals.SlowBody: ("It did not arrive in time.", "Send it again over a faster connection."),
    refusals.SlowUpload: (
        "The upload was too slow.", "Send it over a faster connection, or in several lists."
    ),
    refusals.UnsupportedCoding: ("The file is compressed in a way that is not known.", CORRECT),
    refusals.HardCapReached: (
        "It could cost more than the hard cap allows.", "Raise the cap under Limits."
    ),
    refusals.RateLimited: ("This minute’s verifications are used up.", MINUTE),
    refusals.NeverFits: (
        "That is more than the {limit} verifications of a minute.", "Send less at a time."
    ),
    refusals.QuotaExhausted: (
        "This month’s verifications are used up.", "Wait for the next month, or take a larger plan."
    ),
    refusals.JobNotFound: ("There is no such job.", "Jobs are kept for some time only."),
    refusals.ListNotFound: ("There is no such list.", "Lists shows those that are kept."),
    refusals.ListsTooLarge: (
        "The account’s lists would take more than {mib_max} MB.",
        "Delete lists that you do not need any more.",
    ),
    refusals.ListsTooFast: ("An account may send {limit} lists in a minute.", MINUTE),
    refusals.KeyNotFound: ("There is no such key, or it is revoked.", "Keys shows the active ones."),
    refusals.TooManyKeys: (
        "The plan includes {keys_max} keys, and all are in use.",
        "Revoke a key that you do not use any more.",
    ),
    refusals.KeysTooFast: ("An account may make {limit} keys in a minute.", MINUTE),
    refusals.TooManyJobs: (
        "{jobs_max} callbacks are not delivered yet.",
        "Jobs shows what their receivers answer.",
    ),
    refusals.NoBillingAccount: (
        "The account pays nothing yet, so it has no bills.", "Take a paid plan first."
    ),
    refusals.IdempotencyReused: (
        "This form was sent before with other values.", "Reload the page, and send it again."
    ),
    refusals.IdempotencyRunning: ("The same form is being worked on.", AGAIN),
    refusals.AnswerLost: (
        "This form was sent before, and its answer was too large to be kept.",
        "Reload the page to send it as a new one.",
    ),
    refusals.Overloaded: ("The service has too much to do at the moment.", AGAIN),
    refusals.StorageFull: ("The service has no room on its disk.", "Try again later, or tell the operator."),
    refusals.UsageUnknown: ("The service cannot reach its database.", AGAIN),
    refusals.ProviderUnavailable: ("The billing provider does not answer.", AGAIN),
    refusals.OurFault: (
        "The service has failed; it is not your fault.",
        "Try again; if it fails again, tell the operator the number of the request: {request_id}.",
    ),
}  # fmt: skip


def words_of(refusal: Refusal, links: Links) -> tuple[str, str]:
    """What is wrong, and what to do."""
    if isinstance(refusal, InvalidRequest):
        is_for_programs = refusal.parameter or refusal.fix == InvalidRequest.fix
        return refusal.why, CORRECT if is_for_programs else refusal.fix
    if type(refusal) in WORDS:
        what, action = WORDS[type(refusal)]
        return what.format_map(vars(refusal)), action.format_map(vars(refusal))
    body = body_of(refusal, links)
    return body.message, body.action
