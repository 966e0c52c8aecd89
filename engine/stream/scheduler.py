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
from mailprobe.engine.observer import NOBODY, OWN_RULES, Watcher
from mailprobe.engine.pipeline import Inquiry, read_route, read_text
from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.smtp.connection_budget import Seats
from mailprobe.engine.smtp.dispatcher import Prober, open_prober
from mailprobe.engine.smtp.operators import load_sites
from mailprobe.engine.smtp.pool import Pool
from mailprobe.engine.smtp.probe import Notes, Question
from mailprobe.engine.smtp.replies.rules import Rules, load_rules
from mailprobe.engine.verdict import Verdict

OPEN_MAX = 20_000  # addresses taken up and not answered; enough to find work for every host
UNREAD_MAX = 1_000  # answers that the reader has not taken
LOOK_UPS_MAX = 200  # of routes, at a time: as many as a resolver is asked at once
ORDERS_MAX = 10_000  # domains whose shuffled exchanges are remembered
FIRST_EXCHANGES = 2  # of a route, that a patient asker may wait for
REST_LOOK_S = 0.5  # between two looks at the hosts that rest
COMPILE_AFTER_S = 0.05  # when the first question has left: it goes before the rules
FEED_STEP = 64  # addresses taken up between two looks at the rest of the world,
HUNGRY_FEED_STEP = 256  # or so many, for 3 ms, where no host has as many as it can take
RELEASE_STEP = 1024  # so many are taken up before those held back are let in, together
LANE_S = 0.25  # a domain's route and pools are looked up once for the addresses of so long
LANES_MAX = 10_000
ROOM_SHARE = 16  # of what may be open or unread must be free before more is taken up
HELD_KNOWN_S = 60.0  # for so long who is held back relies on the addresses that were known


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A verdict, and the place its address had among those asked for (from 0)."""

    place: int
    verdict: Verdict
    evidence: Evidence | None = None


class Answers:
    """The stream's reading end: an async iterator, for one reader."""

    def __init__(self, on_taken: Callable[[], None]) -> None:
        self.ready: deque[Answer] = deque()  # not taken yet
        self._ended = False
        self._awaited = False  # by who may be parked: to ask the lot itself is Python code
        self._arrived = trio.lowlevel.ParkingLot()
        self._on_taken = on_taken

    def __len__(self) -> int:
        return len(self.ready)

    def __aiter__(self) -> "Answers":
        return self

    async def __anext__(self) -> Answer:
        await self._wait()
        if not self.ready:
            raise StopAsyncIteration
        answer = self.ready.popleft()
        self._on_taken()
        return answer

    async def next_ready(self) -> list[Answer]:
        """All answers that are there, at least one; an empty list at the end."""
        await self._wait()
        ready = list(self.ready)
        self.ready.clear()
        self._on_taken()
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
        verdicts[answer.place] = answer.verdict
    return [verdict for verdict in verdicts if verdict is not None]


@dataclass(frozen=True, slots=True)
class Engine:
    """What the five layers need; opened by open_engine()."""

    settings: EngineSettings
    lists: Lists
    routes: Routes
    prober: Prober
    rng: random.Random
    watcher: Watcher = NOBODY


class _Lane(msgspec.Struct, eq=False):
    """What is known of a domain just now, for those of its addresses that come together."""

    answer: RouteAnswer
    until: float  # trio's clock
    exchanges: list[MailExchange]
    pools: list[Pool | None]  # of the first of them; None where its addresses aren't known


