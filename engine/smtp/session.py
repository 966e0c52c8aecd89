"""One greeted connection with a mail host: rounds of questions, and QUIT.

A round is what may be written at once: one recipient in step, up to the window
where PIPELINING is offered. The window never lets the refusals of one session
pass `REFUSALS_MAX`, were every recipient under way refused: mail servers slow
down at ten refusals and hang up at twenty. Every reply is taken for the oldest
unanswered command, verdicts are held back until the replies are proven in step (see
mailprobe.engine.smtp.pairing), and a session that failed in any way is never asked again.

A session is late while its oldest unanswered recipient takes much longer than usual, as
one at a tarpit does. Whatever is queued behind that recipient is then asked elsewhere.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import trio

from mailprobe.engine.evidence import Tried
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.catchall import Acceptance, Domain, deciding_rule
from mailprobe.engine.smtp.connection import Connection, ConnectionLost, Overdue, ReadTimedOut
from mailprobe.engine.smtp.host_policy import Terms, start_tls
from mailprobe.engine.smtp.pairing import (
    EARLY,
    QUIET_MARGIN,
    QUIET_S,
    QUIET_S_MAX,
    OutOfStep,
    Pairing,
    Unproven,
)
from mailprobe.engine.smtp.probe import OBJECTIONS_MAX, Cause, Notes, Question
from mailprobe.engine.smtp.replies.rules import ACCEPTED, Meaning, Reading, Step
from mailprobe.engine.smtp.wire import Command, Reply, Stage, TheirMistake, Turn
from mailprobe.engine.verdict import LADDER, Outcome

REFUSALS_MAX = 8  # Postfix delays from the 11th error of a session and closes at the 21st
RECIPIENTS_MAX = 100  # RFC 5321 4.5.3.1.8: what every server must bear
RESETS_MAX = 8  # Exim hangs up after 10 commands that are no mail, RSET among them
TURN_S = 0.5  # of a connection at an address where another host's questions wait for a seat
TURN_LOOK_S = 0.1  # after that, between two looks whether any do
GIVE_WAY_LOOK_S = 0.02  # between two looks whether others wait for a late recipient's place
NOT_IMPLEMENTED = range(500, 505)  # a host that knows no NOOP answers it with one of these
IDLE_S = 3.0  # Postfix keeps a connection for reuse 2 s; a list comes back within 3


class GaveWay(Exception):
    """The late recipient is asked again when the others have been: its connection is over."""


GONE_WRONG = (ReadTimedOut, ConnectionLost, TheirMistake, GaveWay)

_ANOTHER_RECIPIENT = Meaning.ANOTHER_RECIPIENT  # to look each up takes 0.12 µs in Python 3.11
_NO_MAILBOX = Meaning.NO_MAILBOX
_TLS_DEMANDED = Meaning.TLS_DEMANDED
_SENDER_REFUSED = Meaning.SENDER_REFUSED


@dataclass(slots=True, eq=False)
class CatchAllTest:
    """The random address that goes along to tell whether a domain accepts all."""

    domain: Domain
    mailbox: str
    objections: int = 0
    smtputf8: bool = False
    abandoned: bool = False  # its domain is tested elsewhere
    sender_refused_by: object = None  # see question.Question


Asked = Question | CatchAllTest


class Host(Protocol):
    """What a session needs of the mail host it talks to; see pool.Pool."""

    name: str
    one_each: bool  # the host objects to more than one recipient a transaction
    usual_s: float  # from a recipient's write to its reply
    late_s: float  # a reply that takes longer is late
    wary: bool  # its replies were out of step before: each verdict is proven by itself
    tardy: bool  # one of its replies was late not long ago: likewise
    terms: Terms

    @property
    def helo_name(self) -> str: ...
    @property
    def give_way_s(self) -> float: ...
    def read(self, step: Step, reply: Reply) -> Reading: ...
    def window(self) -> int: ...
    def any_waiting(self) -> bool: ...
    def next_question(self, now: float) -> Question | None: ...
    def is_idle(self, session: "Session") -> None: ...
    def is_busy(self, session: "Session", *, woken: bool) -> None: ...
    def begin_answers(self) -> None: ...
    def end_answers(self, *, all_of_them: bool) -> None: ...
    def put_back(self, question: Question) -> None: ...
    def put_last(self, question: Question) -> None: ...
    def is_blocked(self, session: "Session") -> bool: ...
    def random_mailbox(self, domain: Domain) -> str: ...
    def learn(self, domain: Domain, acceptance: Acceptance) -> None: ...
    def leave_untested(self, domain: Domain) -> None: ...
    def settle(self, question: Question, outcome: Outcome, rule: str) -> None: ...
    def fail_over(self, question: Question, cause: Cause) -> None: ...
    def recipient_read(self, domain: Domain, reply: Reply, reading: Reading) -> None: ...
    def is_wanted_elsewhere(self, address: str) -> bool: ...
    def send_idle_home(self) -> None: ...
    def session_reused(self) -> None: ...
    def settle_alone(
        self, question: Question, outcome: Outcome, rule: str, round_s: float
    ) -> None: ...
    def answered_alone(self, round_s: float) -> None: ...
    def round_done(self, round_s: float, gap_s: float, first_s: float) -> None: ...
    def hold_back(self, count: int) -> None: ...
    def end_hold(self, count: int) -> None: ...
    def learn_quick(self, reply_s: float) -> None: ...
    def session_late(self, session: "Session", *, accepted: int) -> None: ...
    def session_prompt(self, session: "Session", *, accepted: bool) -> None: ...
    def session_gave_way(self) -> None: ...
    def session_barren(self, cause: Cause, domain: Domain) -> None: ...
    def session_failed(
        self, cause: Cause, *, before_recipients: bool, late: bool, at_recipient: bool
    ) -> None: ...
    def distrust(self) -> None: ...


def cause_of(error: Exception, step: Step, *, spoke: bool = True) -> Cause:
    """The cause that an exception of a connection stands for."""
    where = step.value
    if isinstance(error, ReadTimedOut):
        return Cause(Outcome.TIMED_OUT, f"clock.{where}", f"silent at {where}", spoke=spoke)
    if isinstance(error, TheirMistake):
        return Cause(Outcome.CONVERSATION_FAILED, f"garbage.{where}", str(error), spoke=spoke)
    return Cause(
        Outcome.CONVERSATION_FAILED,
        f"closed.{where}",
        f"{error} at {where}",
        spoke=spoke,
        hung_up=True,
    )


_GARBLED = "garbage.rcpt"  # the rule of what TheirMistake stands for
_GAVE_WAY = Cause(Outcome.TIMED_OUT, "clock.rcpt", "silent at RCPT", spoke=True)


class Session:
    """A greeted connection and what has been asked on it."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        "_again",
        "_checking",
        "_connection",
        "_conversation",
        "_early_s",
        "_elsewhere",
        "_fruitful",
        "_heard",
        "_host",
        "_idle",
        "_idle_until",
        "_late",
        "_leaving",
        "_named",
        "_next",
        "_now",
        "_pairing",
        "_preamble",
        "_quiet_until",
        "_recipients",
        "_refusals",
        "_refused_promptly",
        "_resets",
        "_rounds",
        "_seat_lost",
        "_suspect",
        "_tests",
        "_tls_of_all",
        "_tls_wanted",
        "_transaction",
        "_transaction_recipients",
        "_transaction_sender",
        "_transaction_smtputf8",
        "_transactions",
        "_trouble",
        "_turn_ends",
        "_unanswered",
        "_unproven",
        "_unsaid",
        "_woken",
        "address",
    )

    def __init__(
        self,
        host: Host,
        connection: Connection,
        address: str,
        preamble: list[tuple[float, bool, str]],
    ) -> None:
        self.address = address
        self._host = host
        self._connection = connection
        self._conversation = connection.conversation
        self._preamble = preamble
        self._tests: deque[CatchAllTest] = deque()  # that an accepted recipient asks for
        self._unanswered: deque[Asked] = deque()  # of the round under way
        self._transaction: set[str] = set()  # domains named in it
        self._transaction_smtputf8 = False
        self._transaction_sender = ""
        self._transaction_recipients = 0
        self._transactions = 0
        self._resets = 0
        self._refusals = 0
        self._recipients = 0
        self._rounds = 0
        self._leaving = False
        self._seat_lost = False
        self._next: list[Asked] = []  # picked already, for a transaction of its own
        self._again: list[Asked] = []  # refused for the terms, to be asked on others
        self._tls_wanted = False  # a reply demanded it
        self._tls_of_all = False  # and that was the reply to MAIL
        self._heard = _Heard([], False, False)  # of the round under way
        self._pairing = Pairing()
        self._unproven = Unproven()
        self._early_s = 0.0  # a reply came sooner than usual, and is not proven yet
        self._suspect = False  # silence proves nothing before a reply to NOOP has: see pairing
        self._checking = False  # that reply is to come
        self._refused_promptly = False  # the host is not slow to refuse
        self._quiet_until = 0.0  # of the silence that is to prove them; 0: none
        self._idle_until = 0.0
        self._late = False
        self._named = False  # the latest reply of a round of one names its recipient
        self._elsewhere: set[Question] = set()  # of the unanswered: asked elsewhere, too
        self._fruitful = False  # a recipient was answered, and not with 421
        self._unsaid = b""  # of its commands: what the system did not take at once
        self._trouble: Exception | None = None  # that ended the connection
        self._turn_ends = 0.0
        self._idle = False
        self._woken = False
        self._now = trio.lowlevel.current_clock().current_time

    @property
    def spent(self) -> bool:
        """Nothing more may be asked on this connection."""
        return (
            self._refusals >= REFUSALS_MAX
            or self._recipients >= RECIPIENTS_MAX - (not self._tests)  # the last is a test's
            or not self._connection.usable
        )

    @property
    def leaving(self) -> bool:
        return self._leaving

    @property
    def late(self) -> bool:
        """The oldest unanswered recipient takes much longer than usual."""
        return self._late

    def wake(self) -> None:
        """There may be something to ask."""
        if self._idle:
            self._woken = True
            self._connection.wake()

    def leave(self) -> None:
        """Say QUIT as soon as nothing is unanswered."""
        self._leaving = True
        self.wake()

    def lose_seat(self) -> None:
        """Whoever serves is about to be cancelled: what is unanswered is asked elsewhere."""
        self._leaving = self._seat_lost = True

    async def serve(self) -> None:
        """Ask what waits until nothing comes any more or nothing may be asked.

        The connection is still to be parted with afterwards: see `part`.
        """
        self._turn_ends = self._now() + TURN_S
        try:
            while self._may_go_on():
                wanted = self._tls_wanted or self._host.terms.tls
                if wanted and self._conversation.offer.starttls:
                    if await self._prove():
                        await self._start_tls()
                    continue
                self._put_back_again()
                asked, self._next = self._next or self._pick(), []
                if asked and self._unproven.verdicts and self._needs_transaction(asked):
                    self._next = asked
                    await self._prove()
                elif asked:
                    await self._ask(asked)
                elif self._leaving or self.spent or not await self._wait():
                    break
            await self._prove()
            if not self._rounds and self._connection.unread():
                mistake = TheirMistake("it spoke without being asked")
                cause = cause_of(mistake, Step.HELLO)
                self._host.session_failed(
                    cause, before_recipients=True, late=False, at_recipient=False
                )
        finally:
            self._hand_back(self._next)
            self._put_back_unproven()
            self._put_back_again()
            if self._seat_lost:
                self._put_back_unanswered()
            self._give_up_tests()

    async def part(self) -> None:
        """Say QUIT where that may be said, and close."""
        await self._connection.quit()

    async def close(self) -> None:
        """Close at once. Never blocks."""
        await self._connection.close()

    async def _wait(self) -> bool:
        """Idle until woken; False when the time is up or the server spoke or closed."""
        self._idle, self._woken = True, False
        self._idle_until = until = self._now() + IDLE_S
        if self._unproven.verdicts:
            self._quiet_until = until = self._connection.heard_at + self._unproven.quiet_s
        self._host.is_idle(self)
        try:
            await self._connection.listen(self._while_idle, until)
        finally:
            self._idle, self._quiet_until = False, 0.0
            self._host.is_busy(self, woken=self._woken)
        woken = self._woken and self._connection.usable
        if woken and not self._leaving:
            self._host.session_reused()
        return woken

    def _while_idle(self) -> float | None:
        """Until when to idle on, None where that is over. Silence proves what is held."""
        if self._woken or self._connection.spoke():
            return None
        now = self._now()
        if self._unproven.verdicts:
            if now < self._quiet_until:
                return self._quiet_until
            self._release()
            if self._woken:  # for what was let in
                return None
        return self._idle_until if now < self._idle_until else None

    # -- what is asked next ------------------------------------------------------------------

    def _pick(self) -> list[Asked]:
        """The recipients of the next round; tests that are due go first."""
        if not self._tests and not self._host.any_waiting():
            return []
        now, room = self._now(), self._room()
        asked: list[Asked] = []
        while self._tests and len(asked) < room:
            asked.append(self._tests.popleft())
        # Where transactions are counted, the test must find a place in this one.
        spare = int(self._conversation.offer.transactions_max is not None and room > 1)
        untested: set[str] = set()
        while len(asked) < room - spare and (question := self._host.next_question(now)) is not None:
            domain: Domain = question.domain_here
            if now >= domain.known_until and domain.wants_test(now):
                untested.add(question.domain)
            if self._recipients + len(asked) + 1 + len(untested) > RECIPIENTS_MAX:
                self._host.put_back(question)  # its domain's test would find no place here
                self._leaving = self._leaving or not asked
                break
            if question.smtputf8 and not self._conversation.offer.smtputf8:
                self._host.settle(question, Outcome.NEEDS_SMTPUTF8, "smtputf8.not-offered")
            elif asked and not self._same_transaction(asked, question):
                self._host.put_back(question)
                break
            else:
                asked.append(question)
        self._add_tests(asked, room, now)
        if asked and self._needs_transaction(asked) and not self._may_open(asked):
            self._hand_back(asked)
            return []
        return asked

    def _hand_back(self, asked: Sequence[Asked]) -> None:
        """The session can't ask these: it ends, and another one will."""
        self._leaving = self._leaving or bool(asked)
        for each in reversed(asked):
            if isinstance(each, Question):
                self._host.put_back(each)
            else:
                self._leave_untested(each)

    def _may_open(self, asked: Sequence[Asked]) -> bool:
        """Is one more transaction left to this session? The last reset is kept for a test."""
        transactions_max = self._conversation.offer.transactions_max
        if transactions_max is not None and self._transactions >= transactions_max:
            return False
        if self._conversation.stage is not Stage.MAIL:
            return True
        return self._resets < RESETS_MAX - (not isinstance(asked[0], CatchAllTest))

    def _room(self) -> int:
        offer = self._conversation.offer
        room = min(REFUSALS_MAX - self._refusals, RECIPIENTS_MAX - self._recipients)
        if self._host.one_each or not offer.pipelining:
            return min(room, 1)
        room = min(room, self._host.window())
        return min(room, offer.recipients_max or room)

    def _same_transaction(self, asked: Sequence[Asked], question: Question) -> bool:
        """May this question go with those, by the host's LIMITS and its need of SMTPUTF8?"""
        if question.smtputf8 != asked[-1].smtputf8:  # those are alike
            return False
        domains_max = self._conversation.offer.domains_max
        if domains_max is None:
            return True
        domains = {domain_of(each) for each in asked} | {question.domain}
        return len(domains) <= domains_max

    def _add_tests(self, asked: list[Asked], room: int, now: float) -> None:
        """Let the random address go right behind the real ones where there is a place for it.

        A round that is full leaves it to the next one: it is asked then only
        if a real address was accepted.
        """
        if len(asked) >= room:
            return
        for question in list(asked):
            if isinstance(question, Question) and question.domain_here.wants_test(now):
                asked.append(self._new_test(question.domain_here))
                if len(asked) >= room:
                    return

    def _new_test(self, domain: Domain) -> CatchAllTest:
        domain.testing = True
        return CatchAllTest(domain, self._host.random_mailbox(domain))

    # -- a round -----------------------------------------------------------------------------

    async def _ask(self, asked: list[Asked]) -> None:
        """Ask these, and as long as nothing happens but replies, what is to be asked next."""
        heard = self._begin(asked)
        try:
            opening = self._opening(asked)
            if heard.pipelined:
                await self._connection.say(*opening, *heard.recipients)
            if not await self._open(opening, heard):
                return
            if not heard.pipelined:
                await self._connection.say(*heard.recipients)
                heard.began = self._connection.said_at
            await self._connection.follow(self._go_on, self._listen_until())
            while self._unsaid:
                rest, self._unsaid = self._unsaid, b""
                await self._connection.say_rest(rest)
                await self._connection.follow(self._go_on, self._listen_until())
            if self._trouble is not None:
                raise self._trouble
        except GONE_WRONG as error:
            self._went_wrong(error)

    def _begin(self, asked: list[Asked]) -> "_Heard":
        """A round begins: none of its recipients is answered."""
        self._unanswered = deque(asked)
        self._heard = heard = _Heard(asked, self._conversation.offer.pipelining, self._rounds > 0)
        self._rounds += 1
        self._elsewhere.clear()
        heard.began = self._now()
        heard.recipients = [wire.rcpt(each.mailbox) for each in asked]
        for each in asked:
            self._pairing.add(each.mailbox)
            if isinstance(each, Question):
                each.conversations += 1
                each.addresses_tried += 1
                if each.deadline > heard.until:
                    heard.until = each.deadline
                if each.notes is not None:
                    heard.noted = True
                    self._note_start(each.notes, heard.reused)
        if not heard.until:
            heard.until = float("inf")
        heard.alone = not heard.pipelined and len(asked) == 1 and not heard.noted
        return heard

    async def _open(self, opening: list[Command], heard: "_Heard") -> bool:
        """Hear the replies to RSET and MAIL; False where the round is over with them."""
        for command in opening:
            if not heard.pipelined:
                await self._connection.say(command)
            before = self._conversation.opening_reply
            turn = await self._connection.hear(until=heard.until)
            self._suspect = self._suspect or turn.reply == before
            self._pairing.check_names_nobody(turn.reply, [each.mailbox for each in heard.asked])
            self._note_opening(turn)
            # Only these tell that the server still talks to us: RSET it accepts of anybody.
            heard.first = heard.first or (command.verb == "MAIL" and turn.reply.positive)
            if not turn.reply.positive:
                if heard.refusal is None:
                    heard.objection = self._host.read(Step.MAIL, turn.reply)
                    heard.refusal = self._read_refusal(turn, heard.objection)
                if turn.reply.code == 421 or not heard.pipelined:
                    self._refused(heard.refusal, heard)
                    return False
        heard.transaction = heard.refusal is None
        return True

    def _go_on(self) -> float | None:
        """Take the replies that have come: until when to wait for more, None where that is over.

        Where a round ends well and the next one goes into the same transaction, it
        is begun here and now.
        """
        try:
            heard = self._heard
            if self._quiet_until:
                return self._await_quiet()
            turn = self._connection.receive_turn() if heard.alone else None
            if turn is not None:
                asked, reply = heard.asked[0], turn.reply
                self._named = self._pairing.proves(reply, asked.mailbox)
                if not self._transaction_recipients and reply == self._conversation.opening_reply:
                    self._suspect = True
                if (usual := self._usual(asked, reply)) is not None:
                    return self._go_on_alone(heard, *usual)
            if self._take_replies(heard, turn):
                return self._round_answered(heard)
            now = self._now()
            if not self._late and now >= self._connection.since + self._host.late_s:
                self._become_late()
            if self._late and now >= self._gives_way_at() and self._host.is_blocked(self):
                raise GaveWay
            return self._listen_until()
        except Exception as trouble:  # a bug, too, ends this session alone: see _ask()
            self._trouble = trouble
            return None

    def _listen_until(self) -> float:
        """The read clock's end; before that, the moment at which the session becomes late."""
        deadline = self._connection.deadline(self._heard.until)
        if not self._late:
            late_at = self._connection.since + self._host.late_s
            return late_at if late_at < deadline else deadline
        # Others may want its place later, and more be known of this host's late replies.
        look_at = self._now() + GIVE_WAY_LOOK_S
        return look_at if look_at < deadline and self._may_give_way() else deadline

    def _gives_way_at(self) -> float:
        if not self._may_give_way():
            return float("inf")
        return self._connection.since + self._host.give_way_s

    def _may_give_way(self) -> bool:
        """Once for each question; a test is not asked again."""
        answered = len(self._heard.turns)
        if answered >= len(self._unanswered):
            return False
        oldest = self._unanswered[answered]
        return isinstance(oldest, CatchAllTest) or not oldest.gave_way

    def _take_replies(self, heard: "_Heard", turn: Turn | None = None) -> bool:
        """Take what has come of the round's replies; say whether those were all of them.

        `turn` is the first, where that was read already.
        """
        if self._heard_all(heard, turn):
            return True
        if not self._connection.receive():
            self._connection.check_clock(heard.until)
            return False
        return self._heard_all(heard)

    def _heard_all(self, heard: "_Heard", turn: Turn | None = None) -> bool:
        """Pair what was read with the recipients; say whether the round is over.

        Given out is only what a reply proves that names its recipient; see _round_answered().
        """
        connection, asked, turns = self._connection, heard.asked, heard.turns
        while heard.place < len(asked):
            turn = turn or connection.heard_already()
            if turn is None:
                self._take_proven(heard)
                return False
            named = self._pairing.proves(turn.reply, asked[heard.place].mailbox)
            if not (self._transaction_recipients or heard.place):
                self._suspect = self._suspect or turn.reply == self._conversation.opening_reply
            turns.append(turn)
            heard.place += 1
            if heard.last_at and connection.heard_at - heard.last_at > heard.gap_s_max:
                heard.gap_s_max = connection.heard_at - heard.last_at
            heard.last_at = connection.heard_at
            heard.first_at = heard.first_at or heard.last_at
            if named and heard.transaction:
                heard.proven = heard.place
            if self._late:
                self._catch_up(accepted=turn.reply.positive)
            if turn.reply.code == 421:
                break
            turn = None
        else:
            if self._conversation.unread:
                raise OutOfStep("more replies than commands")
        self._take_proven(heard)
        return True

    def _take_proven(self, heard: "_Heard") -> None:
        """Give out what a reply has proven that names its recipient: itself and all before it."""
        count = heard.proven - (heard.place - len(heard.turns))
        if count > 0:
            self._release()
            self._take(heard, count)

    def _round_answered(self, heard: "_Heard") -> float | None:
        """All replies of a round are there. What is not proven yet is held back.

        From a usual reply only a verdict follows, so the conversation goes on. Anything
        else decides what is said next: then a silence has to prove the replies first.
        """
        if not heard.transaction:
            self._drop_replies(heard)
        turns, now = heard.turns, self._connection.heard_at
        self._expect_surplus(heard.first_at - heard.began, heard.gap_s_max)
        if heard.proven and heard.proven == heard.place:
            self._suspect = False
        elif self._accepts_at_random(heard):
            self._suspect = True
        silent = self._connection.silent_s() >= self._unproven.quiet_s
        if turns and silent and not self._suspect:
            self._release()
            self._take(heard, len(turns))
            return self._end_round(heard)
        held = 0
        for turn in () if heard.noted else turns:
            verdict = self._usual(self._unanswered[0], turn.reply)
            if verdict is None:
                break
            heard.first = True
            self._unanswered.popleft()
            self._unproven.hold(verdict, now)
            held += 1
        if held:
            del turns[:held]
            self._host.hold_back(held)
        if turns:
            return self._begin_quiet()
        if self._suspect and self._unproven.verdicts and heard.refusal is None:
            self._host.round_done(heard.round_s, heard.gap_s, heard.first_at - heard.began)
            return self._begin_quiet()
        return self._end_round(heard)

    def _accepts_at_random(self, heard: "_Heard") -> bool:
        """Was a random address accepted by a host that may only be slow to refuse it?"""
        return not self._refused_promptly and any(
            turn.reply.positive and isinstance(asked, CatchAllTest)
            for asked, turn in zip(self._unanswered, heard.turns, strict=False)
        )

    def _expect_surplus(self, first_s: float, gap_s: float) -> None:
        """How soon would a surplus reply follow? As the round's replies followed each other.

        A reply that came sooner than this host makes one may answer an earlier command:
        then the surplus one is still being made.
        """
        usual_s = self._host.usual_s
        if usual_s > QUIET_S and first_s < EARLY * usual_s:
            self._early_s = first_s
            gap_s = max(gap_s, usual_s)
        if gap_s > QUIET_S / 2:
            self._unproven.expect_surplus(gap_s)

    def _end_round(self, heard: "_Heard") -> float | None:
        if heard.refusal is not None:
            self._refused(heard.refusal, heard)
            return None
        self._host.round_done(heard.round_s, heard.gap_s, heard.first_at - heard.began)
        return self._continue()

    def _continue(self) -> float | None:
        """Begin the next round in this transaction, if there is anything to ask and it can be.

        What is held is proven where it must be; else while the session idles.
        """
        if self._unproven.verdicts and self._must_prove(self._now()):
            return self._begin_quiet()
        return self._listen_until() if self._begin_next() else None

    def _must_prove(self, now: float) -> bool:
        """Is what is held to be proven before anything else is asked?"""
        host = self._host
        return self._suspect or host.wary or host.tardy or now >= self._unproven.until

    def _begin_next(self) -> bool:
        if self._again or not self._may_go_on():
            return False
        asked = self._pick()
        if not asked or self._needs_transaction(asked):
            self._next = asked
            return False
        heard = self._begin(asked)
        heard.transaction = True
        self._unsaid = self._connection.say_now(*heard.recipients)
        return not self._unsaid

    # -- proof -------------------------------------------------------------------------------

    async def _prove(self) -> bool:
        """Prove what is held by a silence, before anything else is said; False where it fails."""
        if self._unproven.verdicts:
            try:
                until = self._begin_quiet()
                if until is None:
                    rest, self._unsaid = self._unsaid, b""
                    await self._connection.say_rest(rest)
                    until = self._connection.deadline(float("inf"))
                await self._connection.listen(self._while_silent, until)
                if self._trouble is not None:
                    raise self._trouble
            except GONE_WRONG as error:
                self._went_wrong(error)
                return False
        return True

    def _begin_quiet(self) -> float | None:
        """Say nothing for a moment: a surplus reply would come now. As _go_on() says.

        A host that is slow with the reply it owes is silent, too: where that may be, NOOP
        comes first. What the host owes would be taken for its reply.
        """
        # One is kept for this: a session asks nothing more after RESETS_MAX.
        may_check = self._resets <= RESETS_MAX and self._conversation.stage is not Stage.CLOSED
        if self._suspect and may_check:
            self._resets += 1
            self._checking, self._quiet_until = True, float("inf")
            self._unsaid = self._connection.say_now(wire.NOOP)
            return None if self._unsaid else self._connection.deadline(float("inf"))
        self._quiet_until = self._connection.heard_at + self._unproven.quiet_s
        return self._quiet_until

    def _noop_answered(self) -> bool:
        """Has the reply to NOOP come? Raises OutOfStep where it is none, or ConnectionLost."""
        connection = self._connection
        turn = connection.heard_already()
        if turn is None and connection.receive():
            turn = connection.heard_already()
        if turn is None:
            connection.check_clock(float("inf"))
            return False
        self._checking, code = False, turn.reply.code
        self._note_opening(turn)
        if code == 421:
            raise ConnectionLost(f"closed by the server: 421 {turn.reply.text[:80]}")
        unknown = code in NOT_IMPLEMENTED
        late = connection.heard_at >= connection.said_at + self._host.late_s
        if not turn.reply.positive and (late or not unknown):
            raise OutOfStep(f"{code} in answer to NOOP")
        self._pairing.check_names_nobody(turn.reply, ())
        self._suspect = False
        # Where this was an earlier command's reply, NOOP's own comes a turn-around after NOOP.
        own_by = connection.said_at + min(QUIET_MARGIN * self._host.usual_s, QUIET_S_MAX)
        self._quiet_until = max(connection.heard_at, own_by) + self._unproven.quiet_s
        return True

    def _while_silent(self) -> float | None:
        """Until when to say nothing, None where the silence is over: see _prove()."""
        try:
            return self._silent_until()
        except Exception as trouble:
            self._trouble = trouble
            return None

    def _silent_until(self) -> float | None:
        """None where the silence is over and what is held is proven. Raises OutOfStep."""
        if self._checking and not self._noop_answered():
            return self._connection.deadline(float("inf"))
        surplus = gone = False
        try:
            surplus = self._connection.unread() or self._connection.receive()
        except ConnectionLost:
            gone = True  # and it said no more before
        if surplus:
            self._quiet_until = 0.0
            raise OutOfStep("more replies than commands")
        if self._now() < self._quiet_until and not gone:
            return self._quiet_until
        self._quiet_until = 0.0
        self._release()
        return None

    def _await_quiet(self) -> float | None:
        until, heard = self._silent_until(), self._heard
        if until is not None:
            return until
        if heard.turns:
            self._take(heard, len(heard.turns))
            return self._end_round(heard)
        return self._continue()

    def _release(self) -> None:
        """The replies are proven to be in step: what was held back is given out."""
        if self._early_s:
            self._host.learn_quick(self._early_s)
            self._early_s = 0.0
        verdicts = self._unproven.take_all()
        if not verdicts:
            return
        host = self._host
        host.end_hold(len(verdicts))
        host.begin_answers()
        try:
            for question, outcome, rule in verdicts:
                host.settle(question, outcome, rule)
        finally:
            # One that idles takes what is let in only if it is woken.
            host.end_answers(all_of_them=not (self._unanswered or self._idle))

    def _doubt(self, heard: "_Heard", cause: Cause, error: Exception) -> None:
        """What was answered and is not proven is asked once more, one by one; else it is unknown.

        Before a late reply that gave way nothing has shown that the host is out of step:
        those are asked again as before, at most once for each that gives way.
        """
        self._early_s = 0.0
        doubted: list[Asked] = [question for question, _, _ in self._unproven.verdicts]
        self._host.end_hold(len(self._unproven.take_all()))
        doubted += [self._unanswered.popleft() for _ in heard.turns]
        heard.turns.clear()
        gave_way = isinstance(error, GaveWay)
        if doubted and isinstance(error, TheirMistake):
            self._host.distrust()
        for asked in reversed(doubted):
            if isinstance(asked, CatchAllTest):
                self._leave_untested(asked)
            elif asked.settled or asked in self._elsewhere:
                pass
            elif gave_way:
                self._ask_elsewhere(asked)
            elif asked.doubted:
                self._host.settle(asked, cause.outcome, cause.rule)
            else:
                asked.doubted = True
                self._ask_elsewhere(asked)

    def _ask_elsewhere(self, question: Question) -> None:
        """It was answered by nobody, by no fault of its own: this conversation is not counted."""
        question.conversations -= 1
        question.addresses_tried -= 1
        self._host.put_back(question)

    def _leave_untested(self, test: CatchAllTest) -> None:
        if not test.abandoned:
            test.abandoned = True
            self._host.leave_untested(test.domain)

    # -- a late reply ------------------------------------------------------------------------

    def _become_late(self) -> None:
        """The oldest recipient delays those behind it: they are asked elsewhere as well.

        Should their replies come here first, these count. What was answered before is
        not proven where a reply may have been left out: that is asked elsewhere, too.
        So is what is held: the late one may not be the first that the host is slow with.
        """
        self._late = self._suspect = self._heard.late = True
        self._put_back_unproven()
        answered = len(self._heard.turns)
        for place, asked in reversed(list(enumerate(self._unanswered))):
            if place == answered or asked in self._elsewhere:
                continue
            if isinstance(asked, CatchAllTest):
                self._leave_untested(asked)
            elif not asked.settled:
                self._elsewhere.add(asked)
                self._ask_elsewhere(asked)
        accepted = sum(turn.reply.positive for turn in self._heard.turns)
        self._host.session_late(self, accepted=accepted)

    def _catch_up(self, *, accepted: bool) -> None:
        self._late = False
        self._host.session_prompt(self, accepted=accepted)

    # -- a round of one in step, where all is as usual: most rounds are, with many hosts ------

    def _usual(self, question: Asked, reply: Reply) -> tuple[Question, Outcome, str] | None:
        """What this reply makes of the question, if nothing but that follows from it.

        None where more does, and nothing was done: that is for the long way.
        """
        if not isinstance(question, Question) or question.outcome is not None:
            return None
        code = reply.code
        if code < 300:
            reading = ACCEPTED
            domain: Domain = question.domain_here
            if domain.acceptance is None or self._connection.heard_at >= domain.known_until:
                return None
            outcome = domain.acceptance.outcome
            rule = deciding_rule(domain.acceptance, reading.rule)
        elif code < 400 or code == 421:
            return None
        else:
            reading = self._host.read(Step.RCPT, reply)
            meaning = reading.meaning
            if meaning is not _NO_MAILBOX and (
                meaning is _ANOTHER_RECIPIENT
                or meaning is _SENDER_REFUSED
                or meaning is _TLS_DEMANDED
            ):
                return None
            self._refusals += 1
            self._refused_promptly = self._refused_promptly or not self._heard.late
            outcome, rule = refusal_outcome(reply, reading), reading.rule
        self._fruitful = True
        self._recipients += 1
        self._transaction_recipients += 1
        self._transaction.add(question.domain)
        self._host.recipient_read(question.domain_here, reply, reading)
        return question, outcome, rule

    def _go_on_alone(
        self, heard: "_Heard", asked: Question, outcome: Outcome, rule: str
    ) -> float | None:
        """Settle or hold the round's verdict and ask the next question; as _go_on() says."""
        host, now, unproven = self._host, self._connection.heard_at, self._unproven
        round_s = now - heard.began
        heard.first = True
        if self._late:
            self._catch_up(accepted=LADDER[outcome].valid)
        self._unanswered.clear()
        if not self._named and host.usual_s > QUIET_S:
            self._expect_surplus(round_s, 0.0)
        if self._named:
            self._suspect = False
        silent = self._connection.silent_s() >= unproven.quiet_s and not self._suspect
        if self._named or silent:
            if unproven.verdicts or unproven.quiet_s > QUIET_S:
                self._release()
            host.settle_alone(asked, outcome, rule, round_s)
        else:
            unproven.hold((asked, outcome, rule), now)
            host.hold_back(1)
            host.answered_alone(round_s)
            if self._must_prove(now):
                return self._begin_quiet()
        if now > self._turn_ends:
            self._cede_if_wanted(now)
        question = None
        if (
            not (self._leaving or self._tests)
            and self._refusals < REFUSALS_MAX
            and self._recipients < RECIPIENTS_MAX - 1
        ):
            question = host.next_question(now)
        if question is None or not self._is_plain(question, now):
            if question is not None:
                host.put_back(question)
            return self._continue()
        question.conversations += 1
        question.addresses_tried += 1
        self._pairing.add(question.mailbox)
        self._unanswered.append(question)
        heard.asked = [question]
        heard.reused, heard.first, heard.late = True, False, False
        heard.until = question.deadline
        if self._elsewhere:
            self._elsewhere.clear()
        self._unsaid = self._connection.say_rcpt_now(question.mailbox)
        heard.began = self._connection.said_at
        if self._unsaid:
            return None
        deadline, late_at = self._connection.deadline(heard.until), heard.began + host.late_s
        return late_at if late_at < deadline else deadline

    def _is_plain(self, question: Question, now: float) -> bool:
        """May this be asked next just so: in the transaction there is, without a test?"""
        offer = self._conversation.offer
        domain: Domain = question.domain_here
        return (
            question.notes is None
            and not question.smtputf8
            and (now < domain.known_until or domain.testing)
            and not self._host.one_each
            and offer.domains_max is None
            and self._transaction_recipients < (offer.recipients_max or RECIPIENTS_MAX)
        )

    def _may_go_on(self) -> bool:
        now = self._now()
        if now > self._turn_ends:
            self._cede_if_wanted(now)
        return not self._leaving and not self.spent

    def _cede_if_wanted(self, now: float) -> None:
        """Leave if the seat is wanted elsewhere; else go on, and look again in TURN_LOOK_S."""
        self._turn_ends = now + TURN_LOOK_S
        if not self._leaving:
            self._leaving = self._host.is_wanted_elsewhere(self.address)

    def _went_wrong(self, error: Exception) -> None:
        """Each of the round's questions goes on its way after an error of GONE_WRONG."""
        heard = self._heard
        step = Step.RCPT if heard.transaction else Step.MAIL
        cause = heard.refusal or (
            _GAVE_WAY if isinstance(error, GaveWay) else cause_of(error, step)
        )
        if not (isinstance(error, TheirMistake) or self._suspect):
            self._release()  # silence, or the end: no surplus reply was on its way
        if not heard.transaction:
            self._drop_replies(heard)
        self._doubt(heard, cause, error)
        if isinstance(error, GaveWay):
            self._give_way()
            return
        if isinstance(error, Overdue) and heard.refusal is None:
            self._let_go()
            return
        self._refused(cause, heard)

    def _opening(self, asked: Sequence[Asked]) -> list[Command]:
        """RSET and MAIL where this round can't go on with the transaction there is."""
        if not self._needs_transaction(asked):
            return []
        smtputf8 = asked[0].smtputf8
        opening = []
        if self._conversation.stage is Stage.MAIL:
            self._resets += 1
            opening = [wire.RSET]
        self._transactions += 1
        self._transaction = set()
        self._transaction_recipients = 0
        self._transaction_smtputf8 = smtputf8
        self._transaction_sender = sender = self._host.terms.sender
        return [*opening, wire.mail(sender, smtputf8=smtputf8)]

    def _needs_transaction(self, asked: Sequence[Asked]) -> bool:
        """Must MAIL be said before these, because there is none that bears them?"""
        if self._conversation.stage is not Stage.MAIL or self._host.one_each:
            return True
        if asked[0].smtputf8 and not self._transaction_smtputf8:  # those are alike
            return True
        if self._transaction_sender != self._host.terms.sender:
            return True
        offer = self._conversation.offer
        if self._transaction_recipients + len(asked) > (offer.recipients_max or RECIPIENTS_MAX):
            return True
        if offer.domains_max is None:
            return False
        return len(self._transaction | {domain_of(each) for each in asked}) > offer.domains_max

    def _drop_replies(self, heard: "_Heard") -> None:
        """They speak of the MAIL that was refused. The server counts them all the same."""
        self._refusals += sum(not turn.reply.positive for turn in heard.turns)
        heard.turns.clear()

    def _take(self, heard: "_Heard", count: int) -> None:
        """Give the oldest `count` questions the replies to their recipients."""
        turns, heard.turns = heard.turns[:count], heard.turns[count:]
        if not turns or not heard.transaction:
            return
        self._host.begin_answers()
        try:
            for turn in turns:
                asked = self._unanswered[0]
                usual = None if heard.noted else self._usual(asked, turn.reply)
                if usual is None:
                    self._recipient_answered(asked, turn, heard)
                else:
                    heard.first = True
                    self._unanswered.popleft()
                    self._host.settle(*usual)
        finally:
            self._host.end_answers(all_of_them=not self._unanswered)

    def _read_refusal(self, turn: Turn, reading: Reading) -> Cause:
        return Cause(
            Outcome.CONVERSATION_FAILED,
            reading.rule,
            f"{turn.command.verb} refused: {turn.reply.code} {turn.reply.text[:80]}",
            about_us=reading.about_us,
            spoke=True,
        )

    # -- other terms: TLS where it is demanded, another sender where this one is refused -----

    def _objects_to_terms(self, asked: Asked, reading: Reading, *, to_all: bool) -> bool:
        """Did the host refuse the terms, and is this one to be asked again on others?

        Each kind of sender is offered once for each question and host; TLS is started once
        on a connection, where it is offered. A demand in reply to MAIL is made `to_all`; one
        in reply to RCPT may be one domain's.
        """
        if reading.meaning is _TLS_DEMANDED and self._conversation.offer.starttls:
            self._tls_wanted, self._tls_of_all = True, self._tls_of_all or to_all
            self._host.terms.demand_tls(of_all=to_all)
            return True
        if reading.meaning is not _SENDER_REFUSED:
            return False
        if not self._host.terms.refuse(self._transaction_sender):
            return False
        refused_before, asked.sender_refused_by = asked.sender_refused_by, self._host
        return refused_before is not self._host

    def _refused(self, cause: Cause, heard: "_Heard") -> None:
        """The round is refused as a whole: those are asked again for whom other terms are left."""
        if heard.objection is not None and not heard.goodbye:
            refused, self._unanswered = self._unanswered, deque()
            for asked in refused:
                again = self._objects_to_terms(asked, heard.objection, to_all=True)
                (self._again if again else self._unanswered).append(asked)
            if refused and not self._unanswered:
                self._rounds -= 1  # the connection has served nobody with it
                return
        self._fail(cause, heard)

    def _put_back_again(self) -> None:
        """Those that wait for other terms are asked next, and it's the same conversation."""
        again, self._again = self._again, []
        for asked in reversed(again):
            if isinstance(asked, Question):
                asked.conversations -= 1
                asked.addresses_tried -= 1
                self._host.put_back(asked)
            elif asked.domain.awaiting:
                self._tests.appendleft(asked)
            else:  # it comes anew, behind a real one
                self._leave_untested(asked)

    async def _start_tls(self) -> None:
        """Go on within TLS, as the host demands; where that fails, so do those it was begun for."""
        again, self._again = self._again, []
        self._unanswered = deque(again)
        deadlines = [asked.deadline for asked in again if isinstance(asked, Question)]
        heard = _Heard([], False, self._heard.reused, first=True)
        heard.until = max(deadlines, default=float("inf"))
        self._resets += self._conversation.stage is Stage.MAIL
        cause, said_before = None, len(self._preamble)
        try:
            refusal = await start_tls(
                self._connection, self._host.helo_name, self._preamble, until=heard.until
            )
        except Overdue:
            self._let_go()
            return
        except GONE_WRONG as error:
            cause = cause_of(error, Step.STARTTLS)
            if isinstance(error, ConnectionLost) and len(self._preamble) == said_before:
                # It hung up right after its demand: others are asked on a fresh connection.
                heard.reused, heard.first = True, False
        else:
            if refusal is not None:
                reading = self._host.read(Step.STARTTLS, refusal.reply)
                cause = self._read_refusal(refusal, reading)
        if cause is None:
            self._host.terms.tls_works()
            self._again, self._unanswered = again, deque()
            return
        for asked in again:
            if isinstance(asked, Question) and asked.notes is not None:
                self._note_preamble(asked.notes)
        self._host.terms.tls_failed()
        self._fail(cause, heard, strike=self._tls_of_all)

    # -- replies to recipients ---------------------------------------------------------------

    def _recipient_answered(self, asked: Asked, turn: Turn, heard: "_Heard") -> None:
        reply, positive = turn.reply, turn.reply.positive
        reading = ACCEPTED if positive else self._host.read(Step.RCPT, reply)
        self._recipients += 1
        self._transaction_recipients += 1
        self._transaction.add(domain_of(asked))
        if not positive:
            self._refusals += 1
            self._refused_promptly = self._refused_promptly or not self._heard.late
        if reply.code == 421:
            heard.refusal = Cause(
                Outcome.CONVERSATION_FAILED,
                reading.rule,
                f"the server closes: 421 {reply.text[:80]}",
                about_us=reading.about_us,
                spoke=True,
            )
            heard.goodbye = True
            if isinstance(asked, Question):
                self._note_turn(asked, turn)
            return
        heard.first = self._fruitful = True
        self._unanswered.popleft()
        again = not positive and self._objects_to_terms(asked, reading, to_all=False)
        if again:
            self._again.append(asked)
        if isinstance(asked, CatchAllTest):
            for question in asked.domain.awaiting:
                self._note_turn(question, turn)
            if not again:
                self._test_answered(asked, reply, reading)
        else:
            if asked.notes is not None:
                self._note_turn(asked, turn)
            if not again:
                self._host.recipient_read(asked.domain_here, reply, reading)
                self._question_answered(asked, reply, reading)

    def _objected(self, asked: Asked, reading: Reading) -> bool:
        """Does the host want this recipient by itself, and can it have that?"""
        if reading.meaning is not Meaning.ANOTHER_RECIPIENT or self._transaction_recipients < 2:
            return False
        self._host.one_each = True
        asked.objections += 1
        return asked.objections <= OBJECTIONS_MAX

    def _test_answered(self, test: CatchAllTest, reply: Reply, reading: Reading) -> None:
        if self._objected(test, reading):
            self._tests.append(test)
            return
        if reply.positive:
            acceptance = Acceptance.ALL
        elif reply.code >= 500 and reading.meaning in (Meaning.NO_MAILBOX, Meaning.DISABLED):
            acceptance = Acceptance.SOME
        else:
            acceptance = Acceptance.UNTOLD
        self._host.learn(test.domain, acceptance)

    def _question_answered(self, question: Question, reply: Reply, reading: Reading) -> None:
        if question.settled:
            return
        if self._objected(question, reading):
            question.conversations -= 1  # it is the same conversation, one transaction later
            self._host.put_back(question)
        elif reply.positive:
            self._accepted(question, reading)
        else:
            self._host.settle(question, refusal_outcome(reply, reading), reading.rule)

    def _accepted(self, question: Question, reading: Reading) -> None:
        domain: Domain = question.domain_here
        known = domain.known(self._connection.heard_at)
        if known is not None:
            if question.notes is not None:
                question.notes.cached.append("catch_all")
            self._host.settle(question, known.value, deciding_rule(known, reading.rule))
            return
        question.accepted = True
        question.rule = reading.rule
        domain.awaiting.append(question)
        if not domain.testing:
            self._tests.append(self._new_test(domain))

    # -- when it goes wrong ------------------------------------------------------------------

    def _fail(self, cause: Cause, heard: "_Heard", *, strike: bool = True) -> None:
        """Give each question of the round that was not answered its way on.

        On a reused connection that fails before its first reply all of them are
        asked once more on a fresh one. Otherwise what failed is the oldest
        unanswered one's; those behind it were only in its way. `strike`: it is the host's
        failure, and not that of one domain there.
        """
        self._leaving = True
        reused = heard.reused
        early = strike and not (reused or heard.transaction or self._transaction_smtputf8)
        hung_up = heard.goodbye or (heard.transaction and cause.hung_up)
        self._host.session_failed(
            cause, before_recipients=early, late=self._late, at_recipient=heard.goodbye
        )
        silent_or_garbled = heard.transaction and cause.rule in (_GAVE_WAY.rule, _GARBLED)
        if (hung_up or silent_or_garbled) and self._unanswered and not self._fruitful:
            oldest = self._unanswered[0]
            domain = oldest.domain_here if isinstance(oldest, Question) else oldest.domain
            self._host.session_barren(cause, domain)
        if reused and not heard.first:
            self._host.send_idle_home()  # they have been kept as long: hardly any better
        unanswered, self._unanswered = self._unanswered, deque()
        head = True
        for asked in unanswered:
            if isinstance(asked, CatchAllTest):
                if head and heard.transaction and not asked.abandoned:
                    self._host.learn(asked.domain, Acceptance.UNTOLD)
                else:
                    self._leave_untested(asked)
            elif asked.settled or asked in self._elsewhere:
                pass
            elif reused and not heard.first and not asked.asked_again:
                asked.asked_again = True
                asked.conversations -= 1
                self._host.put_back(asked)
            elif not heard.transaction:
                self._host.fail_over(asked, cause)
            elif head and (cause.outcome is Outcome.TIMED_OUT or heard.goodbye):
                self._host.settle(asked, cause.outcome, cause.rule)
            elif head or asked.exhausted:
                self._host.fail_over(asked, cause)
            else:
                self._host.put_back(asked)
            head = False

    def _give_way(self) -> None:
        """Let the late recipient be asked again when others have been; those behind it are already."""
        self._leaving = True
        self._host.session_gave_way()
        unanswered, self._unanswered = self._unanswered, deque()
        for asked in unanswered:
            if isinstance(asked, CatchAllTest):
                if not asked.abandoned:
                    self._host.learn(asked.domain, Acceptance.UNTOLD)
            elif not asked.settled and asked not in self._elsewhere:
                asked.gave_way = True
                asked.conversations -= 1
                asked.addresses_tried -= 1
                self._host.put_last(asked)

    def _let_go(self) -> None:
        """The clocks of all that were asked have run out: nobody is to blame, nothing is learnt."""
        self._leaving = True
        unanswered, self._unanswered = self._unanswered, deque()
        for asked in unanswered:
            if isinstance(asked, Question):
                self._host.settle(asked, Outcome.TIMED_OUT, "clock.overall")
            else:
                self._leave_untested(asked)

    def _put_back_unproven(self) -> None:
        """The session was cut before the proof: its questions wait for another connection."""
        if not self._unproven.verdicts:
            return
        verdicts = self._unproven.take_all()
        self._host.end_hold(len(verdicts))
        for question, _, _ in reversed(verdicts):
            if not question.settled:
                self._ask_elsewhere(question)

    def _put_back_unanswered(self) -> None:
        """Those whose round was cut wait for another seat; nobody is to blame."""
        for asked in reversed(self._unanswered):
            if not isinstance(asked, Question) or asked.settled or asked in self._elsewhere:
                continue
            if asked.exhausted:
                self._host.settle(asked, Outcome.TIMED_OUT, "clock.overall")
            else:
                self._host.put_back(asked)

    def _give_up_tests(self) -> None:
        """The tests that were still to be asked here are nobody's any more."""
        for asked in (*self._unanswered, *self._tests):
            if isinstance(asked, CatchAllTest):
                self._leave_untested(asked)
        self._unanswered.clear()
        self._tests.clear()

    # -- what is written down for an explanation ---------------------------------------------

    def _note_start(self, notes: Notes, reused: bool) -> None:
        if notes.session is not self:
            notes.tried.append(Tried(self._host.name, self.address, "answered"))
            if reused:
                notes.cached.append("connection")
        self._note_preamble(notes)

    def _note_preamble(self, notes: Notes) -> None:
        """What was said before any question, as far as it isn't written down yet."""
        if notes.session is not self:
            notes.session, notes.session_lines = self, 0
        for at, by_us, text in self._preamble[notes.session_lines :]:
            notes.add_line(at, by_us, text)
        notes.session_lines = len(self._preamble)

    def _note_opening(self, turn: Turn) -> None:
        for asked in self._unanswered:
            if isinstance(asked, Question):
                self._note_turn(asked, turn)

    def _note_turn(self, question: Question, turn: Turn) -> None:
        if question.notes is not None:
            for at, by_us, text in self._connection.lines_of(turn):
                question.notes.add_line(at, by_us, text)


