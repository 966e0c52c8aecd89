"""Verifies many addresses at once: a stream of answers in completion order.

All clients read from this stream. Work that several addresses share (a look-up, a
conversation, the same mailbox) is done once. A list (`deferred_start`) keeps an address in
the backlog until its mail host has a connection free for it; the deadline of any
other address starts at once. Memory is bounded however many addresses there are. Leaving the
block cancels what is unfinished.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sized
from contextlib import asynccontextmanager
from typing import TypeGuard

import msgspec
import trio

from ..background import sole_exception
from ..dns.messages import MailExchange, Route, RouteAnswer
from ..observer import NO_OBSERVER
from ..pauses import PAUSED_RULE
from ..smtp.egress.choice import EgressChoice
from ..smtp.patience import overall_s
from ..smtp.pool.pool import Pool
from ..smtp.probe import Probe, ProbeNotes
from ..verdict import Outcome
from .answers import Answer, Answers
from .engine import Engine
from .pipeline import (
    NO_BOUNCES,
    Verification,
    is_paused,
    read_pauses,
    read_route,
    read_text,
)
from .submission_turns import SubmissionTurn

OPEN_MAX = 20_000  # addresses submitted and not answered; enough to find work for every host
UNREAD_MAX = 1_000  # answers that the reader has not taken
LOOKUPS_MAX = 200  # route look-ups at a time: as many as one resolver is sent at once
ORDERS_MAX = 10_000  # domains whose shuffled exchanges are kept
FIRST_EXCHANGES = 2  # exchanges of a route that a list may wait for
BACKOFF_CHECK_S = 0.5  # between two checks of the hosts that are in back-off
SUBMIT_AT_ONCE_MAX = 8  # texts that a stream submits without waiting for its turn
SUBMIT_STEP = 64  # addresses submitted between two checkpoints,
HUNGRY_SUBMIT_STEP = 256  # or this many (3 ms of work) while every host could take more
RELEASE_STEP = 1024  # after this many, the backlog they made is released together
SNAPSHOT_S = 0.25  # addresses of a domain that come within this time share one look at its pools
SNAPSHOTS_MAX = 10_000
ROOM_SHARE = 16  # submission resumes when a sixteenth of OPEN_MAX or UNREAD_MAX is free
BACKLOG_KNOWN_S = 60.0  # after this time in the backlog, a host's addresses are looked up again


class _DomainSnapshot(msgspec.Struct, eq=False):
    """A domain's route and pools at one moment, shared by addresses submitted together."""

    answer: RouteAnswer
    until: float  # on trio's clock
    exchanges: list[MailExchange]
    pools: list[Pool | None]  # of the first exchanges; None if the addresses are not known


