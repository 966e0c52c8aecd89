"""The operation on bounces: a mail service or a mail server says which mails came back."""

import logging
from collections import Counter
from typing import Annotated
from urllib.parse import unquote

import trio
from msgspec import Struct

from mailprobe.engine.evidence import shown

from ..admission.turns import FairTurns
from ..bounces.events import SubscriptionConfirmation, UnreadableEvents, read_events
from ..bounces.kinds import Kind
from ..bounces.reports import reported_in
from ..quota.bounced import mailboxes_of
from ..quota.list_limits import WAITING_S_MAX
from ..refusals import BounceNotFound, InvalidRequest
from ..schema import says
from ..service import Service
from .operation import (
    BODIED,
    KEYED,
    REPEATABLE,
    Call,
    Operation,
    OperationReply,
    parameter,
    reply,
)

log = logging.getLogger("mailprobe.bounces")

BOUNCES_OCTETS_MAX = 1024 * 1024  # SendGrid posts up to 768 KiB together, the others less
EVENTS_MAX = 1000  # of a request: no mail service posts more together
WAITING_MAX = 200  # requests: each holds its body of at most 1 MiB
REPORTS = ("message/rfc822", "message/global", "multipart/report")
UNKNOWN = (
    "The body is neither a delivery report (RFC 3464) as message/rfc822 or multipart/report, nor an"
    " event of SES, SendGrid, Postmark, Mailgun, Brevo, Mailjet, Mandrill, SparkPost or Resend."
)

BOUNCES: dict[str, dict[str, object]] = {
    "application/json": {
        "schema": {"type": "object", "description": "An event of SES (as SNS posts it), Postmark, Mailgun, Brevo, Mailjet or Resend; SendGrid and SparkPost post an array of events, Brevo and Mailjet may."},
        "example": {"RecordType": "Bounce", "Type": "HardBounce", "Email": "ann@example.org", "Details": "550 5.1.1 User unknown"},
    },
    "application/x-www-form-urlencoded": {
        "schema": {"type": "string", "description": "Mandrill's events, as `mandrill_events`."},
    },
    "message/rfc822": {"schema": {"type": "string", "description": "A delivery report (RFC 3464)."}},
    "multipart/report": {"schema": {"type": "string", "description": "The body of a delivery report."}},
}  # fmt: skip

# Accounts take turns. A report holds the GIL for some milliseconds; of a request's events each one
# has a turn, which takes up to a millisecond of the event loop.
_reading = FairTurns(1, waiting_max=WAITING_MAX, wait_s=WAITING_S_MAX)
_judging = FairTurns(1, waiting_max=WAITING_MAX, wait_s=WAITING_S_MAX)


class BounceCounts(Struct, frozen=True):
    """Addresses that were fed back; those that are recorded are `bounced` for 90 days."""

    recorded: Annotated[int, says("Mailboxes that do not exist: `bounced` for 90 days.")]
    soft: Annotated[
        int, says("Addresses with temporary bounces, such as full mailboxes. Nothing is recorded.")
    ]
    ignored: Annotated[
        int,
        says("Addresses refused for another or an unknown reason, or that did not bounce."),
    ]


async def feed_bounces(service: Service, call: Call) -> OperationReply:
    """Tell which mails came back: an event of a mail service, or a delivery report (RFC 3464)."""
    account = call.caller.account.id
    content_type = call.headers.get("content-type", "")
    source, kinds = await _read(content_type, call.body, account)
    kinds.pop("", None)  # an event that is not a bounce may have no address
    gone = [address for address, kind in kinds.items() if kind == "no_mailbox"]
    mailboxes = [*mailboxes_of(gone)]
    if mailboxes and not call.caller.key.is_test:
        await service.store.record_bounces(account, mailboxes, source)
        service.quota.bounced.forget(account)
    soft = Counter(kinds.values())["temporary"]
    return reply(200, BounceCounts(len(mailboxes), soft, len(kinds) - len(mailboxes) - soft))


async def forget_bounce(service: Service, call: Call) -> OperationReply:
    """Forget that mail to an address came back: its mail host is asked again from now on."""
    account, mailboxes = call.caller.account.id, [*mailboxes_of([unquote(call.path["email"])])]
    if call.caller.key.is_test or not await service.store.forget_bounces(account, mailboxes):
        raise BounceNotFound
    return OperationReply(204)


async def _read(content_type: str, body: bytes, account: str) -> tuple[str, dict[str, Kind | None]]:
    """Where the bounces come from, and the kinds of the addresses; None: of no bounce.

    Raises InvalidRequest.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in REPORTS:
        head = f"Content-Type: {content_type}\r\n\r\n" if media_type == REPORTS[-1] else ""
        octets = head.encode() + body
        async with _reading.turn(account):
            found = await trio.to_thread.run_sync(reported_in, octets)
        if not found:
            raise InvalidRequest("The report names no address and its status.", "bounces")
        return "report", {**found}
    try:
        read = read_events(body)
    except UnreadableEvents:
        raise InvalidRequest(UNKNOWN, "bounces") from None
    if isinstance(read, SubscriptionConfirmation):
        _log_confirmation(account, read)
        return "sns", {}
    source, events = read
    if len(events) > EVENTS_MAX:
        raise InvalidRequest(f"A request takes at most {EVENTS_MAX:,} events.", "bounces")
    kinds: dict[str, Kind | None] = {}
    for event in events:
        async with _judging.turn(account):
            kind = event.kind
        if kinds.get(event.address) is None or kind == "no_mailbox":
            kinds[event.address] = kind
    return source, kinds


def _log_confirmation(account: str, confirmation: SubscriptionConfirmation) -> None:
    """It is never opened here: a URL in a request would make this service a client of anything."""
    log.warning(
        "subscription not confirmed: account=%s topic=%s url=%s",
        account, shown(confirmation.topic),
        "none of Amazon's" if confirmation.url is None else confirmation.url[:2048],
    )  # fmt: skip


OPERATIONS = (
    Operation(
        "feed_bounces", "POST", "/v1/bounces", "Feed back which mails came back",
        feed_bounces, "standard", BounceCounts, section="bounces",
        may=(*KEYED, *BODIED, *REPEATABLE), raw=BOUNCES,
        octets_max=BOUNCES_OCTETS_MAX, takes_basic=True, examples=(BounceCounts(1, 0, 0),),
    ),
    Operation(
        "forget_bounce", "DELETE", "/v1/bounces/{email}", "Forget that mail to an address came back",
        forget_bounce, "standard", None, 204, section="bounces", may=(*KEYED, BounceNotFound),
        parameters=(
            parameter("email", "The address, percent-encoded.", "path", required=True, maxLength=320),
        ),
    ),
)  # fmt: skip
