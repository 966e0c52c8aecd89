"""The connections to one mail host, and the questions that wait for them.

A pool is found by the addresses of an exchange, so thousands of domains that
share a host share its pool, and the host's limits are kept over all of them.
Every decision is a synchronous function over what is known; I/O follows in one
task a connection. What a connection attempt taught is told to everyone who
waits: a host that can't be reached is asked once, not once for each address.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import trio

from engine.egress import Dial
from engine.evidence import Tried
from engine.settings import EngineSettings
from engine.sites import Site
from engine.smtp import wire
from engine.smtp.catchall import Acceptance, Domain, Domains, deciding_rule
from engine.smtp.connection import Connection
from engine.smtp.question import ADDRESSES_MAX, Cause, Question
from engine.smtp.replies import Reading, Rules, Step
from engine.smtp.session import GONE_WRONG, REFUSALS_MAX, Session, cause_of, refusal_outcome
from engine.smtp.throttle import REST_AFTER, Rest, Throttle
from engine.smtp.wire import Reply
from engine.turnstile import Turnstile
from engine.verdict import Outcome

BACKLOG_S = 0.5  # work for longer than this is worth one more connection
HURRY_S = 0.15  # a greeting that takes longer is not waited for before the next is opened
ROUND_S = 0.8  # a window's replies, one by one, should not take longer
COLD_MAX = 3  # recipients in a row refused because of us, then the host is rested
EWMA = 0.3  # weight of the newest measurement


class Desk(Protocol):
    """What a pool needs of layer 4 as a whole; see probe.Prober."""

    settings: EngineSettings
    rules: Rules
    dial: Dial
    domains: Domains
    closing: bool

    def start(self, task: Callable[..., Any], *args: Any) -> None: ...
    def settle(self, question: Question, outcome: Outcome, rule: str) -> None: ...
    def fail_over(self, question: Question, cause: Cause) -> None: ...
    def seat_free(self, address: str, pool: "Pool") -> bool: ...
    def take_seat(self, address: str) -> None: ...
    def give_seat_back(self, address: str) -> None: ...


@dataclass(slots=True)
class _Pace:
    """How fast the host answers, in seconds; moving averages."""

    round_s: float | None = None  # from a round's write to its last reply
    gap_s: float = 0.0  # between two replies of one round

    def measured(self, round_s: float, gap_s: float) -> None:
        before = self.round_s if self.round_s is not None else round_s
        self.round_s = before + EWMA * (round_s - before)
        if gap_s >= 0:
            self.gap_s += EWMA * (gap_s - self.gap_s)


class Pool:
    """One mail host. See session.Host for what its sessions ask of it."""

    def __init__(self, addresses: tuple[str, ...], name: str, site: Site | None, desk: Desk):
        self.addresses = addresses
        self.name = name
        self.site = site
        self.one_each = bool(site and site.one_each)
        self.waiting: Turnstile[Question] = Turnstile()
        self.sessions: set[Session] = set()
        self.connections = 0  # sessions, and connections being opened
        limit = desk.settings.host_connections
        self.throttle = Throttle(min(limit, (site and site.connections_max) or limit))
        self.rest = Rest()
        self._rest_cause: Cause | None = None
        self._cold = 0
        self._behind = 0  # what a patient asker holds back for this host
        self._pace = _Pace()
        self._pipelines: bool | None = None
        self._turn = 0  # which address is next
        self._desk = desk

    # -- questions ---------------------------------------------------------------------------

    def join(self, question: Question) -> None:
        """Let a question wait for a seat; a resting host gives it its old answer at once."""
        if self._rest_cause is not None and self.rest.resting(trio.current_time()):
            if question.notes is not None:
                question.notes.cached.append("rest")
                words = f"not asked, resting: {self._rest_cause.words}"
                question.notes.tried.append(Tried(self.name, self.addresses[0], words))
            self._desk.fail_over(question, self._rest_cause)
            return
        self._behind = question.behind
        self.waiting.join(question.asker, question)
        self.staff()

    def capacity(self) -> int:
        """How many questions may be under way here without waiting for a seat."""
        if self._pipelines is None:
            return REFUSALS_MAX
        if self.one_each or not self._pipelines:
            return self.throttle.limit
        return self.throttle.limit * self._window()

    def staff(self, *, hurried: bool = False) -> None:
        """Wake who is idle, or open a connection where what waits is worth one."""
        if not self._any_waiting():
            self.waiting.take_all()
            return
        if self._desk.closing:
            return
        for session in self.sessions:
            if session.idle:
                session.wake()
                return
        if self._wants_connection(hurried):
            self.connections += 1
            self._desk.start(self._work)

    def _any_waiting(self) -> bool:
        return any(not question.settled for question in self.waiting)

    def _wants_connection(self, hurried: bool) -> bool:
        if self.connections >= self.throttle.limit or not self._free_address():
            return False
        if self.connections == 0:
            return True
        if len(self.sessions) < self.connections and not hurried:
            return False  # one is being opened: see first how the host takes it
        if not self.sessions:
            return len(self.waiting) > self._window() * self.connections
        window = 1 if self._pipelines is False or self.one_each else self._window()
        rounds = (len(self.waiting) + self._behind) / (len(self.sessions) * window)
        return rounds * (self._pace.round_s or 0.0) > BACKLOG_S

    def _window(self) -> int:
        if self._pace.gap_s <= 0:
            return REFUSALS_MAX
        return max(1, min(REFUSALS_MAX, int(ROUND_S / self._pace.gap_s)))

    # -- one connection's task ---------------------------------------------------------------

    async def _work(self) -> None:
        session = None
        try:
            session = await self._reach()
            if session is not None:
                self.sessions.add(session)
                if self._desk.closing:
                    session.leave()
                self.staff()
                await session.serve()
        finally:
            if session is not None:
                self.sessions.discard(session)
                self._desk.give_seat_back(session.address)
            self.connections -= 1
        self.staff()

    async def _reach(self) -> Session | None:
        """A greeted connection; while a greeting takes long, others may be opened beside it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hurry)
            session = await self._try_addresses()
            nursery.cancel_scope.cancel()
        return session

    async def _hurry(self) -> None:
        """Where a greeting takes long and much waits, let the next connection be opened."""
        await trio.sleep(HURRY_S)
        self.staff(hurried=True)

    async def _try_addresses(self) -> Session | None:
        """A session with the first of the addresses that answers; it holds a seat there.

        None where none does, once everyone who waits has been told.
        """
        cause = None
        for address in self._in_turn():
            if not self._any_waiting():
                return None
            if not self._desk.seat_free(address, self):
                continue
            self._desk.take_seat(address)
            greeted: Session | Cause | None = None
            try:
                greeted = await self._greet(address)
            finally:
                if not isinstance(greeted, Session):
                    self._desk.give_seat_back(address)
            if isinstance(greeted, Session):
                return greeted
            cause = greeted
            self.throttle = self.throttle.after_failure()
            if self.sessions:
                return None  # the others go on; only this one was too many
            self._tell_tried(address, cause)
        if cause is not None:
            self._strike(cause)
            for question in self.waiting.take_all():
                self._desk.fail_over(question, cause)
        return None

    def _free_address(self) -> bool:
        return any(self._desk.seat_free(address, self) for address in self.addresses)

    def _in_turn(self) -> list[str]:
        start = self._turn % len(self.addresses)
        self._turn += 1
        return [*self.addresses[start:], *self.addresses[:start]][:ADDRESSES_MAX]

    async def _greet(self, address: str) -> Session | Cause:
        """Connect, hear the banner, say EHLO, or HELO where that is refused."""
        settings = self._desk.settings
        began = trio.current_time()
        try:
            with trio.fail_after(settings.read_s):
                stream = await self._desk.dial(address, settings.smtp_port)
        except trio.TooSlowError:
            return Cause(Outcome.TIMED_OUT, "clock.connect", "no answer to connect")
        except OSError as error:
            words = str(error) or "can't connect"
            return Cause(Outcome.CONVERSATION_FAILED, "connect.failed", words)
        connection = Connection(stream, settings.read_s)
        try:
            greeted = await self._introduce(connection, address, began)
        except BaseException:
            with trio.CancelScope(shield=True):
                await connection.close()
            raise
        if isinstance(greeted, Cause):
            await connection.quit()
        return greeted

    async def _introduce(
        self, connection: Connection, address: str, began: float
    ) -> Session | Cause:
        preamble: list[tuple[float, bool, str]] = [(began, True, "(connect)")]
        step = Step.BANNER
        try:
            turn = await connection.hear()
            self._write_down(preamble, connection, turn)
            if not turn.reply.positive:
                return self._refused(Step.BANNER, turn)
            step = Step.HELLO
            await connection.say(wire.ehlo(self.helo_name))
            turn = await connection.hear()
            self._write_down(preamble, connection, turn)
            if turn.reply.code >= 500:
                await connection.say(wire.helo(self.helo_name))
                turn = await connection.hear()
                self._write_down(preamble, connection, turn)
        except GONE_WRONG as error:
            return cause_of(error, step, spoke=step is not Step.BANNER)
        if not turn.reply.positive:
            return self._refused(Step.HELLO, turn)
        self._learn_pace(connection)
        return Session(self, connection, address, preamble)

    def _refused(self, step: Step, turn: wire.Turn) -> Cause:
        reading = self.read(step, turn.reply)
        words = f"{step.value} refused: {turn.reply.code} {turn.reply.text[:80]}"
        return Cause(
            Outcome.CONVERSATION_FAILED,
            reading.rule,
            words,
            about_us=reading.about_us,
            spoke=True,
        )

    def _learn_pace(self, connection: Connection) -> None:
        self._pipelines = connection.conversation.offer.pipelining
        if self._pace.round_s is None:
            turnaround_s = connection.heard_at - connection.said_at
            self._pace.measured(turnaround_s, -1)
            self._pace.gap_s = turnaround_s

    @staticmethod
    def _write_down(
        preamble: list[tuple[float, bool, str]], connection: Connection, turn: wire.Turn
    ) -> None:
        if turn.command is not wire.CONNECT:
            preamble.append((connection.said_at, True, turn.command.line))
        preamble += [(connection.heard_at, False, line) for line in str(turn.reply).split("\n")]

    def _tell_tried(self, address: str, cause: Cause) -> None:
        """Everyone who waits has had this address tried for it, in vain."""
        for question in list(self.waiting):
            question.addresses_tried += 1
            question.conversations += cause.spoke
            question.cause = cause
            if question.notes is not None:
                question.notes.tried.append(Tried(self.name, address, cause.words))
            if question.exhausted:
                self._desk.settle(question, cause.outcome, cause.rule)

    # -- rest --------------------------------------------------------------------------------

    def _strike(self, cause: Cause, *, at_once: bool = False) -> None:
        strikes = max(self.rest.strikes, REST_AFTER - 1) if at_once else self.rest.strikes
        now = trio.current_time()
        self.rest = Rest(strikes).after_strike(now, refused=cause.about_us)
        self._rest_cause = cause
        if self.rest.resting(now):
            for session in self.sessions:
                session.leave()
            for question in self.waiting.take_all():
                self._desk.fail_over(question, cause)

    # -- what a session asks of its host -----------------------------------------------------

    @property
    def helo_name(self) -> str:
        return self._desk.settings.helo_name

    @property
    def mail_from(self) -> str:
        return self._desk.settings.mail_from

    def read(self, step: Step, reply: Reply) -> Reading:
        return self._desk.rules.read(step, reply, self.site.id if self.site else None)

    def window(self, offer: wire.Offer) -> int:
        return self._window()

    def next_question(self) -> Question | None:
        while (question := self.waiting.take()) is not None:
            if not question.settled:
                return question
        return None

    def put_back(self, question: Question) -> None:
        if question.settled:
            return
        if self._rest_cause is not None and self.rest.resting(trio.current_time()):
            self._desk.fail_over(question, self._rest_cause)
        else:
            self.waiting.put_back(question.asker, question)

    def domain(self, name: str) -> Domain:
        return self._desk.domains.find(name)

    def random_mailbox(self, domain: Domain) -> str:
        return self._desk.domains.random_mailbox(domain)

    def learn(self, domain: Domain, acceptance: Acceptance) -> None:
        now = trio.current_time()
        for question in self._desk.domains.learn(domain, acceptance, now):
            rule = deciding_rule(acceptance, question.rule)
            self._desk.settle(question, acceptance.value, rule)

    def leave_untested(self, domain: Domain) -> None:
        """The random address could not be asked: who waits for it is answered without."""
        domain.testing = False
        awaiting, domain.awaiting = domain.awaiting, []
        for question in awaiting:
            self._desk.settle(question, Outcome.DELIVERABLE_UNTESTED, question.rule)

    def settle(self, question: Question, outcome: Outcome, rule: str) -> None:
        self._desk.settle(question, outcome, rule)

    def fail_over(self, question: Question, cause: Cause) -> None:
        self._desk.fail_over(question, cause)

    def recipient_read(self, reply: Reply, reading: Reading) -> None:
        """Learn from a recipient's reply how we stand with the host."""
        if not reading.about_us:
            self._cold = 0
            if self.rest.strikes:
                self.rest = replace(self.rest, strikes=0)
            return
        self._cold += 1
        if self._cold >= COLD_MAX:
            self._cold = 0
            words = f"{reply.code} {reply.text[:80]}"
            outcome = refusal_outcome(reply, reading)
            self._strike(Cause(outcome, reading.rule, words, about_us=True), at_once=True)

    def round_done(self, round_s: float, gap_s: float) -> None:
        self._pace.measured(round_s, gap_s)
        self.throttle = self.throttle.after_success()
        self.staff()

    def session_failed(self, cause: Cause, *, before_recipients: bool) -> None:
        self.throttle = self.throttle.after_failure()
        if before_recipients or cause.about_us:
            self._strike(cause)
