"""The values of examples in the API description, and an example of every refusal."""

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from .. import refusals
from ..error_table import Links, body_of
from ..keys import mint
from ..schema import BODY_OCTETS_MAX, BODY_S_MAX

AT = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
SOON = datetime(2026, 3, 14, 9, 27, 12, tzinfo=UTC)
MONTH = datetime(2026, 3, 1, tzinfo=UTC)
NEXT_MONTH = datetime(2026, 4, 1, tzinfo=UTC)
ID = UUID("0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60")
KEY = mint("sk_live_", lambda below: 7)  # well formed, but not a real key

REFUSALS: tuple[refusals.Refusal, ...] = (
    refusals.NoSuchRoute(),
    refusals.MethodNotAllowed("PATCH", "POST"),
    refusals.MissingKey(),
    refusals.InvalidKey(),
    refusals.WrongKeyType(),
    refusals.OriginNotAllowed(),
    refusals.ProofRequired(),
    refusals.FormBusy(3),
    refusals.FormOff(),
    refusals.PayloadTooLarge(BODY_OCTETS_MAX),
    refusals.SlowBody(BODY_S_MAX),
    refusals.SlowUpload(64, 10),
    refusals.UnsupportedCoding("gzip"),
    refusals.UpgradeRequired(),
    refusals.InvalidRequest("The field email is missing.", "request"),
    refusals.HardCapReached(10.0, 9.99),
    refusals.RateLimited(100, AT, SOON, 5),
    refusals.KeysTooFast(20, AT, SOON, 1),
    refusals.NeverFits(10, AT, SOON, 50),
    refusals.QuotaExhausted(500, 497, AT, NEXT_MONTH, 5),
    refusals.JobNotFound(),
    refusals.ListNotFound(),
    refusals.BounceNotFound(),
    refusals.TooManyLists(10),
    refusals.TooManyKeptLists(100),
    refusals.ListsTooLarge(64),
    refusals.ListsTooFast(20, AT, SOON, 1),
    refusals.KeyNotFound(),
    refusals.TooManyKeys(10),
    refusals.NoBillingAccount(),
    refusals.ProviderUnavailable(),
    refusals.IdempotencyReused(),
    refusals.IdempotencyRunning(),
    refusals.AnswerLost(),
    refusals.TooManyJobs(10_000),
    refusals.Overloaded(),
    refusals.ProbingUnavailable(),
    refusals.StorageFull(),
    refusals.UsageUnknown(),
    refusals.OurFault("6b1c0f2d9a"),
)

_BY_REFUSAL = {type(refusal): refusal for refusal in REFUSALS}


def example_refusal(kind: type[refusals.Refusal], links: Links) -> object:
    """The example of an error's body."""
    return msgspec.to_builtins(body_of(_BY_REFUSAL[kind], links))
