"""Results that a test key gets: a table of local parts at `sandbox.test`.

A developer chooses the answer by the address, as with the test cards of a payment provider:
`full@sandbox.test` is a mailbox that is full, `rate_limited@sandbox.test` refuses the request
with 429. `+anything` may follow, so that each test has an address of its own. Any other address
answers as its text and the lists say, and else as deliverable. The domain is one that never
exists (RFC 6761 6.2). Pure.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from mailprobe.engine.dns.messages import MailExchange, Route
from mailprobe.engine.lists.lists import Lists
from mailprobe.engine.smtp.probe import ProbeNotes
from mailprobe.engine.stream.pipeline import Verification, read_route, read_text
from mailprobe.engine.verdict import NO_SIGNALS, Outcome, Signals
from mailprobe.storage.usage import month_bounds

from ..refusals import (
    HardCapReached,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Refusal,
    UsageUnknown,
)

DOMAIN = "sandbox.test"
RULE = "sandbox"  # in the evidence, where the engine names the rule that decided
SLOW_MS_MAX = 3000  # as long as the slowest real answer

_SLOW = re.compile(r"slow-([0-9]{1,5})", re.ASCII)


class SandboxRow(msgspec.Struct, frozen=True):
    """One row of the table: the outcome, and what the lists would say of the address."""

    outcome: Outcome
    meaning: str
    signals: Signals = NO_SIGNALS
    rule: str = RULE
    has_route: bool = True  # did the domain's look-up find a mail exchange?


ANSWERS: Mapping[str, SandboxRow] = {
    "deliverable": SandboxRow(Outcome.DELIVERABLE, "the mailbox exists"),
    "undeliverable": SandboxRow(Outcome.UNDELIVERABLE, "the host says that there is no such mailbox"),
    "catch_all": SandboxRow(Outcome.CATCH_ALL, "the host accepts every address of the domain"),
    "blocked": SandboxRow(
        Outcome.SMTP_BLOCKED, "a provider that does not answer probes", Signals(smtp_blocked=True)
    ),
    "disposable": SandboxRow(
        Outcome.DISPOSABLE, "a throwaway domain", Signals(disposable=True), has_route=False
    ),
    "no_mx": SandboxRow(Outcome.NO_MX, "the domain takes no mail", has_route=False),
    "timeout": SandboxRow(Outcome.TIMED_OUT, "the host did not answer in time"),
    "greylisted": SandboxRow(
        Outcome.TEMPORARY, "the host asks to come back later", rule="greylist.named"
    ),
    "full": SandboxRow(Outcome.MAILBOX_FULL, "the mailbox is full"),
    "inconclusive": SandboxRow(Outcome.REFUSED_BY_POLICY, "a refusal that says nothing about the mailbox"),
    "role": SandboxRow(Outcome.DELIVERABLE, "a role's mailbox, not a person's", Signals(role=True)),
    "info": SandboxRow(Outcome.DELIVERABLE, "the same", Signals(role=True)),
    "free": SandboxRow(
        Outcome.DELIVERABLE, "a mailbox at a free provider", Signals(free_provider=True)
    ),
    "typo": SandboxRow(
        Outcome.DELIVERABLE,
        "a domain that looks like a mistyped one",
        Signals(suggestion="gmail.com"),
    ),
    "syntax": SandboxRow(Outcome.SYNTAX, "no address at all", has_route=False),
}  # fmt: skip

# what layers 1 to 3 decide
WITHOUT_HOSTS = (Outcome.SYNTAX, Outcome.DISPOSABLE, Outcome.NO_MX, Outcome.SMTP_BLOCKED)

# the request as a whole is refused, whichever of its addresses asks for it
REFUSALS: Mapping[str, Callable[[datetime, int], Refusal]] = {
    "rate_limited": lambda now, units: RateLimited(60, now, now + timedelta(minutes=1), units),
    "quota": lambda now, units: QuotaExhausted(1000, 1000, now, month_bounds(now)[1], units),
    "payment_required": lambda now, units: HardCapReached(10.0, 10.0),
    "unavailable": lambda now, units: UsageUnknown(),
    "overloaded": lambda now, units: Overloaded(),
}


class SandboxVerification(msgspec.Struct, frozen=True):
    """One decided address, and the seconds after which its answer comes."""

    verification: Verification
    wait_s: float = 0.0


def refusal_for(texts: Sequence[str], now: datetime) -> Refusal | None:
    """Return the refusal that the first such address asks for, with figures as of `now`."""
    for text in texts:
        make = REFUSALS.get(_name_in(text))
        if make is not None:
            return make(now, len(texts))
    return None


def verify(
    text: str,
    position: int,
    lists: Lists,
    *,
    began: float,
    explain: bool = False,
    asks_hosts: bool = True,
) -> SandboxVerification:
    """Decide an address as the table says. `began` is on trio's clock.

    Without `asks_hosts`, what a mail host would have answered is `not_asked`.
    """
    verification = Verification(text, position, began)
    if explain:
        verification.notes = ProbeNotes()
    read_text(verification, lists)
    name = _name_in(text) if verification.address is not None else ""
    slow = _SLOW.fullmatch(name)
    if slow is not None and asks_hosts:
        _decide(verification, ANSWERS["deliverable"])
        return SandboxVerification(verification, min(int(slow[1]), SLOW_MS_MAX) / 1000)
    row = ANSWERS.get(name)
    if row is not None:
        verification.signals = replace(row.signals)
        _decide(verification, row)
        if not asks_hosts and verification.outcome not in WITHOUT_HOSTS:
            verification.decide(Outcome.NOT_ASKED, "not_asked")
    elif verification.outcome is None:
        assert verification.address is not None
        read_route(verification, _route(verification.address.domain), lists, asks_hosts=asks_hosts)
        if verification.outcome is None:
            verification.decide(Outcome.DELIVERABLE, RULE)
    return SandboxVerification(verification)


def _decide(verification: Verification, row: SandboxRow) -> None:
    verification.route = _route(DOMAIN) if row.has_route else None
    verification.decide(row.outcome, row.rule)


def _route(domain: str) -> Route:
    """A route that names a host which never exists."""
    name = f"mx.{DOMAIN}"
    return Route(domain, (MailExchange(name, 10),), name)


def _name_in(text: str) -> str:
    """Return the local part at DOMAIN that chooses the answer, without `+anything`; else ""."""
    local, at, domain = text.rpartition("@")
    if not at or domain.lower() != DOMAIN:
        return ""
    return local.partition("+")[0].lower()