class _Heard(msgspec.Struct, eq=False):
    """A round, and what has been heard of it so far."""

    asked: list[Asked]
    pipelined: bool
    reused: bool  # the connection has served a round before
    recipients: list[Command] = []
    alone: bool = False  # one recipient in step, and nobody wants to know the words
    noted: bool = False  # somebody does
    place: int = 0  # the recipient whose reply comes next
    proven: int = 0  # so many of the replies are surely their recipients'
    first: bool = False  # any reply at all
    transaction: bool = False  # MAIL was accepted: replies speak of recipients
    late: bool = False  # one of them was late
    goodbye: bool = False  # 421 in answer to a recipient
    refusal: Cause | None = None
    objection: Reading | None = None  # how the refusal of RSET or MAIL was read
    turns: list[Turn] = []  # replies to recipients, not yet given out
    until: float = 0.0  # the latest of their questions' deadlines: no need to listen longer
    began: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    gap_s_max: float = 0.0  # between two of its replies

    @property
    def round_s(self) -> float:
        return self.last_at - self.began

    @property
    def gap_s(self) -> float:
        """Between two replies of the round; a round of one says nothing and gives -1."""
        return (self.last_at - self.first_at) / (self.place - 1) if self.place > 1 else -1.0


def domain_of(asked: Asked) -> str:
    return asked.domain if isinstance(asked, Question) else asked.domain.name


def refusal_outcome(reply: Reply, reading: Reading) -> Outcome:
    """What a 4xx (but 421) or 5xx to RCPT makes of an address."""
    if reading.meaning is Meaning.MAILBOX_FULL:
        return Outcome.MAILBOX_FULL
    if reply.code < 500:
        return Outcome.TEMPORARY
    if reading.meaning in (Meaning.NO_MAILBOX, Meaning.DISABLED):
        return Outcome.UNDELIVERABLE
    return Outcome.REFUSED_BY_POLICY
