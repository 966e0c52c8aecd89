"""The store in a PostgreSQL database: for many machines.

Threads with a connection each (postgres_desk, postgres_clerk); what is done in a
transaction are functions in the modules beside this one, by their field. Whoever
grants or counts holds the account's row from before the clock is read until the
commit, and the clock is the database's: all machines share it.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from typing import Any, TypeVar

import trio

from mailprobe.storage.contract import (
    SETTLED_KEPT,
    USAGE_ROWS_MAX,
    StoreBroken,
    at_most,
    check_changes,
    check_outcome,
    check_sent,
    check_units,
    units_of,
)
from mailprobe.storage.encrypted_columns import (
    SealedFirst,
    job_place,
    once_place,
    sealed_answer,
    sealed_first,
    unpacked,
)
from mailprobe.storage.encryption import Seal
from mailprobe.storage.lease_allocation import SeatsAsked
from mailprobe.storage.postgres import accounts, jobs, ledgers
from mailprobe.storage.postgres import job_claims as claims
from mailprobe.storage.postgres import leases as seats
from mailprobe.storage.postgres import outbox as letters
from mailprobe.storage.postgres import retention as tidying
from mailprobe.storage.postgres import usage as metering
from mailprobe.storage.postgres import usage_log as usage
from mailprobe.storage.postgres.driver import commands as wishes
from mailprobe.storage.postgres.driver.batch_executor import Work
from mailprobe.storage.postgres.driver.database_thread import ANSWER_S, Desk
from mailprobe.storage.postgres.driver.partitions import Partitions
from mailprobe.storage.postgres.driver.schema import prepare
from mailprobe.storage.postgres.driver.server import UPKEEP_MS, Server, Session
from mailprobe.storage.postgres.driver.work import Callers, Deeds, Looks
from mailprobe.storage.records import (
    Account,
    Answered,
    Attempt,
    Caller,
    Claim,
    DayCount,
    FirstAnswer,
    Job,
    JobOrder,
    JobState,
    Key,
    KeyKind,
    Ledger,
    Letter,
    LetterKind,
    Once,
    Reservation,
    Tier,
    UsageRow,
)
from mailprobe.storage.records import Work as JobWork

R = TypeVar("R")
T = TypeVar("T")
Act = Callable[[Session], T]

# Connections of one process, each opened when it is first needed. Two that meter would mostly wait for
# each other, with groups half as large: whoever is busy asks for the same accounts again.
THREADS = {"metering": 1, "deeds": 2, "claims": 1, "callers": 1, "looks": 2, "seats": 1}
UPKEEP_S = UPKEEP_MS / 1000 + ANSWER_S


@dataclass(frozen=True, slots=True)
class Desks:
    metering: Desk[wishes.Wish]
    deeds: Desk[Act[Any]]  # whatever else is written, each in its own transaction
    claims: Desk[claims.Wanted]
    callers: Desk[str]
    looks: Desk[Act[Any]]
    seats: Desk[seats.Wanted]  # one thread: a later call must never overtake an earlier one


@asynccontextmanager
async def open_postgres(
    url: str, *, secret_key: bytes | None, now: Callable[[], datetime] | None
) -> AsyncIterator["PostgresStore"]:
    """Make or check the tables, and serve them; leaving the block answers those who still wait.

    `now` None: the clock is the database's. Raises StoreBroken, StoreUnavailable.
    """
    server = Server(url)
    if secret_key is None:
        message = f"{server.name} needs MAILPROBE_SECRET_KEY, the same on every machine: "
        raise StoreBroken(message + "make one with `openssl rand -base64 32`")
    seal = Seal(secret_key)
    await trio.to_thread.run_sync(prepare, server, seal)
    partitions = Partitions()
    async with AsyncExitStack() as stack:

        def desk(work: Work[Any], name: str) -> Desk[Any]:
            opened: Desk[Any] = Desk(server, work, now, partitions, threads=THREADS[name])
            stack.push_async_callback(opened.close)
            return opened

        desks = Desks(
            desk(metering.Metering(), "metering"),
            desk(Deeds(), "deeds"),
            desk(claims.Claims(), "claims"),
            desk(Callers(), "callers"),
            desk(Looks(), "looks"),
            desk(seats.Leasing(), "seats"),
        )
        yield PostgresStore(desks, partitions, seal)


class PostgresStore:
    """Everything that is remembered, in one database."""

    def __init__(self, desks: Desks, partitions: Partitions, seal: Seal) -> None:
        self._desks = desks
        self._partitions = partitions
        self._seal = seal

    async def _do(self, act: Act[T]) -> T:
        value: T = await self._desks.deeds.ask(act)
        return value

    async def _look(self, act: Act[T]) -> T:
        value: T = await self._desks.looks.ask(act)
        return value

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account:
        return await self._do(lambda db: accounts.create_account(db, email, tier))

    async def account(self, account_id: str) -> Account | None:
        return await self._look(lambda db: accounts.account(db, account_id))

    async def accounts(self) -> list[Account]:
        return await self._look(accounts.accounts)

    async def account_of_customer(self, customer_id: str) -> Account | None:
        return await self._look(lambda db: accounts.account_of_customer(db, customer_id))

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        check_changes(changes)
        return await self._do(lambda db: accounts.change_account(db, account_id, changes))

    async def create_key(
        self,
        account_id: str,
        kind: KeyKind,
        label: str | None,
        *,
        sha256: str,
        prefix: str,
        keys_max: int | None,
        a_minute: int | None = None,
        once: Once | None = None,
        answer: Callable[[Key], Answered] | None = None,
    ) -> Key:
        def seal(key: Key) -> SealedFirst:
            assert once
            assert answer
            return sealed_first(self._seal, FirstAnswer(once, answer(key)))

        wish = wishes.NewKey(
            account_id,
            kind,
            label,
            sha256,
            prefix,
            keys_max,
            a_minute,
            once,
            seal if once else None,
        )
        key: Key = await self._desks.metering.ask(wish)
        return key

    def _sealed(self, first: FirstAnswer | None) -> SealedFirst | None:
        return None if first is None else sealed_first(self._seal, first)

    async def keys(self, account_id: str) -> list[Key]:
        return await self._look(lambda db: accounts.keys(db, account_id))

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        return await self._do(lambda db: accounts.revoke_key(db, account_id, key_id))

    async def caller(self, sha256: str) -> Caller | None:
        found: Caller | None = await self._desks.callers.ask(sha256)
        return found

    # metering

    async def reserve(
        self, caller: Caller, units: int, weigh: Callable[[Ledger], R | None], *, lease_s: float
    ) -> Reservation | R:
        check_units(units)
        wish = wishes.Reserve(caller, units, weigh, lease_s)
        outcome: Reservation | R = await self._desks.metering.ask(wish)
        return outcome

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        await self._desks.metering.ask(wishes.Extend(reservation, lease_s))

    async def settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        *,
        part: int = 0,
        ends: bool = True,
        metered: bool = False,
        first: FirstAnswer | None = None,
    ) -> None:
        answer = self._sealed(first)
        wish = wishes.Settle(reservation, rows, part, ends, metered, answer)
        await self._desks.metering.ask(wish)

    async def spend(
        self,
        caller: Caller,
        rows: Sequence[UsageRow],
        weigh: Callable[[Ledger], R | None],
        *,
        metered: bool = False,
        first: FirstAnswer | None = None,
    ) -> R | None:
        check_units(units_of(rows))
        refusal: R | None = await self._desks.metering.ask(
            wishes.Spend(caller, rows, weigh, metered, self._sealed(first))
        )
        return refusal

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        await self._desks.metering.ask(wishes.Refuse(caller, row))

    async def ledger(self, caller: Caller) -> Ledger:
        return await self._look(lambda db: ledgers.ledger(db, caller))

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        return await self._look(lambda db: usage.days(db, account_id, first, last))

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        most = at_most(USAGE_ROWS_MAX, limit)
        return await self._look(lambda db: usage.usage(db, account_id, most))

    # idempotency

    async def begin_once(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | Once:
        wish = wishes.Begin(account_id, key, body_sha256, lease_s, keep_s)
        begun: Once | bytes = await self._desks.metering.ask(wish)
        if isinstance(begun, Once):
            return begun
        return unpacked(self._seal.open(begun, once_place(account_id, key)))

    async def finish_once(self, once: Once, answer: Answered | None) -> None:
        # by the desk that settles: it must not overtake a settlement that keeps the answer
        sealed = None if answer is None else sealed_answer(self._seal, once, answer)
        await self._desks.metering.ask(wishes.Finish(once, sealed))

    # jobs

    async def create_job(
        self,
        caller: Caller,
        order: JobOrder,
        weigh: Callable[[Ledger], R | None],
        *,
        first: FirstAnswer | None = None,
    ) -> Job | R:
        secret = None
        if order.secret is not None:
            secret = self._seal.close(order.secret.encode(), job_place(order.id))
        wish = wishes.Promise(caller, order, secret, weigh, self._sealed(first))
        outcome: Job | R = await self._desks.metering.ask(wish)
        return outcome

    async def claim_jobs(
        self,
        work: JobWork,
        *,
        limit: int,
        each_max: int,
        lease_s: float,
        account_max: int | None = None,
    ) -> list[Claim]:
        if not await self._look(lambda db: claims.is_due(db, work)):
            return []
        wanted = claims.Wanted(work, limit, each_max, lease_s, account_max)
        claimed = await self._desks.claims.ask(wanted)
        return [self._with_secret(claim, sealed) for claim, sealed in claimed]

    def _with_secret(self, claim: Claim, sealed: bytes | None) -> Claim:
        if sealed is None:
            return claim
        try:
            secret = self._seal.open(sealed, job_place(claim.job.id))
        except StoreBroken:  # that of one job; the others have theirs
            return replace(claim, sealed=True)
        return replace(claim, secret=secret.decode())

    async def extend_claim(self, claim: Claim, *, lease_s: float) -> bool:
        return await self._do(lambda db: jobs.extend(db, claim, lease_s))

    async def job_verified(
        self, claim: Claim, row: UsageRow, payload: bytes, *, metered: bool = False
    ) -> bool:
        return await self._tell(wishes.Verified(claim, row, payload, metered))

    async def job_tried(
        self, claim: Claim, attempt: Attempt, *, state: JobState, due_at: datetime | None
    ) -> bool:
        check_outcome(state, due_at)
        return await self._tell(wishes.Tried(claim, attempt, state, due_at))

    async def abandon_job(self, claim: Claim) -> bool:
        return await self._tell(wishes.Abandoned(claim))

    async def _tell(self, outcome: wishes.Outcome) -> bool:
        counts: bool = await self._desks.metering.ask(outcome)
        return counts

    async def job(self, job_id: str) -> Job | None:
        return await self._look(lambda db: jobs.job(db, job_id))

    async def jobs(
        self, *, account_id: str | None = None, state: JobState | None = None, limit: int
    ) -> list[Job]:
        return await self._look(lambda db: jobs.jobs(db, account_id, state, limit))

    async def attempts(self, job_id: str) -> list[Attempt]:
        return await self._look(lambda db: jobs.attempts(db, job_id))

    async def resend_job(self, job_id: str) -> Job | None:
        return await self._do(lambda db: jobs.resend(db, job_id))

    # the outbox

    async def post(
        self, kind: LetterKind, account_id: str, name: str, body: bytes, *, due_at: datetime
    ) -> bool:
        wish = wishes.Post(account_id, kind, name, body, due_at)
        posted: bool = await self._desks.metering.ask(wish)
        return posted

    async def claim_letters(self, kind: LetterKind, *, limit: int, lease_s: float) -> list[Letter]:
        if not await self._look(lambda db: letters.is_due(db, kind)):
            return []
        return await self._do(lambda db: letters.claim(db, kind, limit, lease_s))

    async def letter_tried(
        self, letter: Letter, *, sent: bool, due_at: datetime | None, error: str | None = None
    ) -> bool:
        check_sent(sent, due_at)
        return await self._do(lambda db: letters.tried(db, letter, sent, due_at, error))

    async def letters(
        self, kind: LetterKind, *, account_id: str | None = None, limit: int
    ) -> list[Letter]:
        return await self._look(lambda db: letters.letters(db, kind, account_id, limit))

    # seats

    async def lease_seats(
        self, holder: str, asked: Mapping[str, SeatsAsked], *, limit: int, lease_s: float
    ) -> Mapping[str, int]:
        wanted = seats.Wanted(holder, asked, limit, lease_s)
        granted: Mapping[str, int] = await self._desks.seats.ask(wanted)
        return granted

    async def seats_asked_back(self, holder: str, *, limit: int) -> Mapping[str, int]:
        return await self._look(lambda db: seats.wanted_back(db, holder, limit))

    async def return_seats(self, holder: str) -> None:
        await self._do(lambda db: seats.return_all(db, holder))

    # upkeep

    async def tidy(self, retention_days: dict[Tier, int]) -> None:
        now = await self.check()
        for statement in tidying.BROUGHT_BACK:
            await self._do(partial(tidying.bring_back, statement=statement, now=now))
        upkeep = partial(self._desks.deeds.ask, patience_s=UPKEEP_S)
        await self._desks.looks.ask(
            lambda db: self._partitions.make_ahead(db, now), patience_s=UPKEEP_S
        )
        await upkeep(lambda db: tidying.drop_days(db, self._partitions, now, retention_days))
        for day in await self._look(tidying.days_to_tidy):
            await upkeep(
                partial(tidying.drop_rows, day=day, now=now, retention_days=retention_days)
            )
        for drop in tidying.drops(now, retention_days):
            while await self._do(drop):
                pass  # little by little, so that no request waits behind it
        while await self._do(partial(seats.drop_ended, at=now)):
            pass
        after: Any = tidying.FIRST
        while after is not None:
            old = partial(tidying.drop_settled, after=after, until=now - SETTLED_KEPT)
            after = await self._do(old)

    async def check(self) -> datetime:
        """Asked of who writes: a server that only reads gives no transaction a number."""
        return await self._do(_write_nothing_new)


def _write_nothing_new(db: Session) -> datetime:
    """A transaction with a number of its own is written to the log, and so to the disk."""
    db.one("SELECT txid_current()")
    return db.now()
