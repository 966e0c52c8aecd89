"""Metering for many at once: one transaction for all who ask together, a few statements each.

Whatever changes what is reserved, used or refused is done here, jobs that begin or
come to an outcome too. Between reading and writing all are weighed one after
another by our own hand, so that a thousand cost hardly more questions than one.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg

from mailprobe.storage.columns import instant, micros
from mailprobe.storage.contract import IdempotencyInProgress
from mailprobe.storage.encrypted_columns import SealedFirst
from mailprobe.storage.postgres import accounts, jobs, ledgers, refusals, reservations
from mailprobe.storage.postgres import idempotency as onces
from mailprobe.storage.postgres import job_outcomes as outcomes
from mailprobe.storage.postgres import outbox as letters
from mailprobe.storage.postgres import rate_window as windows
from mailprobe.storage.postgres import usage_log as usage
from mailprobe.storage.postgres.driver.batch_executor import Raised
from mailprobe.storage.postgres.driver.commands import (
    Abandoned,
    Begin,
    Extend,
    Finish,
    NewKey,
    OfAccount,
    Post,
    Promise,
    Refuse,
    Reserve,
    Settle,
    Spend,
    Tried,
    Verified,
    Wish,
)
from mailprobe.storage.postgres.driver.server import Session, Writes
from mailprobe.storage.postgres.ledgers import Who
from mailprobe.storage.records import Job, Key, Once, Reservation, UsageRow

T = TypeVar("T", Post, Begin, Finish, NewKey)
Used = tuple[Who, Sequence[UsageRow], bool]  # to the meter too?

GROUP_MAX = 500  # in one transaction

NUMBERS = "SELECT id, number FROM accounts WHERE id = ANY(%s)"
THERE = {  # what is there once it was committed
    "reservation": "SELECT 1 FROM reservations WHERE id = %s",
    "settlement": "SELECT 1 FROM settlements WHERE reservation = %s AND part = %s",
    "job": "SELECT 1 FROM jobs WHERE id = %s",
    "key": "SELECT 1 FROM keys WHERE id = %s",
    "letter": "SELECT 1 FROM letters WHERE kind = %s AND account = %s AND name = %s",
    "outcome": "SELECT 1 FROM jobs WHERE id = %s AND fence = %s AND lease_until IS NULL",
}


@dataclass(frozen=True, slots=True)
class Marker:
    """What shows whether the transaction was committed, and what it gave.

    Where there is none all that was written were refusals, which weigh on nothing,
    and longer leases: they may be written again.
    """

    values: dict[str, tuple[Any, ...]]
    outcomes: list[Any]

    def is_there(self, db: Session, fresh: Collection[reservations.Part]) -> bool:
        """Was it committed? `fresh` are the parts that this very transaction has just settled."""
        for kind, statement in THERE.items():
            if kind in self.values:
                value = self.values[kind]
                return value not in fresh and bool(db.one(statement, value))
        return False


@dataclass(frozen=True, slots=True)
class Metering:
    """Work for a clerk."""

    group_max: int = GROUP_MAX
    repeatable: bool = True

    def __call__(self, db: Session, asked: Sequence[Wish], marker: Marker | None) -> list[Any]:
        return _Meeting(db, asked).hold(marker)


class _Meeting:
    """One transaction. What settles comes before what is weighed: its units are free by then.

    Two turns to the server and back where nothing but units is asked for: in the first
    the accounts are locked, reservations settled and the ledgers read, in the second all
    is written. Each statement costs 0.1 ms and more, on both sides.
    """

    def __init__(self, db: Session, asked: Sequence[Wish]) -> None:
        self._db = db
        self._asked = asked
        self._answers: list[Any] = [None] * len(asked)
        self._who: dict[str, Who] = {}
        self._numbers: dict[str, int] = {}
        self._ledgers: ledgers.Ledgers | None = None
        self._reserved: list[reservations.Row] = []
        self._used: list[Used] = []
        self._spent = False
        self._promised: list[tuple[Any, ...]] = []
        self._running: set[Once] = set()  # of those whose answers are to be kept
        self._mended = False  # windows
        self._late: set[reservations.Part] = set()
        self._firsts: list[tuple[int, SealedFirst]] = []
        self._marks: dict[str, tuple[Any, ...]] = {}

    def hold(self, marker: Marker | None) -> list[Any]:
        db = self._db
        usage.check_partitions(db, self._rows())
        parts = reservations.parts_of(wish for wish in self._asked if isinstance(wish, Settle))
        now, fresh = self._open(parts)
        if marker and marker.is_there(db, fresh):
            db.rollback()
            return marker.outcomes
        self._check_known()
        self._refuse_late()
        self._settle({part: parts[part] for part in fresh})
        self._tell(now)
        self._answer_accounts(now)
        refusals.log(db, now, [(wish, who) for _, wish, who in self._those(Refuse)])
        self._weigh(now)
        self._write(now)
        return self._answers

    def _open(
        self, parts: dict[reservations.Part, Settle]
    ) -> tuple[datetime, list[reservations.Part]]:
        """Lock the accounts, read the clock and whatever weighs; which parts are settled first."""
        db = self._db
        of_accounts = [wish for wish in self._asked if isinstance(wish, OfAccount)]
        accounts = list({wish.account_id for wish in of_accounts})
        keys = list({wish.caller.key.id for wish in self._asked if not isinstance(wish, OfAccount)})
        weighs = any(isinstance(wish, Reserve | Spend | Promise) for wish in self._asked)
        settled = numbers = None
        with db.db.pipeline():
            db.begin()
            locked = db.execute(ledgers.LOCK, [keys, accounts])
            given = db.given_moment(locked)
            if given is not None:
                db.execute(ledgers.SET_MOMENT, [str(micros(given))])
            self._look_at_onces()
            if parts := self._in_time(parts):
                settled = reservations.settle(db, parts)
            found = db.execute(ledgers.LOOK if weighs else ledgers.WHO, {"keys": keys})
            if accounts:
                numbers = db.execute(NUMBERS, [accounts])
        now = given or instant(locked.fetchall()[0][0])
        rows = found.fetchall()
        if weighs:
            self._ledgers = ledgers.Ledgers(db, now, rows)
            if ahead := self._ledgers.ahead:
                windows.bring_back(db, ahead, micros(now))
                self._ledgers = ledgers.Ledgers(db, now, db.all(ledgers.LOOK, {"keys": keys}))
                self._mended = True
            self._who = self._ledgers.who
        else:
            self._who = {key_id: ledgers.who_of(*columns) for key_id, *columns in rows}
        self._numbers = dict(numbers.fetchall()) if numbers else {}
        return now, settled.fetchall() if settled else []

    # answers that are kept with what was done

    def _look_at_onces(self) -> None:
        """Which of the requests with an idempotency key run still; asked where there is one."""
        onces_asked = [once for wish in self._asked if (once := _once_of(wish))]
        if onces_asked:
            self._running = onces.running(self._db, onces_asked)

    def _is_late(self, wish: Wish) -> bool:
        """Its lease has ended, and another request has begun since."""
        once = _once_of(wish)
        return once is not None and once not in self._running

    def _in_time(self, parts: dict[reservations.Part, Settle]) -> dict[reservations.Part, Settle]:
        """Those that may be settled. One that was settled already changes nothing, late or not."""
        late = [part for part, wish in parts.items() if self._is_late(wish)]
        if not late:
            return parts
        settled = reservations.settled(self._db, late)
        self._late = {part for part in late if part not in settled}
        return {part: wish for part, wish in parts.items() if part not in self._late}

    def _refuse_late(self) -> None:
        for place, wish in enumerate(self._asked):
            if isinstance(wish, Settle):
                late = reservations.part_of(wish) in self._late
            else:
                late = self._is_late(wish)
            if late and self._answers[place] is None:
                self._answers[place] = Raised(IdempotencyInProgress())

    def _keep_answer(self, account: int, first: SealedFirst | None) -> None:
        if first is not None:
            self._firsts.append((account, first))

    def _rows(self) -> Iterator[UsageRow]:
        """Whatever may be logged."""
        for wish in self._asked:
            if isinstance(wish, Settle | Spend):
                yield from wish.rows
            elif isinstance(wish, Verified):
                yield wish.row

    def _check_known(self) -> None:
        for place, wish in enumerate(self._asked):
            if isinstance(wish, OfAccount):
                if wish.account_id not in self._numbers:
                    self._answers[place] = Raised(KeyError(wish.account_id))
            elif wish.caller.key.id not in self._who:
                unknown = KeyError(wish.caller.key.id)
                if isinstance(wish, Settle):
                    raise unknown  # it was settled by now, and nothing of it may stay
                self._answers[place] = Raised(unknown)

    def _answer_accounts(self, now: datetime) -> None:
        """Letters that are posted, idempotency keys, and keys."""
        posts = self._of(Post)
        told = letters.post(self._db, now, [(wish, number) for _, wish, number in posts])
        for (place, wish, number), posted in zip(posts, told, strict=True):
            self._answers[place] = posted
            if posted:
                self._marks["letter"] = wish.kind, number, wish.name
        begun = self._of(Begin)
        answers = onces.begin(self._db, now, [(wish, number) for _, wish, number in begun])
        for (place, _, _), answer in zip(begun, answers, strict=True):
            self._answers[place] = answer

        onces.finish(self._db, [(wish, number) for _, wish, number in self._of(Finish)])
        new = self._of(NewKey)
        keys = accounts.create_keys(self._db, now, [(wish, number) for _, wish, number in new])
        for (place, asked, number), key in zip(new, keys, strict=True):
            self._answers[place] = key
            if isinstance(key, Key):
                self._marks["key"] = (key.id,)
                self._keep_answer(number, asked.answer(key) if asked.answer else None)

    def _of(self, kind: type[T]) -> list[tuple[int, T, int]]:
        """The wishes of an account: their places, and its number."""
        return [
            (place, wish, self._numbers[wish.account_id])
            for place, wish in enumerate(self._asked)
            if isinstance(wish, kind) and self._answers[place] is None
        ]

    def _those(self, *kinds: type[Any]) -> list[tuple[int, Any, Who]]:
        """The wishes of these kinds that can be met: their places, and who has them."""
        return [
            (place, wish, self._who[wish.caller.key.id])
            for place, wish in enumerate(self._asked)
            if isinstance(wish, kinds) and self._answers[place] is None
        ]

    # what was used

    def _settle(self, fresh: dict[reservations.Part, Settle]) -> None:
        for part, wish in fresh.items():
            self._marks["settlement"] = part
            who = self._who[wish.caller.key.id]
            self._use(who, wish.rows, wish.metered)
            self._keep_answer(who.account_number, wish.first)

    def _use(self, who: Who, rows: Sequence[UsageRow], metered: bool) -> None:
        """It weighs at once, and is logged and counted at the end."""
        if not rows:
            return
        self._used.append((who, rows, metered))
        if self._ledgers:
            self._ledgers.use(who, rows)

    def _tell(self, now: datetime) -> None:
        """The outcomes of jobs that count; to each it is said whether it does."""
        those = self._those(Verified, Tried, Abandoned)
        if not those:
            return
        held = outcomes.held(self._db, [wish for _, wish, _ in those])
        told = []
        verified: Counter[int] = Counter()  # no longer pending
        ended: Counter[int] = Counter()
        for (place, wish, who), kept in zip(those, held, strict=True):
            self._answers[place] = kept is not None
            if kept is None:
                continue
            self._marks["outcome"] = wish.claim.job.id, wish.claim.fence
            told.append((wish, kept[1]))
            if not isinstance(wish, Verified) and (
                isinstance(wish, Abandoned) or wish.due_at is None
            ):
                ended[kept[1].account] -= 1
            if isinstance(wish, Tried):
                continue
            verified[kept[1].account] -= 1
            if self._ledgers:
                self._ledgers.reserve(kept[1].account, -1)
            if isinstance(wish, Verified):
                self._use(who, [wish.row], wish.metered)
        outcomes.write(self._db, now, told)
        jobs.count(self._db, verified, ended)

    # what is granted

    def _weigh(self, now: datetime) -> None:
        if promises := self._those(Promise):
            self._refuse_kept([(place, wish) for place, wish, _ in promises])
        for place, wish, who in self._those(Reserve, Spend, Promise):
            assert self._ledgers
            try:
                refusal = self._ledgers.weigh(who, wish.units, wish.weigh)
            except psycopg.Error:  # of the window that was looked at
                raise
            except Exception as error:
                self._answers[place] = Raised(error)
                continue
            if refusal is not None:
                self._answers[place] = refusal
            elif isinstance(wish, Spend):
                self._spent = True
                self._use(who, wish.rows, wish.metered)
                self._keep_answer(who.account_number, wish.first)
            else:
                self._ledgers.reserve(who.account_number, wish.units)
                self._answers[place] = self._kept(wish, who, now)

    def _refuse_kept(self, those: Sequence[tuple[int, Promise]]) -> None:
        """A job's id is kept once; of those that come together, the first's."""
        kept = jobs.kept_of(self._db, [wish.order.id for _, wish in those])
        for place, wish in those:
            if wish.order.id in kept:
                self._answers[place] = Raised(ValueError("a job with this id is kept already"))
            kept.add(wish.order.id)

    def _kept(self, wish: Reserve | Promise, who: Who, now: datetime) -> Reservation | Job:
        if isinstance(wish, Promise):
            return self._promise(wish, who, now)
        return self._reserve(wish, who, now)

    def _reserve(self, wish: Reserve, who: Who, now: datetime) -> Reservation:
        id = reservations.new_id(now)
        until = micros(now + timedelta(seconds=wish.lease_s))
        self._reserved.append((id, who.account_number, wish.units, until))
        self._marks["reservation"] = (id,)
        return Reservation(str(id), wish.caller, wish.units, now)

    def _promise(self, wish: Promise, who: Who, now: datetime) -> Job:
        order, at = wish.order, micros(now)
        self._keep_answer(who.account_number, wish.first)
        owner = order.id, who.account_number, who.key_number
        place = order.email, order.webhook, order.host
        self._promised.append((*owner, *place, wish.secret, "pending", at, at))
        self._marks["job"] = (order.id,)
        return Job(order.id, wish.caller.account.id, *place, "pending", now, now)

    def _write(self, now: datetime) -> None:
        """And commit, all in one turn. Where all were refused there is nothing to keep."""
        db = self._db
        extended = [wish for _, wish, _ in self._those(Extend)]
        writes = self._writes(now)
        if (
            not writes
            and not self._mended
            and all(isinstance(wish, Reserve | Spend) for wish in self._asked)
        ):
            db.rollback()
            return
        with db.db.pipeline():
            reservations.extend(db, now, extended)
            db.marker = Marker(self._marks, self._answers)
            writes.send(db)
            if self._promised:
                jobs.keep(db, self._promised)
            db.commit()

    def _writes(self, now: datetime) -> Writes:
        writes = Writes()
        if self._spent:
            self._marks["settlement"] = reservations.mark(writes, now)
        usage.log(writes, [(who, rows) for who, rows, _ in self._used])
        metered: Counter[int] = Counter()
        for who, rows, wanted in self._used:
            if wanted and who.account.tier != "free":
                metered[who.account_number] += sum(row.billable for row in rows)
        onces.keep(writes, self._firsts)
        letters.raise_meters(writes, now, +metered)
        if self._ledgers:
            self._ledgers.write(writes)
        if self._reserved:
            accounts = {account for _, account, *_ in self._reserved}
            seen = self._ledgers.seen if self._ledgers else {}
            if ended := [account for account in accounts if seen[account].any_ended]:
                reservations.drop_ended(writes, now, ended)
            reservations.keep(writes, self._reserved)
        return writes


def _once_of(wish: Wish) -> Once | None:
    """The request whose answer is to be kept with what is done."""
    if isinstance(wish, NewKey):
        return wish.once
    if isinstance(wish, Spend | Promise | Settle) and wish.first:
        return wish.first.once
    return None