class _Scheduler:
    """One call of open_answers: its verifications, from submission to answer."""

    def __init__(
        self,
        engine: Engine,
        account: str,
        nursery: trio.Nursery,
        *,
        deferred_start: bool,
        explain: bool,
        patient: bool,
        asks_hosts: bool,
        bounced: Mapping[str, str],
        patience_s: float,
    ) -> None:
        self.answers = Answers(self._check_capacity)
        self._engine = engine
        self._observer = engine.observer
        self._observed = engine.observer is not NO_OBSERVER
        self._operators = engine.probing.operators
        relief = engine.probing.relief
        self._choice = None if relief is None else relief.choice
        self._account = account
        self._nursery = nursery
        self._deferred = deferred_start
        self._explain = explain
        self._patient = patient
        self._patience_until = trio.current_time() + patience_s
        self._bounced = bounced
        self._asks_hosts = asks_hosts and engine.settings.asks_hosts
        self._now = trio.lowlevel.current_clock().current_time
        self._open: dict[str, Verification] = {}  # by mailbox, which is probed once
        self._by_domain: dict[str, list[Verification]] = {}  # those that wait for a route
        self._snapshots: dict[str, _DomainSnapshot] = {}
        self._orders: dict[str, list[MailExchange]] = {}
        self._backlog: dict[Pool, deque[Verification]] = {}  # until the host has capacity
        self._batches: dict[Pool, list[Probe]] = {}  # submitted together at the end of this step
        self._due: dict[Pool, None] = {}  # pools whose backlog has grown since the last release
        self._held = 0  # verifications in the backlog
        self._positions = 0  # texts submitted and not answered
        self._room = trio.Event()
        self._stalled = False  # submission waits for `_room`
        self._waits_for_place = False  # a host had room, and there was no place
        self._all_submitted = False
        self._closed = False
        self._turn = engine.probing.turn
        if deferred_start:
            self._turn.subscribe(self._on_capacity)
            nursery.start_soon(self.watch_backoffs)

    # -- submission --------------------------------------------------------------------------

    async def submit_all(self, texts: Iterable[str]) -> None:
        """Submit the texts as capacity allows. Those of one step begin together."""
        turns = self._engine.submission_turns
        if isinstance(texts, Sized) and len(texts) <= SUBMIT_AT_ONCE_MAX:
            turns.note_active(self._account)
            await self._submit(texts, None)
            self._end_submission()
            return
        with turns.of(self._account) as turn:
            await turn.begin()
            await self._submit(texts, turn)
            self._end_submission()
            await trio.lowlevel.checkpoint()  # before another stream has its turn

    def _end_submission(self) -> None:
        self._release_due()
        self._all_submitted = True
        if not self._open:
            self.answers.end()
        if self._held:
            self._check_end_of_list()
        self._turn.run()

    async def _submit(self, texts: Iterable[str], turn: SubmissionTurn | None) -> None:
        ready, now, hungry = self.answers.ready, self._now(), False
        for position, text in enumerate(texts):
            if self._closed:
                return
            # _at_capacity(), inlined because it runs for each text.
            if (
                self._positions >= OPEN_MAX
                or len(ready) >= UNREAD_MAX
                or len(self._by_domain) >= LOOKUPS_MAX
            ):
                self._release_due()
                self._turn.run()
                if turn is not None:
                    turn.end()
                await self._wait_for_room()
                if turn is not None:
                    await turn.begin()
                now = self._now()
            self._admit(position, text, now)
            if position % SUBMIT_STEP == SUBMIT_STEP - 1:
                if not self._deferred or position % RELEASE_STEP == RELEASE_STEP - 1:
                    self._release_due()
                    hungry = self._deferred and not self._backlog
                self._turn.run()
                if hungry and position % HUNGRY_SUBMIT_STEP != HUNGRY_SUBMIT_STEP - 1:
                    continue
                await trio.lowlevel.checkpoint()
                if turn is not None:
                    turn.end()
                    await turn.begin()
                now = self._now()

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
        """Resume submission once there is room for several: a wake-up for one does not pay."""
        if (
            self._stalled
            and self._positions <= OPEN_MAX - OPEN_MAX // ROOM_SHARE
            and len(self.answers) <= UNREAD_MAX - UNREAD_MAX // ROOM_SHARE
            and len(self._by_domain) < LOOKUPS_MAX
        ):
            self._stalled = False
            self._room.set()

    def _admit(self, position: int, text: str, now: float) -> None:
        self._positions += 1
        if self._observed:
            now = self._now()  # the observer measures each address by itself
        verification = Verification(text, position, now)
        if self._explain:
            verification.notes = ProbeNotes()
        read_text(verification, self._engine.lists, self._bounced)
        if self._observed:
            self._observer.text_read(now)
        if verification.address is None or verification.outcome is not None:
            self._emit(verification)
            return
        original = self._open.get(verification.mailbox)
        if original is not None:
            original.duplicates = original.duplicates or []
            original.duplicates.append((position, text))
            return
        self._open[verification.mailbox] = verification
        domain = verification.address.domain
        snapshot = self._snapshots.get(domain)
        if snapshot is None or snapshot.until < now:
            snapshot = self._open_snapshot(domain)
        if snapshot is None:
            self._await_route(verification, domain)
            return
        if self._observed:
            self._observer.recalled("mx")
        if verification.notes is not None:
            verification.notes.cached.append("mx")
        self._routed(verification, snapshot, now)

    def _emit(self, verification: Verification) -> None:
        now = self._now()
        duplicates = verification.duplicates
        self._positions -= 1
        if self._observed:
            assert verification.outcome is not None
            self._observer.answer_emitted(
                verification.outcome,
                verification.rule,
                1 + len(duplicates or ()),
                self._operators.id_of(verification.latest_host),
            )
        evidence = None if verification.notes is None else verification.evidence()
        cause, verdict = verification.cause, verification.verdict(verification.text, now)
        wait = verification.retry_s, verification.takes
        self.answers.put(Answer(verification.position, verdict, evidence, cause, *wait))
        if duplicates:
            self._positions -= len(duplicates)
            for position, text in duplicates:
                verdict = verification.verdict(text, now)
                self.answers.put(Answer(position, verdict, evidence, cause, *wait))

    def _finish(self, verification: Verification) -> None:
        del self._open[verification.mailbox]
        self._emit(verification)
        if self._stalled:
            self._check_capacity()
        elif self._all_submitted:
            if not self._open:
                self.answers.end()
            if self._held:
                self._check_end_of_list()

    # -- layer 3 -----------------------------------------------------------------------------

    def _await_route(self, verification: Verification, domain: str) -> None:
        if domain in self._by_domain:
            self._by_domain[domain].append(verification)
        else:
            self._by_domain[domain] = [verification]
            self._nursery.start_soon(self._lookup, domain)

    def _open_snapshot(self, domain: str) -> _DomainSnapshot | None:
        """A snapshot made from the caches alone; None where a look-up is needed."""
        known = self._engine.routes.cached_route(domain, deferred_start=self._deferred)
        if known is None or (self._deferred and not self._has_exchanges(known)):
            return None
        if len(self._snapshots) >= SNAPSHOTS_MAX:
            self._snapshots.clear()
        snapshot = self._snapshots[domain] = self._snapshot(known)
        return snapshot

    def _snapshot(self, answer: RouteAnswer) -> _DomainSnapshot:
        exchanges = self._order(answer) if self._leads_to_hosts(answer) else []
        pools: list[Pool | None] = []
        if exchanges and isinstance(answer, Route):
            count = FIRST_EXCHANGES if self._deferred else 1
            pools = self._engine.probing.pools_of(
                answer.domain, exchanges, count, patient=self._patient
            )
        return _DomainSnapshot(answer, self._now() + SNAPSHOT_S, exchanges, pools)

    def _has_exchanges(self, answer: RouteAnswer) -> bool:
        """Are the addresses cached that layer 4 needs first? Only a list waits for them."""
        if not self._leads_to_hosts(answer):
            return True
        routes = self._engine.routes
        return all(
            routes.cached_addresses(exchange.name, deferred_start=True)
            for exchange in self._first(answer)
        )

    def _leads_to_hosts(self, answer: RouteAnswer) -> TypeGuard[Route]:
        return self._asks_hosts and isinstance(answer, Route)

    def _first(self, route: Route) -> list[MailExchange]:
        return self._order(route)[:FIRST_EXCHANGES]

    async def _lookup(self, domain: str) -> None:
        routes = self._engine.routes
        answer = await routes.find(domain, self._account, deferred_start=self._deferred)
        if self._deferred and self._leads_to_hosts(answer):
            for exchange in self._first(answer):
                await routes.addresses(exchange.name, self._account, deferred_start=True)
        if self._closed:
            return
        snapshot, now = self._snapshot(answer), self._now()
        for verification in self._by_domain.pop(domain):
            if verification.notes is not None:
                verification.notes.lookup_took = True
            self._routed(verification, snapshot, now)
        self._release_due()
        self._check_capacity()
        self._turn.run()

    def _routed(self, verification: Verification, snapshot: _DomainSnapshot, now: float) -> None:
        read_route(verification, snapshot.answer, self._engine.lists, asks_hosts=self._asks_hosts)
        read_pauses(verification, self._engine.pauses)
        if self._observed:
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
            self._batches.setdefault(pool, []).append(self._new_probe(verification))

    def _order(self, route: Route) -> list[MailExchange]:
        """The route's exchanges, equal ones shuffled; the same order for all addresses of a domain."""
        order = self._orders.get(route.domain)
        if order is None:
            if len(self._orders) >= ORDERS_MAX:
                self._orders.clear()
            order = self._orders[route.domain] = route.in_order(self._engine.rng)
        return order

    # -- layer 4 -----------------------------------------------------------------------------

    def _submit_probe(self, verification: Verification) -> None:
        self._engine.probing.submit(self._new_probe(verification))

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
            self._deferred,
            self._patient,
            self._patience_left_s() if self._deferred else 0.0,
        )
        return probe

    def _patience_left_s(self) -> float:
        return max(0.0, self._patience_until - self._now())

    def _settled(self, probe: Probe) -> None:
        """Called in a turn. An exception here must end this stream, not the others."""
        try:
            verification: Verification = probe.owner
            if self._observed:
                layer_s = overall_s(self._engine.settings, probe.patient)
                self._observer.probe_settled(probe.deadline - layer_s)
            verification.settled_by(probe)
            verification.began += probe.stopped_s
            self._finish(verification)
            verification.probe = None  # breaks the reference cycle
        except Exception as error:
            self._nursery.start_soon(_fail, error)

    # -- backlog -----------------------------------------------------------------------------

    def _defer(self, verification: Verification, snapshot: _DomainSnapshot, now: float) -> None:
        """Put the verification in the backlog of its first exchange that can be probed now."""
        pools, exchanges = snapshot.pools, snapshot.exchanges
        pool = pools[0]
        if pool is None or (pool.rest.worth_waiting_for(now)):
            first = next(
                (
                    n
                    for n, each in enumerate(pools)
                    if each and not each.rest.worth_waiting_for(now)
                ),
                0,
            )
            pool = pools[first]
            # Exchanges that can't be reached just now are tried last.
            exchanges = [*exchanges[first:], *exchanges[:first]]
        verification.exchanges = exchanges
        if pool is None:  # its addresses are unknown or not allowed: answered without a probe
            self._submit_probe(verification)
            return
        if verification.deferred_since is None:
            verification.deferred_since = now
        backlog = self._backlog.get(pool)
        if backlog is None:
            backlog = self._backlog[pool] = deque()
        backlog.append(verification)
        self._held += 1
        self._due[pool] = None

    def _release_due(self) -> None:
        """Submit what has gathered since the last call, host by host, so that it shares writes."""
        if self._batches:
            batches, self._batches = self._batches, {}
            for pool, probes in batches.items():
                self._engine.probing.submit_to(pool, probes)
        while self._due:
            self._release(self._due.popitem()[0])

    def _release(self, pool: Pool, *, at_end: bool = False) -> None:
        """Submit as much of the pool's backlog as the host and the places have room for."""
        backlog = self._backlog.get(pool)
        if backlog is None or (room := self._room_at(pool, backlog, at_end=at_end)) <= 0:
            return
        withdrawn = self._release_some(pool, backlog, room, at_end=at_end)
        if not backlog:
            self._backlog.pop(pool, None)
        if withdrawn:
            self._defer_anew(withdrawn)
            self._release_due()

    def _release_some(
        self, pool: Pool, backlog: deque[Verification], room: int, *, at_end: bool
    ) -> list[Verification]:
        """Submit of the backlog what there is room for; return those that another egress asks."""
        probing, choice = self._engine.probing, self._choice
        withdrawn: list[Verification] = []
        elsewhere: dict[str, bool] = {}  # by domain: does another egress ask for it by now?
        while backlog:
            places = self._turn.room_for(self._account, room, patient=self._patient)
            if places < room:
                self._waits_for_place = True
                room = places
            if room <= 0:
                break
            now, present, is_begun = self._now(), pool.present, False
            released: list[Probe] = []
            for _ in range(min(room, len(backlog))):
                verification = backlog.popleft()
                self._held -= 1
                if choice is not None:
                    domain = verification.domain
                    if domain not in elsewhere:
                        elsewhere[domain] = self._is_elsewhere(choice, pool, verification)
                    if elsewhere[domain]:
                        withdrawn.append(verification)
                        continue
                assert verification.deferred_since is not None
                waited_s = now - verification.deferred_since
                verification.began += waited_s
                probe, is_begun = self._new_probe(verification, len(backlog)), True
                if waited_s < BACKLOG_KNOWN_S:
                    released.append(probe)
                else:
                    probing.submit(probe)  # looks the exchange up again
                    break
            probing.submit_to(pool, released)
            if not backlog or pool.present == present + room:
                break  # the pool is full; only probes that were settled at once leave room
            if (
                choice is not None
                and is_begun
                and choice.awaits_addresses(choice.by_name[pool.egress.name])
            ):
                break  # those that began wait before its queue
            room = self._room_at(pool, backlog, at_end=at_end)
        return withdrawn

    def _room_at(self, pool: Pool, backlog: Sized, *, at_end: bool) -> int:
        return pool.room(len(backlog), self._account, self._patience_left_s(), at_end=at_end)

    def _on_capacity(self, pool: Pool | None) -> None:
        """Capacity was freed for `pool`; None: a place. Called in a turn."""
        if pool is not None:
            self._release(pool)
            return
        if not self._waits_for_place:
            return
        self._waits_for_place = False
        for other in list(self._backlog):
            self._release(other)
            if self._waits_for_place:
                break

    async def watch_backoffs(self) -> None:
        """Check the backlog now and then: the end of a back-off causes no event."""
        while True:
            await trio.sleep(BACKOFF_CHECK_S)
            for pool in list(self._backlog):
                if pool.rest.worth_waiting_for(self._now()):
                    self._defer_elsewhere(pool)
                else:
                    self._release(pool)
            self._check_end_of_list()
            self._turn.run()

    def _defer_elsewhere(self, pool: Pool) -> None:
        """While this host is in back-off, move its backlog to other exchanges where there are any."""
        backlog = self._backlog.pop(pool, deque())
        self._held -= len(backlog)
        self._defer_anew(backlog)
        self._release_due()

    def _is_elsewhere(self, choice: EgressChoice, pool: Pool, verification: Verification) -> bool:
        """Is another egress than the pool's to ask for the domain by now?"""
        if not choice.is_withdrawn(pool, verification.domain):
            return False
        assert verification.route is not None
        return pool not in self._snapshot(verification.route).pools

    def _defer_anew(self, verifications: Iterable[Verification]) -> None:
        """Put them in the backlog of the host, and the egress, that can be probed now."""
        now, snapshots = self._now(), dict[str, _DomainSnapshot]()
        for verification in verifications:
            assert verification.route is not None
            domain = verification.route.domain
            if domain not in snapshots:
                snapshots[domain] = self._snapshot(verification.route)
            self._defer(verification, snapshots[domain], now)

    def _check_end_of_list(self) -> None:
        """If only hosts that failed a moment ago are left, try them at once a second time, and end.

        Waiting for them is worth its time only while there is something else to do.
        """
        if not self._all_submitted or len(self._open) != self._held:
            return
        now = self._now()
        if not all(pool.rest.worth_waiting_for(now) for pool in self._backlog):
            return
        for pool in list(self._backlog):
            pool.rest.retry_at_once(now)
            self._release(pool, at_end=True)

    # -- pauses ------------------------------------------------------------------------------

    def pauses_changed(self) -> None:
        if self._engine.pauses.any and self._open:
            self._nursery.start_soon(self._answer_paused)

    async def _answer_paused(self) -> None:
        """Answer what is paused by now and under way, in steps: there may be 20,000 of it."""
        pauses = self._engine.pauses
        held = self._remove_paused_from_backlog()
        for number, verification in enumerate([*held, *self._open.values()]):
            if number % SUBMIT_STEP == SUBMIT_STEP - 1:
                await trio.lowlevel.checkpoint()
            if self._closed:
                return
            if verification.probe is not None:
                probe = verification.probe.latest
                if is_paused(verification, pauses):
                    self._engine.probing.settle(probe, Outcome.PAUSED, PAUSED_RULE)
                    self._turn.run()
            elif number < len(held):
                verification.decide(Outcome.PAUSED, PAUSED_RULE)
                self._finish(verification)

    def _remove_paused_from_backlog(self) -> list[Verification]:
        pauses, taken = self._engine.pauses, list[Verification]()
        for pool, backlog in list(self._backlog.items()):
            paused = [each for each in backlog if is_paused(each, pauses)]
            if not paused:
                continue
            taken += paused
            gone = set(map(id, paused))
            kept = deque(each for each in backlog if id(each) not in gone)
            self._backlog[pool] = kept
            if not kept:
                del self._backlog[pool]
        self._held -= len(taken)
        return taken

    def close(self) -> None:
        """Cancel what is unfinished."""
        self._closed = True
        probing = self._engine.probing
        self._turn.unsubscribe(self._on_capacity)
        self._backlog.clear()
        probing.abandon(
            [verification.probe for verification in self._open.values() if verification.probe]
        )