class _Errand:
    """One call of open_answers: what was taken up, is held back, is under way."""

    def __init__(
        self, engine: Engine, asker: str, nursery: trio.Nursery, *, patient: bool, explain: bool
    ) -> None:
        self.answers = Answers(self._look_for_room)
        self._engine = engine
        self._watcher = engine.watcher
        self._watched = engine.watcher is not NOBODY  # whom nothing need be told
        self._asker = asker
        self._nursery = nursery
        self._patient = patient
        self._explain = explain
        self._now = trio.lowlevel.current_clock().current_time
        self._open: dict[str, Inquiry] = {}  # by mailbox: the same one is asked once
        self._by_domain: dict[str, list[Inquiry]] = {}  # waiting for a route
        self._lanes: dict[str, _Lane] = {}
        self._orders: dict[str, list[MailExchange]] = {}
        self._held: dict[Pool, deque[Inquiry]] = {}  # until their host has a seat free
        self._together: dict[Pool, list[Question]] = {}  # to be asked in this very step
        self._due: dict[Pool, None] = {}  # where some are held that nobody has looked at yet
        self._releasing: set[Pool] = set()
        self._places = 0  # texts taken up and not answered
        self._room = trio.Event()
        self._stalled = False  # until there is room
        self._fed = False
        self._gone = False
        if patient:
            engine.prober.listen_for_room(self._on_room)
            nursery.start_soon(self.watch_rests)

    # -- taking up ---------------------------------------------------------------------------

    async def feed(self, texts: Iterable[str]) -> None:
        """Take up the texts as there is room for them; those of one step begin together."""
        ready, now, hungry = self.answers.ready, self._now(), False
        for place, text in enumerate(texts):
            if self._gone:
                return
            # _crowded(), said here once more: it is asked of each text.
            if (
                self._places >= OPEN_MAX
                or len(ready) >= UNREAD_MAX
                or len(self._by_domain) >= LOOK_UPS_MAX
            ):
                self._release_due()
                await self._wait_for_room()
                now = self._now()
            self._take_up(place, text, now)
            if place % FEED_STEP == FEED_STEP - 1:
                if not self._patient or place % RELEASE_STEP == RELEASE_STEP - 1:
                    self._release_due()
                    hungry = self._patient and not self._held
                if hungry and place % HUNGRY_FEED_STEP != HUNGRY_FEED_STEP - 1:
                    continue
                await trio.lowlevel.checkpoint()
                now = self._now()
        self._release_due()
        self._fed = True
        self._end_if_done()

    def _crowded(self) -> bool:
        return (
            self._places >= OPEN_MAX
            or len(self.answers) >= UNREAD_MAX
            or len(self._by_domain) >= LOOK_UPS_MAX
        )

    async def _wait_for_room(self) -> None:
        while self._crowded():
            self._room = trio.Event()
            self._stalled = True
            await self._room.wait()

    def _look_for_room(self) -> None:
        """Let the feeding go on once there is room for a few: for one it is not worth waking."""
        if (
            self._stalled
            and self._places <= OPEN_MAX - OPEN_MAX // ROOM_SHARE
            and len(self.answers) <= UNREAD_MAX - UNREAD_MAX // ROOM_SHARE
            and len(self._by_domain) < LOOK_UPS_MAX
        ):
            self._stalled = False
            self._room.set()

    def _end_if_done(self) -> None:
        if self._fed and not self._open:
            self.answers.end()

    def _take_up(self, place: int, text: str, now: float) -> None:
        self._places += 1
        if self._watched:
            now = self._now()  # who measures is told of each by itself
        inquiry = Inquiry(text, place, now)
        if self._explain:
            inquiry.notes = Notes()
        read_text(inquiry, self._engine.lists)
        if self._watched:
            self._watcher.text_read(now)
        if inquiry.address is None or inquiry.outcome is not None:
            self._tell(inquiry)
            return
        twin = self._open.get(inquiry.mailbox)
        if twin is not None:
            twin.twins = twin.twins or []
            twin.twins.append((place, text))
            return
        self._open[inquiry.mailbox] = inquiry
        domain = inquiry.address.domain
        lane = self._lanes.get(domain)
        if lane is None or lane.until < now:
            lane = self._open_lane(domain)
        if lane is None:
            self._await_route(inquiry, domain)
            return
        if self._watched:
            self._watcher.recalled("mx")
        if inquiry.notes is not None:
            inquiry.notes.cached.append("mx")
        self._routed(inquiry, lane, now)

    def _tell(self, inquiry: Inquiry) -> None:
        now = self._now()
        twins = inquiry.twins
        self._places -= 1
        if self._watched:
            assert inquiry.outcome is not None
            self._watcher.told(inquiry.outcome, inquiry.rule, 1 + len(twins or ()))
        evidence = None if inquiry.notes is None else inquiry.evidence()
        self.answers.put(Answer(inquiry.place, inquiry.verdict(inquiry.text, now), evidence))
        if twins:
            self._places -= len(twins)
            for place, text in twins:
                self.answers.put(Answer(place, inquiry.verdict(text, now), evidence))

    def _finish(self, inquiry: Inquiry) -> None:
        del self._open[inquiry.mailbox]
        self._tell(inquiry)
        if self._stalled:
            self._look_for_room()
        elif self._fed:
            self._end_if_done()

    # -- layer 3 -----------------------------------------------------------------------------

    def _await_route(self, inquiry: Inquiry, domain: str) -> None:
        if domain in self._by_domain:
            self._by_domain[domain].append(inquiry)
        else:
            self._by_domain[domain] = [inquiry]
            self._nursery.start_soon(self._look_up, domain)

    def _open_lane(self, domain: str) -> _Lane | None:
        """A lane from what is remembered; None where that does not do."""
        known = self._engine.routes.known(domain, patient=self._patient)
        if known is None or not self._knows_exchanges(known):
            return None
        if len(self._lanes) >= LANES_MAX:
            self._lanes.clear()
        lane = self._lanes[domain] = self._lane(known)
        return lane

    def _lane(self, answer: RouteAnswer) -> _Lane:
        exchanges = self._order(answer) if isinstance(answer, Route) else []
        firsts = exchanges[: FIRST_EXCHANGES if self._patient else 1]
        pools = [self._engine.prober.pool_of(each) for each in firsts]
        return _Lane(answer, self._now() + LANE_S, exchanges, pools)

    def _knows_exchanges(self, answer: RouteAnswer) -> bool:
        """Is all known that this asker needs before layer 4? A patient one needs the hosts."""
        if not self._patient or not isinstance(answer, Route):
            return True
        routes = self._engine.routes
        return all(routes.known_addresses(each.name, patient=True) for each in self._first(answer))

    def _first(self, route: Route) -> list[MailExchange]:
        return self._order(route)[:FIRST_EXCHANGES]

    async def _look_up(self, domain: str) -> None:
        routes = self._engine.routes
        answer = await routes.find(domain, self._asker, patient=self._patient)
        if self._patient and isinstance(answer, Route):
            for exchange in self._first(answer):
                await routes.addresses(exchange.name, self._asker, patient=True)
        if self._gone:
            return
        lane, now = self._lane(answer), self._now()
        for inquiry in self._by_domain.pop(domain):
            if inquiry.notes is not None:
                inquiry.notes.looked_up = True
            self._routed(inquiry, lane, now)
        self._release_due()
        self._look_for_room()

    def _routed(self, inquiry: Inquiry, lane: _Lane, now: float) -> None:
        read_route(inquiry, lane.answer)
        if self._watched:
            self._watcher.route_read(inquiry.began)
        if inquiry.outcome is not None:
            self._finish(inquiry)
        elif not lane.exchanges:
            self._ask(inquiry)
        elif self._patient:
            self._hold(inquiry, lane, now)
        elif (pool := lane.pools[0]) is None:
            self._ask(inquiry)
        else:
            inquiry.exchanges = lane.exchanges
            self._together.setdefault(pool, []).append(self._question(inquiry))

    def _order(self, route: Route) -> list[MailExchange]:
        """The route's exchanges, equal ones shuffled; the same for the domain's next address."""
        order = self._orders.get(route.domain)
        if order is None:
            if len(self._orders) >= ORDERS_MAX:
                self._orders.clear()
            order = self._orders[route.domain] = route.in_order(self._engine.rng)
        return order

    # -- layer 4 -----------------------------------------------------------------------------

    def _ask(self, inquiry: Inquiry) -> None:
        self._engine.prober.ask(self._question(inquiry))

    def _question(self, inquiry: Inquiry, behind: int = 0) -> Question:
        address, route = inquiry.address, inquiry.route
        assert address is not None
        assert route is not None
        question = inquiry.question = Question(
            inquiry.mailbox,
            address.domain,
            self._asker,
            inquiry.exchanges or self._order(route),
            self._settled,
            inquiry,
            not address.local.isascii(),
            inquiry.notes,
            behind,
        )
        return question

    def _settled(self, question: Question) -> None:
        """Called by whoever settles it, for whom a fault of this stream must be nothing."""
        try:
            inquiry: Inquiry = question.owner
            inquiry.question = None  # they need not wait for the collector of cycles
            if self._watched:
                self._watcher.question_settled(question.deadline - self._engine.settings.probe_s)
            inquiry.outcome, inquiry.rule = question.outcome, question.rule
            self._finish(inquiry)
        except Exception as error:
            self._nursery.start_soon(_fail, error)

    # -- patience ----------------------------------------------------------------------------

    def _hold(self, inquiry: Inquiry, lane: _Lane, now: float) -> None:
        """Hold the inquiry back at the first of its exchanges that is worth asking now."""
        pools, exchanges = lane.pools, lane.exchanges
        pool = pools[0]
        if pool is None or (pool.rest.strikes and pool.worth_waiting_for()):
            place = next(
                (n for n, each in enumerate(pools) if each and not each.worth_waiting_for()), 0
            )
            pool = pools[place]
            # One that can't be reached just now is left for the end.
            exchanges = [*exchanges[place:], *exchanges[:place]]
        inquiry.exchanges = exchanges
        if pool is None:  # its addresses are unknown or not for us: that is soon told
            self._ask(inquiry)
            return
        if inquiry.held_since is None:
            inquiry.held_since = now
        held = self._held.get(pool)
        if held is None:
            held = self._held[pool] = deque()
        held.append(inquiry)
        self._due[pool] = None

    def _release_due(self) -> None:
        """Look at the hosts at which others have been held since: together, for one write.

        An impatient asker's questions, whose clocks are to run now, are asked host by host.
        """
        if self._together:
            together, self._together = self._together, {}
            for pool, questions in together.items():
                self._engine.prober.ask_at(pool, questions)
        while self._due:
            self._release(self._due.popitem()[0])

    def _release(self, pool: Pool) -> None:
        """Ask as many of those held back as the host and the desk have room for."""
        held = self._held.get(pool)
        if held is None or (room := pool.room(len(held))) <= 0 or pool in self._releasing:
            return
        prober = self._engine.prober
        self._releasing.add(pool)
        while held and (room := min(room, prober.room)) > 0:
            now, present = self._now(), pool.present
            let_in: list[Question] = []
            for _ in range(min(room, len(held))):
                inquiry = held.popleft()
                assert inquiry.held_since is not None
                waited_s = now - inquiry.held_since
                inquiry.began += waited_s
                question = self._question(inquiry, len(held))
                if waited_s < HELD_KNOWN_S:
                    let_in.append(question)
                else:
                    prober.ask(question)  # which looks its exchange up again
                    break
            prober.ask_at(pool, let_in)
            if not held or pool.present == present + room:
                break  # as full as may be; mostly so, unless some were answered at once
            room = pool.room(len(held))
        self._releasing.discard(pool)
        if not held:
            self._held.pop(pool, None)

    def _on_room(self, pool: Pool | None) -> None:
        """Room was made at this host; where none is named, at a desk that was full."""
        if pool is not None:
            self._release(pool)
            return
        for other in list(self._held):
            if self._engine.prober.full:
                break
            self._release(other)

    async def watch_rests(self) -> None:
        """Look now and then at those held back: a rest ends without anybody's doing."""
        while True:
            await trio.sleep(REST_LOOK_S)
            for pool in list(self._held):
                if pool.worth_waiting_for():
                    self._hold_elsewhere(pool)
                else:
                    self._release(pool)

    def _hold_elsewhere(self, pool: Pool) -> None:
        """While this host rests, those who have another exchange go there."""
        held, now = self._held.pop(pool, deque()), self._now()
        for inquiry in held:
            assert inquiry.route is not None
            self._hold(inquiry, self._lane(inquiry.route), now)
        self._release_due()

    def leave(self) -> None:
        """Nothing that is unfinished is wanted any more."""
        self._gone = True
        prober = self._engine.prober
        prober.stop_listening(self._on_room)
        self._held.clear()
        prober.abandon([each.question for each in self._open.values() if each.question is not None])


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
    asker: str,
    patient: bool = False,
    explain: bool = False,
) -> AsyncIterator[Answers]:
    """Verify each text; the block's value gives an Answer for every one, as they are found.

    `asker` names the account for fairness. `patient`: the 3000 ms of an address
    begin when it is admitted, not when it is taken from `texts`, which is read
    as there is room. `explain` adds evidence. Leaving the block cancels the rest.
    """
    try:
        async with trio.open_nursery() as nursery:
            errand = _Errand(engine, asker, nursery, patient=patient, explain=explain)
            nursery.start_soon(errand.feed, texts)
            try:
                yield errand.answers
            finally:
                errand.leave()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise lone(group) from None


