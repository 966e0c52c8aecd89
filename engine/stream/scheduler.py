"""open_answers(): many addresses -> a stream of Answer, in completion order.

Every door collects from this stream. What several addresses need in common (a
look-up, a conversation, the same mailbox) is asked once. A patient asker, which
cleans a list, holds addresses back until their exchange has a seat free; an
impatient one's clock runs at once. Memory is bounded whatever the list's length.
Leaving the block cancels what is unfinished.
"""

import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache

import msgspec
import trio

from mailprobe.engine.background import contained
from mailprobe.engine.dns.doh import DohTransport
from mailprobe.engine.dns.messages import MailExchange, Route, RouteAnswer
from mailprobe.engine.dns.routes import Routes, open_routes
from mailprobe.engine.evidence import Evidence
from mailprobe.engine.lists.lists import Lists, load_lists
from mailprobe.engine.net.dialer import Dial, Dialer
from mailprobe.engine.observer import NO_OBSERVER, OWN_RULES, Observer
from mailprobe.engine.pipeline import Verification, read_route, read_text
from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.smtp.connection_budget import ConnectionBudget
from mailprobe.engine.smtp.dispatcher import ProbeDispatcher, open_dispatcher
from mailprobe.engine.smtp.operators import load_operators
from mailprobe.engine.smtp.pool.pool import Pool
from mailprobe.engine.smtp.probe import Probe, ProbeNotes
from mailprobe.engine.smtp.replies.rules import Rules, load_rules
from mailprobe.engine.verdict import Verdict

