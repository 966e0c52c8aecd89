"""The five layers, in order, for one address; the first that fails decides.

A `Verification` is one address on its way through them. Each step is synchronous: it
decides, or leaves what the next layer needs. So a thousand addresses of a domain can
share one look-up and one conversation. Decisions of the first layers need no stream:
`known_answers()` and `paused_among()` take the same steps.
"""

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import msgspec
import trio
from msgspec.structs import replace

from ..address import Address, NotAnAddress, parse
from ..dns.messages import (
    DNS_LAG_RULE,
    LookupFailed,
    MailExchange,
    NoMail,
    Route,
    RouteAnswer,
)
from ..evidence import CONVERSATION_LINES_MAX, ConnectionAttempt, Evidence, shown
from ..lists.lists import Lists
from ..observer import Observer
from ..pauses import PAUSED_RULE, CurrentPauses
from ..reasons import VerdictCause, verdict_cause
from ..smtp.host.host import Host
from ..smtp.operators import OTHERS
from ..smtp.probe import Probe, ProbeNotes
from ..verdict import NO_SIGNALS, Outcome, Signals, Verdict, judge
from .answers import Answer
from .engine import Engine

NO_BOUNCES: Mapping[str, str] = {}
ORDERS_MAX = 10_000  # domains whose shuffled exchanges are kept
FIRST_EXCHANGES = 2  # exchanges of a route that a list may wait for
SNAPSHOT_S = 0.25  # addresses of a domain that come within this time share one look at its pools
SNAPSHOTS_MAX = 10_000


class Verification(msgspec.Struct, eq=False):
    """One address under way; `began` is on trio's clock, without the time in the backlog."""

    text: str
    position: int  # in the input, from 0
    began: float
    duplicates: list[tuple[int, str]] | None = None  # positions and texts of the same mailbox
    address: Address | None = None
    mailbox: str = ""  # the address's
    signals: Signals = NO_SIGNALS
    needs_route: bool = False  # layers 1, 2 and 5 left it undecided; set by read_text()
    route: Route | None = None
    exchanges: list[MailExchange] | None = None  # in the order to try, if not the route's
    probe: Probe | None = None
    notes: ProbeNotes | None = None
    bounced: str | None = None  # who reported that mail to it came back, and when
    outcome: Outcome | None = None
    rule: str = ""  # one of deciding_rules()
    why: object = None  # details in words, where the id of the rule is not enough
    retry_s: float | None = None  # after so many seconds its mail host may be asked again
    takes: int = 0  # see probe.Probe
    deferred_since: float | None = None  # in the backlog since; None if it never was

    def decide(self, outcome: Outcome, rule: str, why: object = None) -> None:
        self.outcome = outcome
        self.rule = rule
        self.why = why

    def settled_by(self, probe: Probe) -> None:
        self.outcome, self.rule = probe.result.outcome, probe.result.rule
        self.retry_s, self.takes = probe.result.retry_s, probe.result.takes

    @property
    def domain(self) -> str:
        """Of the address; only once it is parsed."""
        assert self.address is not None
        return self.address.domain

    @property
    def latest_host(self) -> str:
        """The name of the exchange that was asked last; empty if there was none."""
        probe = None if self.probe is None else self.probe.latest
        if probe is None or not 0 <= probe.target.place < len(probe.target.exchanges):
            return ""
        return probe.target.exchange.name

    def verdict(self, text: str, now: float) -> Verdict:
        """The verdict of the decided outcome, for the text as it was submitted."""
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

    @property
    def cause(self) -> VerdictCause:
        assert self.outcome is not None
        return verdict_cause(self.outcome, self.rule)

    def evidence(self) -> Evidence | None:
        if self.notes is None:
            return None
        self.notes.record_unanswered()
        reason, blame = self.cause
        tried = self.notes.tried[:CONVERSATION_LINES_MAX]
        return Evidence(
            exchanges=[
                ConnectionAttempt(one.exchange, one.address, shown(one.result)) for one in tried
            ],
            conversation=self.notes.lines_since(self.began),
            rule=self.rule if self.why is None else shown(f"{self.rule}: {self.why}"),
            reason=reason,
            blame=blame,
            cached=list(dict.fromkeys(self.notes.cached)),
            truncated=self.notes.cut or len(tried) < len(self.notes.tried),
        )


def read_text(
    verification: Verification, lists: Lists, bounced: Mapping[str, str] = NO_BOUNCES
) -> None:
    """Layers 1, 2 and 5: decide, or set the address, whose domain is to be looked up.

    `bounced`: see open_answers().
    """
    try:
        address = parse(verification.text)
    except NotAnAddress as error:
        verification.decide(Outcome.SYNTAX, "syntax", error)
        return
    verification.address, verification.mailbox = address, address.mailbox
    verification.signals = lists.signals(address)
    if verification.signals.disposable:
        verification.decide(Outcome.DISPOSABLE, "disposable")
    elif lists.is_never_asked(address):
        verification.decide(Outcome.NOT_ASKED, "never_ask")
    else:
        verification.needs_route = True
        if bounced:
            verification.bounced = bounced.get(address.mailbox.lower())


