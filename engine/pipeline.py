"""The five layers, in order, for one address; the first that fails ends it.

An `Verification` is one address of one asker on its way. Each step is synchronous
and gives the verdict or what is needed next, so that a thousand addresses of a
domain can share the one look-up and the one conversation they need.
"""

import msgspec

from mailprobe.engine.address import Address, NotAnAddress, parse
from mailprobe.engine.dns.messages import LookupFailed, MailExchange, NoMail, Route, RouteAnswer
from mailprobe.engine.evidence import CONVERSATION_LINES_MAX, ConnectionAttempt, Evidence, shown
from mailprobe.engine.lists.lists import Lists
from mailprobe.engine.smtp.probe import Probe, ProbeNotes
from mailprobe.engine.verdict import NO_SIGNALS, Outcome, Signals, Verdict, judge


class Verification(msgspec.Struct, eq=False):
    """One address under way; `began` is on trio's clock, without the time it was held back."""

    text: str
    position: int  # where the answer goes
    began: float
    duplicates: list[tuple[int, str]] | None = (
        None  # further places, and the text as it was sent there
    )
    address: Address | None = None
    mailbox: str = ""  # the address's
    signals: Signals = NO_SIGNALS
    route: Route | None = None
    exchanges: list[MailExchange] | None = None  # in another order than the route's
    probe: Probe | None = None
    notes: ProbeNotes | None = None
    outcome: Outcome | None = None
    rule: str = ""  # one of stream.deciding_rules()
    why: object = None  # what the rule found, in words, where it says more than its id
    deferred_since: float | None = None  # by a patient asker, until its exchange has a seat

    def decide(self, outcome: Outcome, rule: str, why: object = None) -> None:
        self.outcome = outcome
        self.rule = rule
        self.why = why

    @property
    def needs_route(self) -> bool:
        """Have layers 1, 2 and 5 left it to the route? For one whose text was read."""
        return self.address is not None and not self.signals.disposable

    def verdict(self, text: str, now: float) -> Verdict:
        """The decided outcome, told of the text as it was sent."""
        assert self.outcome is not None
        route = self.route
        return judge(
            text,
            self.outcome,
            self.signals,
            None if route is None else route.mx_host,
            route is not None,
            round((now - self.began) * 1000),
        )

    def evidence(self) -> Evidence | None:
        if self.notes is None:
            return None
        tried = self.notes.tried[:CONVERSATION_LINES_MAX]
        return Evidence(
            exchanges=[
                ConnectionAttempt(one.exchange, one.address, shown(one.result)) for one in tried
            ],
            conversation=self.notes.lines_since(self.began),
            rule=self.rule if self.why is None else shown(f"{self.rule}: {self.why}"),
            cached=list(dict.fromkeys(self.notes.cached)),
            truncated=self.notes.cut or len(tried) < len(self.notes.tried),
        )


def read_text(verification: Verification, lists: Lists) -> None:
    """Layers 1, 2 and 5: decided, or an address whose domain is to be looked up."""
    try:
        address = parse(verification.text)
    except NotAnAddress as error:
        verification.decide(Outcome.SYNTAX, "syntax", error)
        return
    verification.address, verification.mailbox = address, address.mailbox
    verification.signals = lists.signals(address)
    if verification.signals.disposable:
        verification.decide(Outcome.DISPOSABLE, "disposable")


def read_route(verification: Verification, answer: RouteAnswer) -> None:
    """Layer 3: decided, or a route on which the exchanges are to be asked."""
    match answer:
        case Route(mx_host=None):
            # MX records exist and name no host: mx_found needs one that mx_host can tell.
            verification.decide(Outcome.RESOLVER_FAILED, "resolver", "no MX record names a host")
        case Route():
            verification.route = answer
            if verification.signals.smtp_blocked:
                verification.decide(Outcome.SMTP_BLOCKED, "smtp_blocked")
        case NoMail(reason):
            verification.decide(Outcome.NO_MX, "no_mx", reason)
        case LookupFailed(reason):
            verification.decide(Outcome.RESOLVER_FAILED, "resolver", reason)