async def _fail(error: Exception) -> None:
    raise error


class Known(msgspec.Struct, frozen=True):
    """Answers that were known at once. The watcher hears of them when they are given."""

    answers: list[Answer]
    inquiries: list[Inquiry]

    def tell(self, watcher: Watcher) -> None:
        """They are given: the watcher is told as if they had come by the stream."""
        for inquiry in self.inquiries:
            assert inquiry.outcome is not None
            watcher.text_read(inquiry.began)
            if inquiry.asks_for_route:
                watcher.recalled("mx")
                watcher.route_read(inquiry.began)
            watcher.told(inquiry.outcome, inquiry.rule, 1)


def known_answers(engine: Engine, texts: Sequence[str], *, explain: bool = False) -> Known | None:
    """The answers to all these texts, in their order, if nobody need be asked for any of them.

    Bad syntax, a throwaway, and what a remembered route decides. By the same steps as in
    the stream; None from the first text on that would have to wait.
    """
    now = trio.current_time()
    answers: list[Answer] = []
    inquiries: list[Inquiry] = []
    for place, text in enumerate(texts):
        inquiry = Inquiry(text, place, now)
        if explain:
            inquiry.notes = Notes()
        read_text(inquiry, engine.lists)
        if inquiry.asks_for_route:
            _read_known_route(inquiry, engine.routes)
        if inquiry.outcome is None:
            return None
        inquiries.append(inquiry)
    told_at = trio.current_time()
    for inquiry in inquiries:
        verdict = inquiry.verdict(inquiry.text, told_at)
        answers.append(Answer(inquiry.place, verdict, inquiry.evidence()))
    return Known(answers, inquiries)