def read_route(
    verification: Verification, answer: RouteAnswer, lists: Lists, *, asks_hosts: bool = True
) -> None:
    """Layer 3: decide, or set the route, whose exchanges are to be probed if `asks_hosts`."""
    match answer:
        case Route(mx_host=None):
            # MX records exist but name no host; mx_found would need an mx_host.
            verification.decide(Outcome.RESOLVER_FAILED, "mx.no-host", "no MX record names a host")
        case Route(mx_host=str(mx_host)):
            assert verification.address is not None
            verification.route = answer
            if lists.is_disposable_by_host(verification.address, mx_host):
                verification.signals = replace(verification.signals, disposable=True)
                verification.decide(Outcome.DISPOSABLE, "disposable.host", mx_host)
            elif verification.bounced is not None:
                verification.decide(Outcome.BOUNCED, "bounced", verification.bounced)
            elif verification.signals.smtp_blocked:
                verification.decide(Outcome.SMTP_BLOCKED, "smtp_blocked")
            elif not asks_hosts:
                verification.decide(Outcome.NOT_ASKED, "not_asked")
        case NoMail(reason):
            verification.decide(Outcome.NO_MX, "no_mx", reason)
        case LookupFailed(reason, by_lag=by_lag):
            rule = DNS_LAG_RULE if by_lag else "resolver"
            verification.decide(Outcome.RESOLVER_FAILED, rule, reason)


def read_pauses(verification: Verification, pauses: CurrentPauses) -> None:
    """Before layer 4: decide what the operator has paused."""
    if pauses.any and verification.outcome is None and is_paused(verification, pauses):
        verification.decide(Outcome.PAUSED, PAUSED_RULE)


def is_paused(verification: Verification, pauses: CurrentPauses) -> bool:
    """Whether this address, whose route is known, is paused."""
    address, route = verification.address, verification.route
    return address is not None and route is not None and pauses.has(address.domain, route.exchanges)


# -- the domains of a stream ----


class StreamOptions(msgspec.Struct, frozen=True):
    """What one stream is asked for: see open_answers()."""

    account: str
    deferred_start: bool
    explain: bool
    patient: bool
    asks_hosts: bool
    bounced: Mapping[str, str]
    patience_until: float  # on trio's clock

    def patience_left_s(self, now: float) -> float:
        return max(0.0, self.patience_until - now)


class DomainSnapshot(msgspec.Struct, eq=False):
    """A domain's route and pools at one moment, shared by addresses submitted together."""

    answer: RouteAnswer
    until: float  # on trio's clock
    exchanges: list[MailExchange]
    pools: list[Host | None]  # of the first exchanges; None if the addresses are not known


class StreamDomains(msgspec.Struct, eq=False):
    """The domains of one stream: the snapshots of them, and the order of their exchanges."""

    _engine: Engine
    _options: StreamOptions
    _snapshots: dict[str, DomainSnapshot] = msgspec.field(default_factory=dict)
    _orders: dict[str, list[MailExchange]] = msgspec.field(default_factory=dict)

    def known(self, domain: str, now: float) -> DomainSnapshot | None:
        """A snapshot of this moment, made from the caches alone; None where a look-up is needed."""
        snapshot = self._snapshots.get(domain)
        if snapshot is not None and snapshot.until >= now:
            return snapshot
        is_list = self._options.deferred_start
        answer = self._engine.routes.cached_route(domain, deferred_start=is_list)
        if answer is None or (is_list and not self._has_exchanges(answer)):
            return None
        if len(self._snapshots) >= SNAPSHOTS_MAX:
            self._snapshots.clear()
        snapshot = self._snapshots[domain] = self.snapshot(answer)
        return snapshot

    async def look_up(self, domain: str) -> RouteAnswer:
        """Look up the route; for a list also the addresses that layer 4 needs first."""
        routes, account = self._engine.routes, self._options.account
        is_list = self._options.deferred_start
        answer = await routes.find(domain, account, deferred_start=is_list)
        if is_list and self._leads_to_hosts(answer):
            for exchange in self.exchanges(answer)[:FIRST_EXCHANGES]:
                await routes.addresses(exchange.name, account, deferred_start=True)
        return answer

    def snapshot(self, answer: RouteAnswer) -> DomainSnapshot:
        """The domain with this route, and its pools as they are now."""
        exchanges: list[MailExchange] = []
        pools: list[Host | None] = []
        if self._leads_to_hosts(answer) and (exchanges := self.exchanges(answer)):
            first = exchanges[: FIRST_EXCHANGES if self._options.deferred_start else 1]
            patient = self._options.patient
            egress = self._engine.probing.egress_for_list(answer.domain, exchanges)
            pools = [
                None if egress is None else egress.host_of(each, patient=patient) for each in first
            ]
        return DomainSnapshot(answer, trio.current_time() + SNAPSHOT_S, exchanges, pools)

    def exchanges(self, route: Route) -> list[MailExchange]:
        """The route's exchanges, equal ones shuffled; the same order for all addresses of a domain."""
        order = self._orders.get(route.domain)
        if order is None:
            if len(self._orders) >= ORDERS_MAX:
                self._orders.clear()
            order = self._orders[route.domain] = self._engine.routes.in_order(route)
        return order

    def _has_exchanges(self, answer: RouteAnswer) -> bool:
        """Are the addresses cached that layer 4 needs first? Only a list waits for them."""
        if not self._leads_to_hosts(answer):
            return True
        routes = self._engine.routes
        return all(
            routes.cached_addresses(exchange.name, deferred_start=True)
            for exchange in self.exchanges(answer)[:FIRST_EXCHANGES]
        )

    def _leads_to_hosts(self, answer: RouteAnswer) -> TypeGuard[Route]:
        return self._options.asks_hosts and isinstance(answer, Route)


