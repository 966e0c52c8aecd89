"""Metering for many at once: one transaction for all who ask together, a few statements each.

Whatever changes what is reserved, used or refused is done here, jobs that begin or
come to an outcome too. Between reading and writing all are weighed one after
another by our own hand, so that a thousand cost hardly more questions than one.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from storage import postgres_accounts as accounts
from storage import postgres_jobs as jobs
from storage import postgres_ledgers as ledgers
from storage import postgres_letters as letters
from storage import postgres_onces as onces
from storage import postgres_outcomes as outcomes
from storage import postgres_refusals as refusals
from storage import postgres_reservations as reservations
from storage import postgres_usage as usage
from storage.postgres_clerk import Raised
from storage.postgres_ledgers import Who
from storage.postgres_server import Session
from storage.postgres_wishes import (
    Abandoned,
    Begin,
    Extend,
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
from storage.records import Job, Key, Reservation, UsageRow
from storage.sqlite_rows import micros

T = TypeVar("T", Post, Begin, NewKey)
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

    def is_there(self, db: Session) -> bool:
        for kind, statement in THERE.items():
            if kind in self.values:
                return bool(db.one(statement, self.values[kind]))
        return False


@dataclass(frozen=True, slots=True)
class Metering:
    """Work for a clerk."""

    group_max: int = GROUP_MAX
    repeatable: bool = True

    def __call__(self, db: Session, asked: Sequence[Wish], marker: Marker | None) -> list[Any]:
        return _Meeting(db, asked).hold(marker)


class _Meeting:
    """One transaction. What settles comes before what is weighed: its units are free by then."""

    def __init__(self, db: Session, asked: Sequence[Wish]) -> None:
        self._db = db
        self._asked = asked
        self._answers: list[Any] = [None] * len(asked)
        self._who: dict[str, Who] = {}
        self._numbers: dict[str, int] = {}
        self._read: ledgers.Ledgers | None = None
        self._reserved: list[reservations.Row] = []
        self._spent: list[tuple[Spend, Who]] = []
        self._promised: list[tuple[Any, ...]] = []
        self._marks: dict[str, tuple[Any, ...]] = {}

    def hold(self, marker: Marker | None) -> list[Any]:
        of_accounts = [wish for wish in self._asked if isinstance(wish, OfAccount)]
        account_ids = list({wish.account_id for wish in of_accounts})
        key_ids = [wish.caller.key.id for wish in self._asked if not isinstance(wish, OfAccount)]
        key_ids = list(set(key_ids))
        db = self._db
        usage.check_partitions(db, self._rows())
        with db.db.pipeline():
            db.begin()
            locked = db.execute(ledgers.LOCK, [key_ids, account_ids])
            found = db.execute(ledgers.WHO, [key_ids])
            numbers = db.execute(NUMBERS, [account_ids])
        now = db.instant(locked.fetchall()[0][0])
        if marker and marker.is_there(db):
            db.execute("ROLLBACK")
            return marker.outcomes
        self._who = {row[0]: ledgers.who_of(*row[1:]) for row in found.fetchall()}
        self._numbers = dict(numbers.fetchall())
        self._check_known()
        self._use(now)
        self._answer_accounts(now)
        refusals.log(db, now, [(wish, who) for _, wish, who in self._those(Refuse)])
        self._weigh(now)
        self._write(now)
        return self._answers

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
                self._answers[place] = Raised(KeyError(wish.caller.key.id))

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

        new = self._of(NewKey)
        keys = accounts.create_keys(self._db, now, [(wish, number) for _, wish, number in new])
        for (place, _, _), key in zip(new, keys, strict=True):
            self._answers[place] = key
            if isinstance(key, Key):
                self._marks["key"] = (key.id,)

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

    def _use(self, now: datetime) -> None:
        """Log and count what is settled and what jobs have verified; give back the rest."""
        db = self._db
        settled = self._settled(now)
        told = self._told()
        verified = [(each, who) for each, _, who in told if isinstance(each, Verified)]
        used = [(who, wish.rows, wish.metered) for wish, who in settled]
        used += [(who, [each.row], each.metered) for each, who in verified]
        if not used and not told:
            return
        reservations.give_back(db, [wish for wish, _ in settled])
        self._log(now, used)
        outcomes.write(db, now, [(each, kept) for each, kept, _ in told])
        ended = Counter(kept.account for each, kept, _ in told if not isinstance(each, Tried))
        jobs.promise(db, {account: -count for account, count in ended.items()})

    def _log(self, now: datetime, used: Sequence[Used]) -> None:
        """What was used, and what of it goes to the meter."""
        usage.log(self._db, [(who, rows) for who, rows, _ in used])
        metered: Counter[int] = Counter()
        for who, rows, wanted in used:
            if wanted and who.account.tier != "free":
                metered[who.account_number] += sum(row.billable for row in rows)
        letters.raise_meters(self._db, now, +metered)

    def _settled(self, now: datetime) -> list[tuple[Settle, Who]]:
        those = [(wish, who) for _, wish, who in self._those(Settle)]
        if not those:
            return []
        first = reservations.first_of(self._db, now, those)
        for part in first:
            self._marks["settlement"] = part
        return list(first.values())

    def _told(self) -> list[tuple[Any, Any, Who]]:
        """The outcomes of jobs that count; to each it is said whether it does."""
        those = self._those(Verified, Tried, Abandoned)
        if not those:
            return []
        held = outcomes.held(self._db, [wish for _, wish, _ in those])
        told = []
        for (place, wish, who), kept in zip(those, held, strict=True):
            self._answers[place] = kept is not None
            if kept:
                self._marks["outcome"] = wish.claim.job.id, wish.claim.fence
                told.append((wish, kept[1], who))
        return told

    # what is granted

    def _weigh(self, now: datetime) -> None:
        if promises := self._those(Promise):
            self._refuse_kept([(place, wish) for place, wish, _ in promises])
        those = self._those(Reserve, Spend, Promise)
        if not those:
            return
        self._read = ledgers.read(self._db, now, [who for _, _, who in those])
        for place, wish, who in those:
            try:
                refusal = self._read.weigh(who, wish.units, wish.weigh)
            except Exception as error:
                self._answers[place] = Raised(error)
                continue
            if refusal is not None:
                self._answers[place] = refusal
            elif isinstance(wish, Spend):
                self._read.use(who, wish.rows)
                self._spent.append((wish, who))
            else:
                self._read.reserve(who, wish.units)
                self._answers[place] = self._kept(wish, who, now)
        self._spend(now)

    def _spend(self, now: datetime) -> None:
        """What was granted is used already; one settlement shows that all of it was committed."""
        if not self._spent:
            return
        self._marks["settlement"] = reservations.settle_nothing(self._db, now)
        self._log(now, [(who, wish.rows, wish.metered) for wish, who in self._spent])

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
        owner = order.id, who.account_number, who.key_number
        place = order.email, order.webhook, order.host
        self._promised.append((*owner, *place, wish.secret, "pending", at, at))
        self._marks["job"] = (order.id,)
        return Job(order.id, wish.caller.account.id, *place, "pending", now, now)

    def _write(self, now: datetime) -> None:
        """And commit, all in one turn."""
        db = self._db
        extended = [wish for _, wish, _ in self._those(Extend)]
        db.marker = Marker(self._marks, self._answers)
        with db.db.pipeline():
            reservations.extend(db, now, extended)
            if self._read:
                self._read.write(db)
            if self._reserved:
                reservations.keep(db, now, self._reserved)
            if self._promised:
                jobs.keep(db, self._promised)
            db.commit()