@asynccontextmanager
async def open_answers(
    engine: Engine,
    texts: Iterable[str],
    *,
    account: str,
    deferred_start: bool = False,
    explain: bool = False,
    patient: bool = False,
    asks_hosts: bool = True,
    bounced: Mapping[str, str] = NO_BOUNCES,
    patience_s: float = 0.0,
) -> AsyncIterator[Answers]:
    """Verify each text; the block's value is a stream with one Answer for each.

    The mail hosts and resolvers are shared fairly by `account`. `texts` is read as
    capacity allows; what it raises is raised here. With `deferred_start`, the 3000 ms
    of an address begin when its host has capacity for it, not when the text is read.
    `explain` adds evidence. `patient` is for a later pass: a host that is not known to be
    quick has 10 s for each reply and 60 s in all, on few connections.
    Without `asks_hosts` no mail host is asked. `bounced` has mailboxes, in lower case, that
    mail came back from, with how that is known: they are not asked about. `patience_s`
    is how long a list waits for what mail hosts take: what a host does not take now is answered
    with the seconds after which it may be asked again (`Answer.retry_s`), and the host is not
    pressed to take more as long as the patience allows for it. Leaving the block cancels what
    is unfinished.
    """
    try:
        async with trio.open_nursery() as nursery:
            scheduler = _Scheduler(
                engine,
                account,
                nursery,
                deferred_start=deferred_start,
                explain=explain,
                patient=patient,
                asks_hosts=asks_hosts,
                bounced=bounced,
                patience_s=patience_s,
            )
            nursery.start_soon(scheduler.submit_all, texts)
            try:
                with engine.pauses.notifying(scheduler.pauses_changed):
                    yield scheduler.answers
            finally:
                scheduler.close()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise sole_exception(group) from None


async def _fail(error: Exception) -> None:
    raise error