# -- without a stream ----


class KnownAnswers(msgspec.Struct, frozen=True):
    """Answers that were known at once. They are reported only when `notify` is called."""

    answers: list[Answer]
    verifications: list[Verification]

    def notify(self, observer: Observer) -> None:
        """Report these answers to the observer as the stream would have done."""
        for verification in self.verifications:
            assert verification.outcome is not None
            observer.text_read(verification.began)
            if verification.needs_route:
                observer.recalled("mx")
                observer.route_read(verification.began)
            observer.answer_emitted(verification.outcome, verification.rule, 1, OTHERS)


def known_answers(
    engine: Engine,
    texts: Sequence[str],
    *,
    explain: bool = False,
    asks_hosts: bool = True,
    bounced: Mapping[str, str] = NO_BOUNCES,
) -> KnownAnswers | None:
    """Return the answers to all these texts, in their order, if none needs a query or a probe.

    Stops at the first text that would have to wait, and returns None. Without `asks_hosts`,
    a cached route is enough. `bounced`: see open_answers().
    """
    now = trio.current_time()
    asks_hosts = asks_hosts and engine.settings.asks_hosts
    answers: list[Answer] = []
    verifications: list[Verification] = []
    for position, text in enumerate(texts):
        verification = Verification(text, position, now)
        if explain:
            verification.notes = ProbeNotes()
        read_text(verification, engine.lists, bounced)
        if verification.needs_route:
            _read_cached_route(verification, engine, asks_hosts)
        if verification.outcome is None:
            return None
        verifications.append(verification)
    reported_at = trio.current_time()
    for verification in verifications:
        verdict = verification.verdict(verification.text, reported_at)
        answers.append(
            Answer(verification.position, verdict, verification.evidence(), verification.cause)
        )
    return KnownAnswers(answers, verifications)


def _read_cached_route(verification: Verification, engine: Engine, asks_hosts: bool) -> None:
    assert verification.address is not None
    route = engine.routes.cached_route(verification.address.domain)
    if route is not None:
        if verification.notes is not None:
            verification.notes.cached.append("mx")
        read_route(verification, route, engine.lists, asks_hosts=asks_hosts)
        read_pauses(verification, engine.pauses)


async def paused_among(
    engine: Engine, texts: Sequence[str], *, account: str, bounced: Mapping[str, str]
) -> frozenset[int]:
    """Return the positions of texts that open_answers() would answer `paused`.

    It looks up the exchanges of domains that may be paused, patiently, as for a list; if that
    fails, the address is left out. At most a few hundred texts: they are looked up at once.
    """
    pauses = engine.pauses
    if not pauses.value or not engine.settings.asks_hosts:
        return frozenset()
    waiting: dict[str, list[Verification]] = {}
    for position, text in enumerate(texts):
        verification = Verification(text, position, 0.0)
        read_text(verification, engine.lists, bounced)
        if not verification.needs_route or verification.address is None:
            continue
        domain = verification.address.domain
        if pauses.value.may_have(domain):
            waiting.setdefault(domain, []).append(verification)

    async def look_up(domain: str) -> None:
        answer = await engine.routes.find(domain, account, deferred_start=True)
        for verification in waiting[domain]:
            read_route(verification, answer, engine.lists)
            read_pauses(verification, pauses)

    async with trio.open_nursery() as nursery:
        for domain in waiting:
            nursery.start_soon(look_up, domain)
    return frozenset(
        verification.position
        for several in waiting.values()
        for verification in several
        if verification.outcome is Outcome.PAUSED
    )