OPEN_MAX = 20_000  # addresses taken up and not answered; enough to find work for every host
UNREAD_MAX = 1_000  # answers that the reader has not taken
LOOKUPS_MAX = 200  # of routes, at a time: as many as a resolver is asked at once
ORDERS_MAX = 10_000  # domains whose shuffled exchanges are remembered
FIRST_EXCHANGES = 2  # of a route, that a patient asker may wait for
BACKOFF_CHECK_S = 0.5  # between two looks at the hosts that rest
COMPILE_AFTER_S = 0.05  # when the first question has left: it goes before the rules
SUBMIT_STEP = 64  # addresses taken up between two looks at the rest of the world,
HUNGRY_FEED_STEP = 256  # or so many, for 3 ms, where no host has as many as it can take
RELEASE_STEP = 1024  # so many are taken up before those held back are let in, together
SNAPSHOT_S = 0.25  # a domain's route and pools are looked up once for the addresses of so long
SNAPSHOTS_MAX = 10_000
ROOM_SHARE = 16  # of what may be open or unread must be free before more is taken up
BACKLOG_KNOWN_S = 60.0  # for so long who is held back relies on the addresses that were known


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A verdict, and the place its address had among those asked for (from 0)."""

    position: int
    verdict: Verdict
    evidence: Evidence | None = None


class Answers:
    """The stream's reading end: an async iterator, for one reader."""

    def __init__(self, on_taken: Callable[[], None]) -> None:
        self.ready: deque[Answer] = deque()  # not taken yet
        self._ended = False
        self._awaited = False  # by who may be parked: to ask the lot itself is Python code
        self._arrived = trio.lowlevel.ParkingLot()
        self._on_consumed = on_taken

    def __len__(self) -> int:
        return len(self.ready)

    def __aiter__(self) -> "Answers":
        return self

    async def __anext__(self) -> Answer:
        await self._wait()
        if not self.ready:
            raise StopAsyncIteration
        answer = self.ready.popleft()
        self._on_consumed()
        return answer

    async def next_ready(self) -> list[Answer]:
        """All answers that are there, at least one; an empty list at the end."""
        await self._wait()
        ready = list(self.ready)
        self.ready.clear()
        self._on_consumed()
        return ready

    async def _wait(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.ready and not self._ended:
            self._awaited = True
            await self._arrived.park()

    def put(self, answer: Answer) -> None:
        self.ready.append(answer)
        if self._awaited:
            self._awaited = False
            self._arrived.unpark()

    def end(self) -> None:
        self._ended = True
        self._arrived.unpark_all()


async def in_order(answers: Answers, count: int) -> list[Verdict]:
    """Collect a finished stream: the verdicts in the order of the addresses."""
    verdicts: list[Verdict | None] = [None] * count
    async for answer in answers:
        verdicts[answer.position] = answer.verdict
    return [verdict for verdict in verdicts if verdict is not None]


@dataclass(frozen=True, slots=True)
class Engine:
    """What the five layers need; opened by open_engine()."""

    settings: EngineSettings
    lists: Lists
    routes: Routes
    dispatcher: ProbeDispatcher
    rng: random.Random
    observer: Observer = NO_OBSERVER


class _DomainSnapshot(msgspec.Struct, eq=False):
    """What is known of a domain just now, for those of its addresses that come together."""

    answer: RouteAnswer
    until: float  # trio's clock
    exchanges: list[MailExchange]
    pools: list[Pool | None]  # of the first of them; None where its addresses aren't known


class _Scheduler:
    """One call of open_answers: what was taken up, is held back, is under way."""

    def __init__(
        self, engine: Engine, account: str, nursery: trio.Nursery, *, patient: bool, explain: bool
    ) -> None:
        self.answers = Answers(self._check_capacity)
        self._engine = engine
        self._observer = engine.observer
        self._watched = engine.observer is not NO_OBSERVER  # whom nothing need be told
        self._account = account
        self._nursery = nursery
        self._deferred = patient
        self._explain = explain
        self._now = trio.lowlevel.current_clock().current_time
        self._open: dict[str, Verification] = {}  # by mailbox: the same one is asked once
        self._by_domain: dict[str, list[Verification]] = {}  # waiting for a route
        self._snapshots: dict[str, _DomainSnapshot] = {}
        self._orders: dict[str, list[MailExchange]] = {}
        self._backlog: dict[Pool, deque[Verification]] = {}  # until their host has a seat free
        self._together: dict[Pool, list[Probe]] = {}  # to be asked in this very step
        self._due: dict[Pool, None] = {}  # where some are held that nobody has looked at yet
        self._releasing: set[Pool] = set()
        self._positions = 0  # texts taken up and not answered
        self._room = trio.Event()
        self._stalled = False  # until there is room
        self._all_submitted = False
        self._closed = False
        if patient:
            engine.dispatcher.subscribe_capacity(self._on_room)
            nursery.start_soon(self.watch_backoffs)

    # -- taking up ---------------------------------------------------------------------------

    async def submit_all(self, texts: Iterable[str]) -> None:
        """Take up the texts as there is room for them; those of one step begin together."""
        ready, now, hungry = self.answers.ready, self._now(), False
        for place, text in enumerate(texts):
            if self._closed:
                return
            # _crowded(), said here once more: it is asked of each text.
            if (
                self._positions >= OPEN_MAX
                or len(ready) >= UNREAD_MAX
                or len(self._by_domain) >= LOOKUPS_MAX
            ):
                self._release_due()
                await self._wait_for_room()
                now = self._now()
            self._admit(place, text, now)
            if place % SUBMIT_STEP == SUBMIT_STEP - 1:
                if not self._deferred or place % RELEASE_STEP == RELEASE_STEP - 1:
                    self._release_due()
                    hungry = self._deferred and not self._backlog
                if hungry and place % HUNGRY_FEED_STEP != HUNGRY_FEED_STEP - 1:
                    continue
                await trio.lowlevel.checkpoint()
                now = self._now()
        self._release_due()
        self._all_submitted = True
        self._end_if_done()

    def _at_capacity(self) -> bool:
        return (
            self._positions >= OPEN_MAX
            or len(self.answers) >= UNREAD_MAX
            or len(self._by_domain) >= LOOKUPS_MAX
        )

    async def _wait_for_room(self) -> None:
        while self._at_capacity():
            self._room = trio.Event()
            self._stalled = True
            await self._room.wait()

    def _check_capacity(self) -> None:
        """Let the feeding go on once there is room for a few: for one it is not worth waking."""
        if (
            self._stalled
            and self._positions <= OPEN_MAX - OPEN_MAX // ROOM_SHARE
            and len(self.answers) <= UNREAD_MAX - UNREAD_MAX // ROOM_SHARE
            and len(self._by_domain) < LOOKUPS_MAX
        ):
            self._stalled = False
            self._room.set()

    def _end_if_done(self) -> None:
        if self._all_submitted and not self._open:
            self.answers.end()

    def _admit(self, place: int, text: str, now: float) -> None:
        self._positions += 1
        if self._watched:
            now = self._now()  # who measures is told of each by itself
        verification = Verification(text, place, now)
        if self._explain:
            verification.notes = ProbeNotes()
        read_text(verification, self._engine.lists)
        if self._watched:
            self._observer.text_read(now)
        if verification.address is None or verification.outcome is not None:
            self._emit(verification)
            return
        twin = self._open.get(verification.mailbox)
        if twin is not None:
            twin.duplicates = twin.duplicates or []
            twin.duplicates.append((place, text))
            return
        self._open[verification.mailbox] = verification
        domain = verification.address.domain
        snapshot = self._snapshots.get(domain)
        if snapshot is None or snapshot.until < now:
            snapshot = self._open_snapshot(domain)
        if snapshot is None:
            self._await_route(verification, domain)
            return
        if self._watched:
            self._observer.recalled("mx")
        if verification.notes is not None:
            verification.notes.cached.append("mx")
        self._routed(verification, snapshot, now)

    def _emit(self, verification: Verification) -> None:
        now = self._now()
        duplicates = verification.duplicates
        self._positions -= 1
        if self._watched:
            assert verification.outcome is not None
            self._observer.answer_emitted(
                verification.outcome, verification.rule, 1 + len(duplicates or ())
            )
        evidence = None if verification.notes is None else verification.evidence()
        self.answers.put(
            Answer(verification.position, verification.verdict(verification.text, now), evidence)
        )
        if duplicates:
            self._positions -= len(duplicates)
            for place, text in duplicates:
                self.answers.put(Answer(place, verification.verdict(text, now), evidence))

    def _finish(self, verification: Verification) -> None:
        del self._open[verification.mailbox]
        self._emit(verification)
        if self._stalled:
            self._check_capacity()
        elif self._all_submitted:
            self._end_if_done()

    # -- layer 3 -----------------------------------------------------------------------------

    def _await_route(self, verification: Verification, domain: str) -> None:
        if domain in self._by_domain:
            self._by_domain[domain].append(verification)
        else:
            self._by_domain[domain] = [verification]
            self._nursery.start_soon(self._lookup, domain)

    def _open_snapshot(self, domain: str) -> _DomainSnapshot | None:
        """A lane from what is remembered; None where that does not do."""
        known = self._engine.routes.cached_route(domain, patient=self._deferred)
        if known is None or not self._has_exchanges(known):
            return None
        if len(self._snapshots) >= SNAPSHOTS_MAX:
            self._snapshots.clear()
        snapshot = self._snapshots[domain] = self._snapshot(known)
        return snapshot

    def _snapshot(self, answer: RouteAnswer) -> _DomainSnapshot:
        exchanges = self._order(answer) if isinstance(answer, Route) else []
        firsts = exchanges[: FIRST_EXCHANGES if self._deferred else 1]
        pools = [self._engine.dispatcher.pool_of(each) for each in firsts]
        return _DomainSnapshot(answer, self._now() + SNAPSHOT_S, exchanges, pools)

    def _has_exchanges(self, answer: RouteAnswer) -> bool:
        """Is all known that this asker needs before layer 4? A patient one needs the hosts."""
        if not self._deferred or not isinstance(answer, Route):
            return True
        routes = self._engine.routes
        return all(routes.cached_addresses(each.name, patient=True) for each in self._first(answer))

    def _first(self, route: Route) -> list[MailExchange]:
        return self._order(route)[:FIRST_EXCHANGES]

    async def _lookup(self, domain: str) -> None:
        routes = self._engine.routes
        answer = await routes.find(domain, self._account, patient=self._deferred)
        if self._deferred and isinstance(answer, Route):
            for exchange in self._first(answer):
                await routes.addresses(exchange.name, self._account, patient=True)
        if self._closed:
            return
        snapshot, now = self._snapshot(answer), self._now()
        for verification in self._by_domain.pop(domain):
            if verification.notes is not None:
                verification.notes.lookup_took = True
            self._routed(verification, snapshot, now)
        self._release_due()
        self._check_capacity()

    def _routed(self, verification: Verification, snapshot: _DomainSnapshot, now: float) -> None:
        read_route(verification, snapshot.answer)
        if self._watched:
            self._observer.route_read(verification.began)
        if verification.outcome is not None:
            self._finish(verification)
        elif not snapshot.exchanges:
            self._submit_probe(verification)
        elif self._deferred:
            self._defer(verification, snapshot, now)
        elif (pool := snapshot.pools[0]) is None:
            self._submit_probe(verification)
        else:
            verification.exchanges = snapshot.exchanges
            self._together.setdefault(pool, []).append(self._new_probe(verification))

    def _order(self, route: Route) -> list[MailExchange]:
        """The route's exchanges, equal ones shuffled; the same for the domain's next address."""
        order = self._orders.get(route.domain)
        if order is None:
            if len(self._orders) >= ORDERS_MAX:
                self._orders.clear()
            order = self._orders[route.domain] = route.in_order(self._engine.rng)
        return order

    # -- layer 4 -----------------------------------------------------------------------------

    def _submit_probe(self, verification: Verification) -> None:
        self._engine.dispatcher.submit(self._new_probe(verification))

    def _new_probe(self, verification: Verification, behind: int = 0) -> Probe:
        address, route = verification.address, verification.route
        assert address is not None
        assert route is not None
        probe = verification.probe = Probe(
            verification.mailbox,
            address.domain,
            self._account,
            verification.exchanges or self._order(route),
            self._settled,
            verification,
            not address.local.isascii(),
            verification.notes,
            behind,
        )
        return probe

    def _settled(self, probe: Probe) -> None:
        """Called by whoever settles it, for whom a fault of this stream must be nothing."""
        try:
            verification: Verification = probe.owner
            verification.probe = None  # they need not wait for the collector of cycles
            if self._watched:
                self._observer.probe_settled(probe.deadline - self._engine.settings.probe_s)
            verification.outcome, verification.rule = probe.outcome, probe.rule
            self._finish(verification)
        except Exception as error:
            self._nursery.start_soon(_fail, error)

    # -- patience ----------------------------------------------------------------------------

    def _defer(self, verification: Verification, snapshot: _DomainSnapshot, now: float) -> None:
        """Hold the inquiry back at the first of its exchanges that is worth asking now."""
        pools, exchanges = snapshot.pools, snapshot.exchanges
        pool = pools[0]
        if pool is None or (pool.backoff.failures and pool.worth_waiting_for()):
            place = next(
                (n for n, each in enumerate(pools) if each and not each.worth_waiting_for()), 0
            )
            pool = pools[place]
            # One that can't be reached just now is left for the end.
            exchanges = [*exchanges[place:], *exchanges[:place]]
        verification.exchanges = exchanges
        if pool is None:  # its addresses are unknown or not for us: that is soon told
            self._submit_probe(verification)
            return
        if verification.deferred_since is None:
            verification.deferred_since = now
        held = self._backlog.get(pool)
        if held is None:
            held = self._backlog[pool] = deque()
        held.append(verification)
        self._due[pool] = None

    def _release_due(self) -> None:
        """Look at the hosts at which others have been held since: together, for one write.

        An impatient asker's questions, whose clocks are to run now, are asked host by host.
        """
        if self._together:
            together, self._together = self._together, {}
            for pool, probes in together.items():
                self._engine.dispatcher.submit_to(pool, probes)
        while self._due:
            self._release(self._due.popitem()[0])

    def _release(self, pool: Pool) -> None:
        """Ask as many of those held back as the host and the desk have room for."""
        held = self._backlog.get(pool)
        if held is None or (room := pool.room(len(held))) <= 0 or pool in self._releasing:
            return
        dispatcher = self._engine.dispatcher
        self._releasing.add(pool)
        while held and (room := min(room, dispatcher.room)) > 0:
            now, present = self._now(), pool.present
            let_in: list[Probe] = []
            for _ in range(min(room, len(held))):
                verification = held.popleft()
                assert verification.deferred_since is not None
                waited_s = now - verification.deferred_since
                verification.began += waited_s
                probe = self._new_probe(verification, len(held))
                if waited_s < BACKLOG_KNOWN_S:
                    let_in.append(probe)
                else:
                    dispatcher.submit(probe)  # which looks its exchange up again
                    break
            dispatcher.submit_to(pool, let_in)
            if not held or pool.present == present + room:
                break  # as full as may be; mostly so, unless some were answered at once
            room = pool.room(len(held))
        self._releasing.discard(pool)
        if not held:
            self._backlog.pop(pool, None)

    def _on_room(self, pool: Pool | None) -> None:
        """Room was made at this host; where none is named, at a desk that was full."""
        if pool is not None:
            self._release(pool)
            return
        for other in list(self._backlog):
            if self._engine.dispatcher.full:
                break
            self._release(other)

    async def watch_backoffs(self) -> None:
        """Look now and then at those held back: a rest ends without anybody's doing."""
        while True:
            await trio.sleep(BACKOFF_CHECK_S)
            for pool in list(self._backlog):
                if pool.worth_waiting_for():
                    self._defer_elsewhere(pool)
                else:
                    self._release(pool)

    def _defer_elsewhere(self, pool: Pool) -> None:
        """While this host rests, those who have another exchange go there."""
        held, now = self._backlog.pop(pool, deque()), self._now()
        for verification in held:
            assert verification.route is not None
            self._defer(verification, self._snapshot(verification.route), now)
        self._release_due()

    def close(self) -> None:
        """Nothing that is unfinished is wanted any more."""
        self._closed = True
        dispatcher = self._engine.dispatcher
        dispatcher.unsubscribe_capacity(self._on_room)
        self._backlog.clear()
        dispatcher.abandon([each.probe for each in self._open.values() if each.probe is not None])


def lone(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception of a group, for callers that catch it by its name; else the group."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found


@asynccontextmanager
async def open_answers(
    engine: Engine,
    texts: Iterable[str],
    *,
    account: str,
    patient: bool = False,
    explain: bool = False,
) -> AsyncIterator[Answers]:
    """Verify each text; the block's value gives an Answer for every one, as they are found.

    `account` names the account for fairness. `patient`: the 3000 ms of an address
    begin when it is admitted, not when it is taken from `texts`, which is read
    as there is room. `explain` adds evidence. Leaving the block cancels the rest.
    """
    try:
        async with trio.open_nursery() as nursery:
            scheduler = _Scheduler(engine, account, nursery, patient=patient, explain=explain)
            nursery.start_soon(scheduler.submit_all, texts)
            try:
                yield scheduler.answers
            finally:
                scheduler.close()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise lone(group) from None


async def _fail(error: Exception) -> None:
    raise error


class KnownAnswers(msgspec.Struct, frozen=True):
    """Answers that were known at once. The watcher hears of them when they are given."""

    answers: list[Answer]
    inquiries: list[Verification]

    def notify(self, observer: Observer) -> None:
        """They are given: the watcher is told as if they had come by the stream."""
        for verification in self.inquiries:
            assert verification.outcome is not None
            observer.text_read(verification.began)
            if verification.needs_route:
                observer.recalled("mx")
                observer.route_read(verification.began)
            observer.answer_emitted(verification.outcome, verification.rule, 1)


def known_answers(
    engine: Engine, texts: Sequence[str], *, explain: bool = False
) -> KnownAnswers | None:
    """The answers to all these texts, in their order, if nobody need be asked for any of them.

    Bad syntax, a throwaway, and what a remembered route decides. By the same steps as in
    the stream; None from the first text on that would have to wait.
    """
    now = trio.current_time()
    answers: list[Answer] = []
    verifications: list[Verification] = []
    for place, text in enumerate(texts):
        verification = Verification(text, place, now)
        if explain:
            verification.notes = ProbeNotes()
        read_text(verification, engine.lists)
        if verification.needs_route:
            _read_cached_route(verification, engine.routes)
        if verification.outcome is None:
            return None
        verifications.append(verification)
    reported_at = trio.current_time()
    for verification in verifications:
        verdict = verification.verdict(verification.text, reported_at)
        answers.append(Answer(verification.position, verdict, verification.evidence()))
    return KnownAnswers(answers, verifications)


def _read_cached_route(verification: Verification, routes: Routes) -> None:
    assert verification.address is not None
    route = routes.cached_route(verification.address.domain)
    if route is not None:
        if verification.notes is not None:
            verification.notes.cached.append("mx")
        read_route(verification, route)


_lists = cache(load_lists)
_rules = cache(load_rules)
_operators = cache(load_operators)


def load_rules_and_lists() -> None:
    """Load now what every engine of this process shares; a process forked afterwards has it too."""
    len(_lists().disposable)  # makes its set
    _operators()
    _rules().compile_all()


async def _compile(rules: Rules) -> None:
    """Compile the rules' patterns while the first answers are under way.

    One at a time, so that nothing waits for more than that, and all of them long
    before the first verdict is due.
    """
    await trio.sleep(COMPILE_AFTER_S)
    for _ in rules.compile_remaining():
        await trio.lowlevel.checkpoint()


def deciding_rules() -> tuple[str, ...]:
    """The ids of all rules that can decide an outcome, ours first."""
    return (*OWN_RULES, *(rule.reading.rule for rule in _rules().rules))


@asynccontextmanager
async def open_engine(
    settings: EngineSettings,
    *,
    transport: DohTransport | None = None,
    dial: Dial | None = None,
    rng: random.Random | None = None,
    mint: Callable[[], str] | None = None,
    observer: Observer = NO_OBSERVER,
    permits: ConnectionBudget | None = None,
) -> AsyncIterator[Engine]:
    """An engine with its caches and connections; leaving it says QUIT on each of them.

    `transport`, `dial`, `rng` and `mint` (the random address's local part) are
    the world and chance; left out, they are the real ones. `observer` is told what
    the engine does. `permits` says how many connections it may hold to an address, where
    it shares the settings' limit with others.
    """
    rng = rng or random.Random()
    lists, rules, operators = _lists(), _rules(), _operators()
    try:
        async with (
            open_routes(settings, transport=transport, rng=rng, observer=observer) as routes,
            open_dispatcher(
                settings,
                routes=routes,
                dial=dial or Dialer(settings.proxies, allow_private=settings.allow_private),
                rules=rules,
                operators=operators,
                mint=mint,
                observer=observer,
                permits=permits,
            ) as dispatcher,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(contained, _compile, rules)
            yield Engine(settings, lists, routes, dispatcher, rng, observer)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise lone(group) from None