def _read_known_route(inquiry: Inquiry, routes: Routes) -> None:
    assert inquiry.address is not None
    route = routes.known(inquiry.address.domain)
    if route is not None:
        if inquiry.notes is not None:
            inquiry.notes.cached.append("mx")
        read_route(inquiry, route)


_lists = cache(load_lists)
_rules = cache(load_rules)
_sites = cache(load_sites)


def load_rules_and_lists() -> None:
    """Load now what every engine of this process shares; a process forked afterwards has it too."""
    len(_lists().disposable)  # makes its set
    _sites()
    _rules().compile_all()


async def _compile(rules: Rules) -> None:
    """Compile the rules' patterns while the first answers are under way.

    One at a time, so that nothing waits for more than that, and all of them long
    before the first verdict is due.
    """
    await trio.sleep(COMPILE_AFTER_S)
    for _ in rules.compile_rest():
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
    watcher: Watcher = NOBODY,
    seats: Seats | None = None,
) -> AsyncIterator[Engine]:
    """An engine with its caches and connections; leaving it says QUIT on each of them.

    `transport`, `dial`, `rng` and `mint` (the random address's local part) are
    the world and chance; left out, they are the real ones. `watcher` is told what
    the engine does. `seats` says how many connections it may hold to an address, where
    it shares the settings' limit with others.
    """
    rng = rng or random.Random()
    lists, rules, sites = _lists(), _rules(), _sites()
    try:
        async with (
            open_routes(settings, transport=transport, rng=rng, watcher=watcher) as routes,
            open_prober(
                settings,
                routes=routes,
                dial=dial or Dialer(settings.proxies, allow_private=settings.allow_private),
                rules=rules,
                sites=sites,
                mint=mint,
                watcher=watcher,
                seats=seats,
            ) as prober,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(contained, _compile, rules)
            yield Engine(settings, lists, routes, prober, rng, watcher)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise lone(group) from None
