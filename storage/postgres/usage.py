"""Usage for many callers at once: one transaction for a batch, a few statements each.

Everything that changes what is reserved, used or refused is done here, including jobs
that are created or have an outcome. Between reading and writing, the limits of all
calls are checked one after another in Python, so a thousand cost few more queries than one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, get_args, get_origin

import psycopg
from msgspec import Struct

from .. import idempotency, outbox
from ..accounts import create_keys
from ..base.columns import day_of, instant, micros
from ..commands import (
    AbandonJob,
    AccountCommand,
    BatchCommand,
    BeginIdempotent,
    CreateJob,
    CreateKey,
    EncryptedFirst,
    EnqueueMessage,
    Extend,
    FinishIdempotent,
    JobAttempted,
    JobVerified,
    LogRefusal,
    Outcome,
    PostponeJob,
    Raised,
    Reserve,
    Settle,
    Spend,
)
from ..contract import IdempotencyInProgress
from ..database import Database
from ..jobs import JobRow, held_jobs, insert_jobs, new_job_values, write_outcomes
from ..list_jobs import list_results
from ..records import IdempotencyRecord, Job, Key, Reservation, UsageRow, new_job
from ..usage import CallerRow, log, log_refusals, reclaim_window
from . import ledgers, reservations
from .database import PostgresDatabase
from .driver.database_thread import BatchWork
from .driver.partitions import USAGE, check_partitions
from .driver.server import TransactionConnection, Writes, columns_of

R = TypeVar("R")
T = TypeVar("T", EnqueueMessage, BeginIdempotent, FinishIdempotent, CreateKey)
Used = tuple[CallerRow, Sequence[UsageRow], bool]  # True: also count for the billing meter

BATCHED = [get_origin(kind) or kind for kind in get_args(BatchCommand)]
GROUP_MAX = 500  # in one transaction

ANSWERS = (
    "UPDATE idempotency_records SET answer = given.answer"
    " FROM unnest(%s::bigint[], %s::text[], %s::bytea[]) AS given (account, key, answer)"
    " WHERE idempotency_records.account = given.account AND idempotency_records.key = given.key"
)
METERS = outbox.raise_meters(
    "(SELECT * FROM unnest(:accounts::bigint[], :counts::bigint[]) AS sums (account, count))"
)

NUMBERS = "SELECT id, number FROM accounts WHERE id = ANY(%s)"
THERE = {  # each finds a row that exists once the batch was committed
    "reservation": "SELECT 1 FROM reservations WHERE id = %s",
    "settlement": "SELECT 1 FROM settlements WHERE reservation = %s AND part = %s",
    "job": "SELECT 1 FROM jobs WHERE id = %s",
    "key": "SELECT 1 FROM keys WHERE id = %s",
    "message": "SELECT 1 FROM outbox WHERE kind = %s AND account = %s AND name = %s",
    "outcome": "SELECT 1 FROM jobs WHERE id = %s AND fence = %s AND lease_until IS NULL",
    "request": "SELECT 1 FROM idempotency_records WHERE account = %s AND key = %s AND lease_until = %s",
}


class Marker(Struct, frozen=True):
    """Rows that show whether the transaction was committed, and its outcomes.

    Without such rows the batch wrote only refusals, which count towards no limit, and
    lease extensions: they may be written again.
    """

    values: dict[str, tuple[object, ...]]
    outcomes: list[object]

    def is_there(self, db: TransactionConnection, fresh: Collection[reservations.Part]) -> bool:
        """Return whether it was committed. `fresh` are the parts that this transaction has just settled."""
        for kind, statement in THERE.items():
            if kind in self.values:
                value = self.values[kind]
                return value not in fresh and bool(db.one(statement, value))
        return False


def _meter(
    db: TransactionConnection, asked: Sequence[BatchCommand], marker: Marker | None
) -> list[object]:
    """A batch of commands in one transaction."""
    return _MeteringBatch(db, asked).hold(marker)


METERING = BatchWork(_meter, GROUP_MAX)  # for the database threads


class _MeteringBatch:
    """One transaction. Settlements come before limit checks: their units are free by then.

    Two round trips if only units are requested: the first locks the accounts, settles
    reservations and reads the ledgers, the second writes everything. Each statement costs
    0.1 ms and more, on both sides.
    """

    def __init__(self, db: TransactionConnection, asked: Sequence[BatchCommand]) -> None:
        self._db = db
        self._commands = asked
        self._answers: list[object] = [None] * len(asked)
        self._caller: dict[str, CallerRow] = {}
        self._numbers: dict[str, int] = {}
        self._ledgers: ledgers.Ledgers | None = None
        self._reserved: list[reservations.Row] = []
        self._used: list[Used] = []
        self._spent = False
        self._created: list[tuple[object, ...]] = []
        self._running: set[IdempotencyRecord] = set()  # records whose first request still runs
        self._mended = False  # True: windows were corrected
        self._late: set[reservations.Part] = set()
        self._firsts: list[tuple[int, EncryptedFirst]] = []
        self._marks: dict[str, tuple[object, ...]] = {}

    def hold(self, marker: Marker | None) -> list[object]:
        db = self._db
        check_partitions(db, {(USAGE, day_of(row.at)) for row in self._rows()})
        parts = reservations.parts_of(
            command for command in self._commands if isinstance(command, Settle)
        )
        now, fresh = self._open(parts)
        if marker and marker.is_there(db, fresh):
            db.rollback()
            return marker.outcomes
        self._check_known()
        self._refuse_late()
        self._settle({part: parts[part] for part in fresh}, now)
        self._complete(now)
        self._answer_accounts(now)
        refused = [(command, who) for _, command, who in self._those(LogRefusal)]
        log_refusals(PostgresDatabase(db), now, refused)
        self._check_limits(now)
        self._write(now)
        return self._answers

    def _open(
        self, parts: dict[reservations.Part, Settle]
    ) -> tuple[datetime, list[reservations.Part]]:
        """Lock the accounts, settle, and read the clock and the ledgers; returns the newly settled parts."""
        db = self._db
        of_accounts = [command for command in self._commands if isinstance(command, AccountCommand)]
        accounts = list({command.account_id for command in of_accounts})
        keys = list(
            {
                command.caller.key.id
                for command in self._commands
                if not isinstance(command, AccountCommand)
            }
        )
        checks_limits = any(
            isinstance(command, Reserve | Spend | CreateJob) for command in self._commands
        )
        settled = numbers = None
        with db.db.pipeline():
            db.begin()
            locked = db.execute(ledgers.LOCK, [keys, accounts])
            given = db.given_moment(locked)
            if given is not None:
                db.execute(ledgers.SET_MOMENT, [str(micros(given))])
            self._read_idempotency()
            if parts := self._in_time(parts):
                settled = reservations.settle(db, parts)
            found = db.execute(ledgers.READ if checks_limits else ledgers.CALLER, {"keys": keys})
            if accounts:
                numbers = db.execute(NUMBERS, [accounts])
        now = given or instant(locked.fetchall()[0][0])
        rows = found.fetchall()
        if checks_limits:
            self._ledgers = ledgers.Ledgers(db, now, rows)
            if ahead := self._ledgers.ahead:
                for key in ahead:
                    reclaim_window(PostgresDatabase(db), key, micros(now))
                self._ledgers = ledgers.Ledgers(db, now, db.all(ledgers.READ, {"keys": keys}))
                self._mended = True
            self._caller = self._ledgers.caller
        else:
            self._caller = {key_id: ledgers.caller_of(*columns) for key_id, *columns in rows}
        self._numbers = dict(numbers.fetchall()) if numbers else {}
        return now, settled.fetchall() if settled else []

    # idempotency records

    def _read_idempotency(self) -> None:
        """Find which of the requests with an idempotency key still run; no query if there are none."""
        asked = [record for command in self._commands if (record := _idempotency_of(command))]
        if asked:
            self._running = idempotency.running(PostgresDatabase(self._db), asked)

    def _is_late(self, command: BatchCommand) -> bool:
        """Return whether its record's lease has ended and another request has begun since."""
        record = _idempotency_of(command)
        return record is not None and record not in self._running

    def _in_time(self, parts: dict[reservations.Part, Settle]) -> dict[reservations.Part, Settle]:
        """Return the parts to settle: not the late ones, unless settled before, which changes nothing."""
        late = [part for part, command in parts.items() if self._is_late(command)]
        if not late:
            return parts
        settled = reservations.settled(self._db, late)
        self._late = {part for part in late if part not in settled}
        return {part: command for part, command in parts.items() if part not in self._late}

    def _refuse_late(self) -> None:
        for place, command in enumerate(self._commands):
            if isinstance(command, Settle):
                late = reservations.part_of(command) in self._late
            else:
                late = self._is_late(command)
            if late and self._answers[place] is None:
                self._answers[place] = Raised(IdempotencyInProgress())

    def _keep_answer(self, account: int, first: EncryptedFirst | None) -> None:
        if first is not None:
            self._firsts.append((account, first))

    def _rows(self) -> Iterator[UsageRow]:
        """Return all rows that the batch may log."""
        for command in self._commands:
            if isinstance(command, Settle | Spend):
                yield from command.rows
            elif isinstance(command, JobVerified):
                yield command.row

    def _check_known(self) -> None:
        for place, command in enumerate(self._commands):
            if isinstance(command, AccountCommand):
                if command.account_id not in self._numbers:
                    self._answers[place] = Raised(KeyError(command.account_id))
            elif command.caller.key.id not in self._caller:
                unknown = KeyError(command.caller.key.id)
                if isinstance(command, Settle):
                    raise unknown  # settled already in this transaction, which must be undone
                self._answers[place] = Raised(unknown)

    def _answer_accounts(self, now: datetime) -> None:
        """Execute the commands that name an account: messages, idempotency records and keys."""
        for message, number, is_new in self._act(EnqueueMessage, outbox.enqueue, now):
            if is_new:
                self._marks["message"] = message.kind, number, message.name
        for _, number, answer in self._act(BeginIdempotent, idempotency.begin, now):
            if isinstance(answer, IdempotencyRecord):
                self._marks["request"] = number, answer.key, micros(answer.lease_until)
        for _, ended, _ in self._of(FinishIdempotent):
            idempotency.finish(PostgresDatabase(self._db), ended.idempotency, ended.answer)
        for asked, number, key in self._act(CreateKey, create_keys, now):
            if isinstance(key, Key):
                self._marks["key"] = (key.id,)
                self._keep_answer(number, asked.answer(key) if asked.answer else None)

    def _act(
        self,
        kind: type[T],
        act: Callable[[Database, datetime, Sequence[tuple[T, int]]], Sequence[R]],
        now: datetime,
    ) -> list[tuple[T, int, R]]:
        """Answer the account commands of a kind; return each with its account's number and outcome."""
        those = self._of(kind)
        if not those:
            return []
        asked = [(command, number) for _, command, number in those]
        outcomes = act(PostgresDatabase(self._db), now, asked)
        for (place, *_), outcome in zip(those, outcomes, strict=True):
            self._answers[place] = outcome
        return [
            (command, number, outcome)
            for (command, number), outcome in zip(asked, outcomes, strict=True)
        ]

    def _of(self, kind: type[T]) -> list[tuple[int, T, int]]:
        """Return the unanswered account commands of a kind: place, command and account number."""
        return [
            (place, command, self._numbers[command.account_id])
            for place, command in enumerate(self._commands)
            if isinstance(command, kind) and self._answers[place] is None
        ]

    def _those(self, *kinds: type[Any]) -> list[tuple[int, Any, CallerRow]]:
        """Return the unanswered commands of these kinds: place, command and caller."""
        return [
            (place, command, self._caller[command.caller.key.id])
            for place, command in enumerate(self._commands)
            if isinstance(command, kinds) and self._answers[place] is None
        ]

    # what was used

    def _settle(self, fresh: dict[reservations.Part, Settle], now: datetime) -> None:
        chunks = {part: command.chunk for part, command in fresh.items() if command.chunk}
        stored = list_results.record_all(PostgresDatabase(self._db), now, list(chunks.values()))
        followed = {part for part, kept in zip(chunks, stored, strict=True) if not kept}
        for part, command in fresh.items():
            self._marks["settlement"] = part
            who = self._caller[command.caller.key.id]
            if part not in followed:
                self._use(who, command.rows, command.emit_meter_event)
            self._keep_answer(who.account_number, command.first)

    def _use(self, who: CallerRow, rows: Sequence[UsageRow], emit_meter_event: bool) -> None:
        """Count the rows in the ledger now; they are logged at the end of the batch."""
        if not rows:
            return
        self._used.append((who, rows, emit_meter_event))
        if self._ledgers:
            self._ledgers.use(who, rows)

    def _complete(self, now: datetime) -> None:
        """Write the outcomes of jobs; answers each with whether its claim was still valid."""
        those = self._those(JobVerified, JobAttempted, PostponeJob, AbandonJob)
        if not those:
            return
        shared = PostgresDatabase(self._db)
        held = held_jobs(shared, [command for _, command, _ in those])
        completed: list[tuple[Outcome, JobRow]] = []
        for (place, command, who), job in zip(those, held, strict=True):
            self._answers[place] = job is not None
            if job is None:
                continue
            self._marks["outcome"] = command.claim.job.id, command.claim.fence
            completed.append((command, job))
            if self._ledgers and isinstance(command, JobVerified | AbandonJob):
                self._ledgers.reserve(job.account, -1)
            if isinstance(command, JobVerified):
                self._use(who, [command.row], command.emit_meter_event)
        write_outcomes(shared, now, completed)

    # what is granted

    def _check_limits(self, now: datetime) -> None:
        if promises := self._those(CreateJob):
            self._refuse_kept([(place, command) for place, command, _ in promises])
        for place, command, who in self._those(Reserve, Spend, CreateJob):
            assert self._ledgers
            try:
                refusal = self._ledgers.check_limits(who, command.units, command.check_limits)
            except psycopg.Error:  # the ledger's window could not be read
                raise
            except Exception as error:
                self._answers[place] = Raised(error)
                continue
            if refusal is not None:
                self._answers[place] = refusal
            elif isinstance(command, Spend):
                self._spent = True
                self._use(who, command.rows, command.emit_meter_event)
                self._keep_answer(who.account_number, command.first)
            else:
                if command.holds_units:
                    self._ledgers.reserve(who.account_number, command.units)
                create = self._create_job if isinstance(command, CreateJob) else self._reserve
                self._answers[place] = create(command, who, now)

    def _refuse_kept(self, those: Sequence[tuple[int, CreateJob[object]]]) -> None:
        """Refuse jobs whose id is stored already, or comes earlier in the batch."""
        ids = [command.order.id for _, command in those]
        kept = {id for (id,) in self._db.all("SELECT id FROM jobs WHERE id = ANY(%s)", [ids])}
        for place, command in those:
            if command.order.id in kept:
                self._answers[place] = Raised(ValueError("a job with this id is kept already"))
            kept.add(command.order.id)

    def _reserve(self, command: Reserve[object], who: CallerRow, now: datetime) -> Reservation:
        id = reservations.new_id(now)
        until = micros(now + timedelta(seconds=command.lease_s))
        self._reserved.append((id, who.account_number, command.units, until))
        self._marks["reservation"] = (id,)
        return Reservation(str(id), command.caller, command.units)

    def _create_job(self, command: CreateJob[object], who: CallerRow, now: datetime) -> Job:
        job = new_job(command.order, command.caller, now)
        self._keep_answer(who.account_number, command.first)
        values = new_job_values(job, who.account_number, who.key_number, command.secret)
        self._created.append(values)
        self._marks["job"] = (job.id,)
        return job

    def _write(self, now: datetime) -> None:
        """Write and commit in one round trip; roll back if every command was refused."""
        db = self._db
        extended = [command for _, command, _ in self._those(Extend)]
        writes = self._writes(now)
        if (
            not writes
            and not self._mended
            and all(isinstance(command, Reserve | Spend) for command in self._commands)
        ):
            db.rollback()
            return
        with db.db.pipeline():
            reservations.extend(db, now, extended)
            db.marker = Marker(self._marks, self._answers)
            writes.send(db)
            if self._created:
                insert_jobs(PostgresDatabase(db), self._created)
            db.commit()

    def _writes(self, now: datetime) -> Writes:
        writes = Writes()
        if self._spent:
            self._marks["settlement"] = reservations.mark(writes, now)
        log(writes, [(who, rows) for who, rows, _ in self._used])
        reported: Counter[int] = Counter()
        for who, rows, emit_meter_event in self._used:
            if emit_meter_event:
                reported[who.account_number] += sum(row.billable for row in rows)
        if self._firsts:
            kept = [(n, first.idempotency.key, first.answer) for n, first in self._firsts]
            writes.add(ANSWERS, *columns_of(kept))
        if counts := +reported:
            counted = {"accounts": list(counts), "counts": list(counts.values())}
            writes.add_named(METERS, {**outbox.metering(now), **counted})
        if self._ledgers:
            self._ledgers.write(writes)
        if self._reserved:
            accounts = {account for _, account, *_ in self._reserved}
            seen = self._ledgers.seen if self._ledgers else {}
            if ended := [account for account in accounts if seen[account].any_ended]:
                reservations.drop_ended(writes, now, ended)
            reservations.keep(writes, self._reserved)
        return writes


def _idempotency_of(command: BatchCommand) -> IdempotencyRecord | None:
    """Return the record of the request whose answer the command stores, if any."""
    if isinstance(command, CreateKey):
        return command.idempotency
    if isinstance(command, Spend | CreateJob | Settle) and command.first:
        return command.first.idempotency
    return None
