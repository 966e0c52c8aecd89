"""Verifies many addresses at once: a stream of answers in completion order.

All clients read from this stream. Work that several addresses share (a look-up, a
conversation, the same mailbox) is done once. A list (`deferred_start`) keeps an address in
the backlog until its mail host has a connection free for it; the deadline of any
other address starts at once. Memory is bounded however many addresses there are. Leaving the
block cancels what is unfinished.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sized
from contextlib import asynccontextmanager

import trio

from ..background import sole_exception
from ..observer import NO_OBSERVER
from ..pauses import PAUSED_RULE
from ..smtp.host.host import Host
from ..smtp.patience import overall_s
from ..smtp.probe import Probe, ProbeNotes, ProbeTarget
from ..verdict import Outcome
from .answers import Answer, Answers
from .backlog import Backlog
from .engine import Engine
from .pipeline import (
    NO_BOUNCES,
    DomainSnapshot,
    StreamDomains,
    StreamOptions,
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
BACKOFF_CHECK_S = 0.5  # between two checks of the hosts that are in back-off
SUBMIT_AT_ONCE_MAX = 8  # texts that a stream submits without waiting for its turn
SUBMIT_STEP = 64  # addresses submitted between two checkpoints,
HUNGRY_SUBMIT_STEP = 256  # or this many (3 ms of work) while every host could take more
RELEASE_STEP = 1024  # after this many, the backlog they made is released together
ROOM_SHARE = 16  # submission resumes when a sixteenth of OPEN_MAX or UNREAD_MAX is free


class _Room:
    """What one stream has under way, and whether there is room for more: submission waits for it.

    `lookups` are the domains that are looked up.
    """

    def __init__(self, lookups: Sized) -> None:
        self.answers = Answers(self.check)
        self.is_awaited = False
        self._lookups = lookups
        self._submitted = 0  # texts
        self._freed = trio.Event()

    @property
    def is_full(self) -> bool:
        return (
            self._submitted - self.answers.count >= OPEN_MAX
            or len(self.answers.ready) >= UNREAD_MAX
            or len(self._lookups) >= LOOKUPS_MAX
        )

    async def wait(self) -> None:
        while self.is_full:
            self._freed = trio.Event()
            self.is_awaited = True
            await self._freed.wait()

    def enter(self) -> None:
        """A text is submitted."""
        self._submitted += 1

    def check(self) -> None:
        """Resume submission once there is room for several: a wake-up for one does not pay."""
        if (
            self.is_awaited
            and self._submitted - self.answers.count <= OPEN_MAX - OPEN_MAX // ROOM_SHARE
            and len(self.answers.ready) <= UNREAD_MAX - UNREAD_MAX // ROOM_SHARE
            and len(self._lookups) < LOOKUPS_MAX
        ):
            self.is_awaited = False
            self._freed.set()


class _Scheduler:
    """One call of open_answers: its verifications, from submission to answer."""

    def __init__(self, engine: Engine, options: StreamOptions, nursery: trio.Nursery) -> None:
        self._engine = engine
        self._options = options
        self._nursery = nursery
        self._observed = engine.observer is not NO_OBSERVER
        self._now = trio.lowlevel.current_clock().current_time
        self._turn = engine.probing.turn
        self._open: dict[str, Verification] = {}  # by mailbox, which is probed once
        self._by_domain: dict[str, list[Verification]] = {}  # those that wait for a route
        self._room = _Room(self._by_domain)
        self.answers = self._room.answers
        self._domains = StreamDomains(engine, options)
        self._batches: dict[Host, list[Probe]] = {}  # submitted together at the end of this step
        self._all_submitted = False
        self._closed = False
        self._backlog: Backlog | None = None  # of a list
        if options.deferred_start:
            self._backlog = Backlog(engine, options, self._domains, self._new_probe)
            self._turn.subscribe(self._backlog.on_capacity)
            nursery.start_soon(self._watch_backoffs, self._backlog)

    # -- submission --------------------------------------------------------------------------

    async def submit_all(self, texts: Iterable[str]) -> None:
        """Submit the texts as capacity allows. Those of one step begin together."""
        turns, account = self._engine.submission_turns, self._options.account
        if isinstance(texts, Sized) and len(texts) <= SUBMIT_AT_ONCE_MAX:
            turns.note_active(account)
            await self._submit(texts, None)
            self._end_submission()
            return
        with turns.of(account) as turn:
            await turn.begin()
            await self._submit(texts, turn)
            self._end_submission()
            await trio.lowlevel.checkpoint()  # before another stream has its turn

    def _end_submission(self) -> None:
        self._release_due()
        self._all_submitted = True
        self._check_end()
        self._turn.run()

    async def _submit(self, texts: Iterable[str], turn: SubmissionTurn | None) -> None:
        room, backlog, now, hungry = self._room, self._backlog, self._now(), False
        for position, text in enumerate(texts):
            if self._closed:
                return
            if room.is_full:
                self._release_due()
                self._turn.run()
                if turn is not None:
                    turn.end()
                await room.wait()
                if turn is not None:
                    await turn.begin()
                now = self._now()
            self._admit(position, text, now)
            if position % SUBMIT_STEP == SUBMIT_STEP - 1:
                if backlog is None or position % RELEASE_STEP == RELEASE_STEP - 1:
                    self._release_due()
                    hungry = backlog is not None and backlog.is_empty
                self._turn.run()
                if hungry and position % HUNGRY_SUBMIT_STEP != HUNGRY_SUBMIT_STEP - 1:
                    continue
                await trio.lowlevel.checkpoint()
                if turn is not None:
                    turn.end()
                    await turn.begin()
                now = self._now()

    def _admit(self, position: int, text: str, now: float) -> None:
        self._room.enter()
        if self._observed:
            now = self._now()  # the observer measures each address by itself
        verification = Verification(text, position, now)
        if self._options.explain:
            verification.notes = ProbeNotes()
        read_text(verification, self._engine.lists, self._options.bounced)
        if self._observed:
            self._engine.observer.text_read(now)
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
        snapshot = self._domains.known(domain, now)
        if snapshot is None:
            self._await_route(verification, domain)
            return
        if self._observed:
            self._engine.observer.recalled("mx")
        if verification.notes is not None:
            verification.notes.cached.append("mx")
        self._routed(verification, snapshot, now)

    def _emit(self, verification: Verification) -> None:
        now, duplicates = self._now(), verification.duplicates or ()
        if self._observed:
            assert verification.outcome is not None
            self._engine.observer.answer_emitted(
                verification.outcome,
                verification.rule,
                1 + len(duplicates),
                self._engine.probing.operators.id_of(verification.latest_host),
            )
        evidence = None if verification.notes is None else verification.evidence()
        cause, wait = verification.cause, (verification.retry_s, verification.takes)
        for position, text in ((verification.position, verification.text), *duplicates):
            verdict = verification.verdict(text, now)
            self.answers.put(Answer(position, verdict, evidence, cause, *wait))

    def _finish(self, verification: Verification) -> None:
        del self._open[verification.mailbox]
        self._emit(verification)
        if self._room.is_awaited:
            self._room.check()
        elif self._all_submitted:
            self._check_end()

    def _check_end(self) -> None:
        """End the answers after the last one; do not wait for hosts if only they are left."""
        if not self._open:
            self.answers.end()
        elif self._backlog is not None and self._backlog.held == len(self._open):
            self._backlog.try_last_hosts()

    # -- layer 3 -----------------------------------------------------------------------------

    def _await_route(self, verification: Verification, domain: str) -> None:
        if domain in self._by_domain:
            self._by_domain[domain].append(verification)
        else:
            self._by_domain[domain] = [verification]
            self._nursery.start_soon(self._look_up, domain)

    async def _look_up(self, domain: str) -> None:
        answer = await self._domains.look_up(domain)
        if self._closed:
            return
        snapshot, now = self._domains.snapshot(answer), self._now()
        for verification in self._by_domain.pop(domain):
            if verification.notes is not None:
                verification.notes.lookup_took = True
            self._routed(verification, snapshot, now)
        self._release_due()
        self._room.check()
        self._turn.run()

    def _routed(self, verification: Verification, snapshot: DomainSnapshot, now: float) -> None:
        engine, asks_hosts = self._engine, self._options.asks_hosts
        read_route(verification, snapshot.answer, engine.lists, asks_hosts=asks_hosts)
        read_pauses(verification, engine.pauses)
        if self._observed:
            engine.observer.route_read(verification.began)
        if verification.outcome is not None:
            self._finish(verification)
        elif self._backlog is not None and snapshot.exchanges:
            self._backlog.add(verification, snapshot, now)
        elif not snapshot.exchanges or (pool := snapshot.pools[0]) is None:
            engine.probing.submit(self._new_probe(verification))
        else:
            verification.exchanges = snapshot.exchanges
            self._batches.setdefault(pool, []).append(self._new_probe(verification))

    # -- layer 4 -----------------------------------------------------------------------------

    def _release_due(self) -> None:
        """Submit the probes since the last call, host by host, so that they share writes."""
        if self._batches:
            batches, self._batches = self._batches, {}
            for pool, probes in batches.items():
                self._engine.probing.submit_to(pool, probes)
        if self._backlog is not None:
            self._backlog.release_due()

    def _new_probe(self, verification: Verification, behind: int = 0) -> Probe:
        address, route, options = verification.address, verification.route, self._options
        assert address is not None
        assert route is not None
        probe = verification.probe = Probe(
            verification.mailbox,
            address.domain,
            options.account,
            ProbeTarget(verification.exchanges or self._domains.exchanges(route)),
            self._settled,
            not address.local.isascii(),
            verification.notes,
            behind,
            options.deferred_start,
            options.patient,
            options.patience_left_s(self._now()) if options.deferred_start else 0.0,
        )
        return probe

    def _settled(self, probe: Probe) -> None:
        """Called in a turn. An exception here must end this stream, not the others."""
        try:
            verification = self._open[probe.mailbox]
            if self._observed:
                layer_s = overall_s(self._engine.settings, probe.patient)
                self._engine.observer.probe_settled(probe.clock.deadline - layer_s)
            verification.settled_by(probe)
            verification.began += probe.clock.stopped_s
            self._finish(verification)
            verification.probe = None  # breaks the reference cycle
        except Exception as error:
            self._nursery.start_soon(_fail, error)

    async def _watch_backoffs(self, backlog: Backlog) -> None:
        """Check the backlog now and then: the end of a back-off causes no event."""
        while True:
            await trio.sleep(BACKOFF_CHECK_S)
            backlog.check_backoffs()
            if self._all_submitted:
                self._check_end()
            self._turn.run()

    # -- pauses ------------------------------------------------------------------------------

    def pauses_changed(self) -> None:
        if self._engine.pauses.any and self._open:
            self._nursery.start_soon(self._answer_paused)

    async def _answer_paused(self) -> None:
        """Answer addresses under way that are paused by now, in steps: there may be 20,000."""
        pauses = self._engine.pauses
        held = [] if self._backlog is None else self._backlog.remove_paused()
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

    def close(self) -> None:
        """Cancel what is unfinished."""
        self._closed = True
        if self._backlog is not None:
            self._turn.unsubscribe(self._backlog.on_capacity)
            self._backlog.clear()
        self._engine.probing.abandon(
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
    is how long a list waits for the tolerance of mail hosts: an address that a host does not take
    now is answered with the seconds after which it may be asked again (`Answer.retry_s`), and the
    host is not pressed to take more while the patience allows that. Leaving the block cancels what
    is unfinished.
    """
    options = StreamOptions(
        account, deferred_start, explain, patient, asks_hosts and engine.settings.asks_hosts,
        bounced, trio.current_time() + patience_s,
    )  # fmt: skip
    try:
        async with trio.open_nursery() as nursery:
            scheduler = _Scheduler(engine, options, nursery)
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
