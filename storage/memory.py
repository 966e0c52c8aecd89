"""The store as dictionaries: the readable specification of the others.

For virtual time too: nothing here waits, and the clock is handed in. A method is
a transaction because nothing in it awaits after its first line.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

import trio

from storage.calendar import (
    day_of,
    kept_since,
    month_of,
    period_bounds,
    period_start_of,
)
from storage.memory_queue import Queue
from storage.records import (
    EPOCH,
    Account,
    Answered,
    Attempt,
    Caller,
    Claim,
    DayCount,
    Job,
    JobOrder,
    JobState,
    Key,
    KeyKind,
    Ledger,
    Letter,
    LetterKind,
    Reservation,
    Tier,
    UsageRow,
    Work,
)
from storage.store import (
    LETTERS_KEPT,
    LISTED_MAX,
    METER_REST_S,
    METER_SLOT_S,
    REFUSALS_SINGLE_MAX,
    SETTLED_KEPT,
    USAGE_ROWS_MAX,
    WINDOW,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    KeyLimitReached,
    check_answer,
    check_changes,
    check_units,
)

R = TypeVar("R")

FOREVER = datetime.max.replace(tzinfo=UTC)  # a job's reservation ends with the job


@dataclass(frozen=True, slots=True)
class _Lease:
    account_id: str
    units: int
    until: datetime


@dataclass(frozen=True, slots=True)
class _Once:
    """An idempotency key: begun, and answered or not."""

    body_sha256: str
    lease_until: datetime
    keep_until: datetime
    answer: Answered | None = None

    def stands(self, now: datetime) -> bool:
        if self.answer is None and self.lease_until <= now:
            return False
        return self.keep_until > now


@dataclass(frozen=True, slots=True)
class _Job:
    """A job, and what only its claims tell."""

    job: Job
    secret: str | None
    reservation: Reservation
    attempts: tuple[Attempt, ...] = ()

    @property
    def work(self) -> Work:
        return "verify" if self.job.state == "pending" else "deliver"


class MemoryStore:
    """Everything that is remembered, until the process ends."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._accounts: dict[str, Account] = {}
        self._keys: dict[str, Key] = {}
        self._key_ids: dict[str, str] = {}  # by the key's SHA-256
        self._windows: dict[str, Counter[datetime]] = {}  # units by key and instant
        self._leases: dict[str, _Lease] = {}  # by reservation
        self._settled: dict[tuple[str, int], datetime] = {}  # by reservation and part
        self._month_units: Counter[tuple[str, date]] = Counter()
        self._month_billable: Counter[tuple[str, date]] = Counter()
        self._day_billable: Counter[tuple[str, date]] = Counter()
        self._period_billable: Counter[tuple[str, datetime]] = Counter()
        self._usage: dict[str, list[UsageRow]] = {}
        self._refusals: dict[str, dict[tuple[Any, ...], UsageRow]] = {}
        self._onces: dict[tuple[str, str], _Once] = {}
        self._reservations_made = 0
        self._jobs: Queue[_Job] = Queue()
        self._letters: Queue[Letter] = Queue()

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account:
        await trio.lowlevel.checkpoint()
        account = Account(str(uuid4()), email, tier, self._now())
        self._accounts[account.id] = account
        return account

    async def account(self, account_id: str) -> Account | None:
        await trio.lowlevel.checkpoint()
        return self._accounts.get(account_id)

    async def accounts(self) -> list[Account]:
        await trio.lowlevel.checkpoint()
        return list(self._accounts.values())

    async def account_of_customer(self, customer_id: str) -> Account | None:
        await trio.lowlevel.checkpoint()
        accounts = self._accounts.values()
        return next((one for one in accounts if one.customer_id == customer_id), None)

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        check_changes(changes)
        await trio.lowlevel.checkpoint()
        if account_id not in self._accounts:
            return None
        account = replace(self._accounts[account_id], **changes)
        self._accounts[account_id] = account
        return account

    async def create_key(
        self,
        account_id: str,
        kind: KeyKind,
        label: str | None,
        *,
        sha256: str,
        prefix: str,
        keys_max: int | None,
    ) -> Key:
        await trio.lowlevel.checkpoint()
        account = self._accounts[account_id]
        if kind == "standard" and keys_max is not None:
            active = [key for key in self._active_keys(account.id) if key.kind == "standard"]
            if len(active) >= keys_max:
                raise KeyLimitReached
        if sha256 in self._key_ids:
            raise ValueError("a key with this hash is kept already")
        key = Key(str(uuid4()), account.id, kind, label, prefix, self._now())
        self._keys[key.id] = key
        self._key_ids[sha256] = key.id
        return key

    async def keys(self, account_id: str) -> list[Key]:
        await trio.lowlevel.checkpoint()
        return self._active_keys(account_id)

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        await trio.lowlevel.checkpoint()
        key = self._keys.get(key_id)
        if key is None or key.revoked_at or account_id not in (None, key.account_id):
            return False
        self._keys[key_id] = replace(key, revoked_at=self._now())
        return True

    async def caller(self, sha256: str) -> Caller | None:
        await trio.lowlevel.checkpoint()
        key = self._keys.get(self._key_ids.get(sha256, ""))
        if key is None or key.revoked_at:
            return None
        return Caller(self._accounts[key.account_id], key)

    def _active_keys(self, account_id: str) -> list[Key]:
        return [
            key
            for key in self._keys.values()
            if key.account_id == account_id and not key.revoked_at
        ]

    # metering

    async def reserve(
        self, caller: Caller, units: int, weigh: Callable[[Ledger], R | None], *, lease_s: float
    ) -> Reservation | R:
        check_units(units)
        await trio.lowlevel.checkpoint()
        now = self._now()
        refusal = weigh(self._ledger(caller, now))
        if refusal is not None:
            return refusal
        return self._reserve(caller, units, now, now + timedelta(seconds=lease_s))

    def _reserve(
        self, caller: Caller, units: int, now: datetime, lease_until: datetime
    ) -> Reservation:
        self._windows.setdefault(caller.key.id, Counter())[now] += units
        self._reservations_made += 1
        reservation = Reservation(str(self._reservations_made), caller, units, now)
        self._leases[reservation.id] = _Lease(caller.account.id, units, lease_until)
        return reservation

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        lease = self._leases.get(reservation.id)
        if lease and lease.until > now:
            until = now + timedelta(seconds=lease_s)
            self._leases[reservation.id] = replace(lease, until=until)

    async def settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        *,
        part: int = 0,
        ends: bool = True,
        metered: bool = False,
    ) -> None:
        await trio.lowlevel.checkpoint()
        self._settle(reservation, rows, part, ends, metered)

    def _settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        part: int = 0,
        ends: bool = True,
        metered: bool = False,
    ) -> None:
        if (reservation.id, part) in self._settled:
            return
        self._settled[reservation.id, part] = self._now()
        lease = self._leases.pop(reservation.id, None)
        if lease and not ends:
            left = max(0, lease.units - sum(row.units for row in rows))
            self._leases[reservation.id] = replace(lease, units=left)
        account = self._accounts[reservation.caller.account.id]
        for row in rows:
            self._count(account, row)
        billable = sum(row.billable for row in rows)
        if metered and billable and account.tier != "free":
            self._meter(account, billable)

    def _meter(self, account: Account, billable: int) -> None:
        now = self._now()
        slot = int(now.timestamp()) // METER_SLOT_S * METER_SLOT_S
        while self._letters.fence_of(_letter_name("meter", account.id, str(slot))):
            slot += METER_SLOT_S
        name = _letter_name("meter", account.id, str(slot))
        if name in self._letters.entries:
            letter = self._letters.entries[name].thing
            letter = replace(letter, count=letter.count + billable)
        else:
            due_at = EPOCH + timedelta(seconds=slot + METER_SLOT_S + METER_REST_S)
            letter = Letter(name, "meter", account.id, str(slot), b"", billable, now, due_at)
        self._letters.put(name, letter, letter.due_at)

    def _count(self, account: Account, row: UsageRow) -> None:
        self._usage.setdefault(account.id, []).append(row)
        self._month_units[account.id, month_of(row.at)] += row.units
        if not row.billable:
            return
        self._month_billable[account.id, month_of(row.at)] += 1
        self._day_billable[account.id, day_of(row.at)] += 1
        start = period_start_of(account, row.at)
        if start:
            self._period_billable[account.id, start] += 1

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        await trio.lowlevel.checkpoint()
        minute = self._now().replace(second=0, microsecond=0)
        refusals = self._refusals.setdefault(caller.account.id, {})
        for place in range(REFUSALS_SINGLE_MAX):
            if (caller.key.id, minute, row.failed_check, place) not in refusals:
                refusals[caller.key.id, minute, row.failed_check, place] = row
                return
        flood = (caller.key.id, minute, row.failed_check, REFUSALS_SINGLE_MAX)
        times = refusals[flood].times if flood in refusals else 0
        refusals[flood] = replace(refusals.get(flood, row), times=times + row.times)

    async def ledger(self, caller: Caller) -> Ledger:
        await trio.lowlevel.checkpoint()
        return self._ledger(caller, self._now())

    def _ledger(self, caller: Caller, now: datetime) -> Ledger:
        account = self._accounts[caller.account.id]
        window = self._windows.get(caller.key.id, Counter())
        reserved = sum(
            lease.units
            for lease in self._leases.values()
            if lease.account_id == account.id and lease.until > now
        )
        start, end = period_bounds(account, now)
        month = account.id, month_of(now)
        billable = self._month_billable[month]
        if account.current_period_start and account.current_period_end:
            billable = self._billable_since(account.id, start)
        return Ledger(
            asked_at=now,
            window=tuple(sorted((at, n) for at, n in window.items() if at > now - WINDOW)),
            month_units=self._month_units[month] + reserved,
            month_billable=self._month_billable[month],
            period_start=start,
            period_end=end,
            period_billable=billable,
            reserved=reserved,
        )

    def _billable_since(self, account_id: str, start: datetime) -> int:
        """Of this period, and of the next where it has begun before the provider said so."""
        return sum(
            count
            for (whose, since), count in self._period_billable.items()
            if whose == account_id and since >= start
        )

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        await trio.lowlevel.checkpoint()
        return [
            DayCount(day, calls)
            for (whose, day), calls in sorted(self._day_billable.items())
            if whose == account_id and first <= day <= last
        ]

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        await trio.lowlevel.checkpoint()
        rows = [*reversed(self._usage.get(account_id, []))]
        rows += self._refusals.get(account_id, {}).values()
        return sorted(rows, key=lambda row: row.at, reverse=True)[: min(limit, USAGE_ROWS_MAX)]

    # idempotency

    async def begin_once(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        once = self._onces.get((self._accounts[account_id].id, key))
        if once is None or not once.stands(now):
            self._onces[account_id, key] = _Once(
                body_sha256, now + timedelta(seconds=lease_s), now + timedelta(seconds=keep_s)
            )
            return None
        if once.body_sha256 != body_sha256:
            raise IdempotencyKeyReused
        if once.answer is None:
            raise IdempotencyInProgress
        return once.answer

    async def finish_once(self, account_id: str, key: str, answer: Answered | None) -> None:
        check_answer(answer)
        await trio.lowlevel.checkpoint()
        once = self._onces.get((account_id, key))
        if once is None or once.answer:
            return
        if answer is None:
            del self._onces[account_id, key]
        else:
            self._onces[account_id, key] = replace(once, answer=answer)

    # jobs

    async def create_job(
        self, caller: Caller, order: JobOrder, weigh: Callable[[Ledger], R | None]
    ) -> Job | R:
        await trio.lowlevel.checkpoint()
        if order.id in self._jobs.entries:
            raise ValueError("a job with this id is kept already")
        now = self._now()
        refusal = weigh(self._ledger(caller, now))
        if refusal is not None:
            return refusal
        reservation = self._reserve(caller, 1, now, FOREVER)
        job = Job(
            order.id, caller.account.id, order.email, order.webhook, order.host, "pending", now, now
        )
        self._jobs.put(job.id, _Job(job, order.secret, reservation), now)
        return job

    async def claim_jobs(
        self, work: Work, *, limit: int, each_max: int, lease_s: float
    ) -> list[Claim]:
        await trio.lowlevel.checkpoint()
        claimed = self._jobs.claim(
            self._now(),
            limit=limit,
            lease_s=lease_s,
            who=lambda kept: kept.work == work,
            each=lambda kept: kept.job.account_id if work == "verify" else kept.job.host,
            each_max=each_max,
        )
        return [self._claim(kept, fence) for kept, fence in claimed]

    def _claim(self, kept: _Job, fence: int) -> Claim:
        key = self._keys[kept.reservation.caller.key.id]
        caller = Caller(self._accounts[kept.job.account_id], key)
        return Claim(kept.job, caller, kept.secret, fence)

    async def extend_claim(self, claim: Claim, *, lease_s: float) -> bool:
        await trio.lowlevel.checkpoint()
        return self._jobs.extend(claim.job.id, claim.fence, self._now(), lease_s)

    async def job_verified(
        self, claim: Claim, row: UsageRow, payload: bytes, *, metered: bool = False
    ) -> bool:
        await trio.lowlevel.checkpoint()
        kept = self._has(claim, "pending")
        if kept is None:
            return False
        self._settle(kept.reservation, [row], metered=metered)
        now = self._now()
        self._keep(replace(kept.job, state="delivering", due_at=now, payload=payload), kept)
        return True

    async def job_tried(
        self, claim: Claim, attempt: Attempt, *, state: JobState, due_at: datetime | None
    ) -> bool:
        await trio.lowlevel.checkpoint()
        kept = self._has(claim, "delivering")
        if kept is None:
            return False
        ended_at = None if due_at else self._now()
        job = replace(kept.job, state=state, due_at=due_at, ended_at=ended_at)
        job = replace(job, tries=kept.job.tries + 1)
        self._keep(job, replace(kept, attempts=(*kept.attempts, attempt)))
        return True

    async def abandon_job(self, claim: Claim) -> bool:
        await trio.lowlevel.checkpoint()
        kept = self._has(claim, "pending")
        if kept is None:
            return False
        self._settle(kept.reservation, [])
        self._keep(replace(kept.job, state="failed", due_at=None, ended_at=self._now()), kept)
        return True

    def _has(self, claim: Claim, state: JobState) -> _Job | None:
        """The job, where this claim is its last and it is in this state."""
        entry = self._jobs.entries.get(claim.job.id)
        if entry is None or entry.fence != claim.fence or entry.thing.job.state != state:
            return None
        return entry.thing

    def _keep(self, job: Job, kept: _Job) -> None:
        self._jobs.put(job.id, replace(kept, job=job), job.due_at)

    async def job(self, job_id: str) -> Job | None:
        await trio.lowlevel.checkpoint()
        entry = self._jobs.entries.get(job_id)
        return entry.thing.job if entry else None

    async def jobs(
        self, *, account_id: str | None = None, state: JobState | None = None, limit: int
    ) -> list[Job]:
        await trio.lowlevel.checkpoint()
        jobs = [entry.thing.job for entry in reversed(self._jobs.entries.values())]
        return [
            job
            for job in jobs
            if account_id in (None, job.account_id) and state in (None, job.state)
        ][: min(limit, LISTED_MAX)]

    async def attempts(self, job_id: str) -> list[Attempt]:
        await trio.lowlevel.checkpoint()
        entry = self._jobs.entries.get(job_id)
        return list(entry.thing.attempts[-LISTED_MAX:]) if entry else []

    async def resend_job(self, job_id: str) -> Job | None:
        await trio.lowlevel.checkpoint()
        entry = self._jobs.entries.get(job_id)
        if entry is None or entry.thing.job.payload is None:
            return None
        job = replace(
            entry.thing.job, state="delivering", due_at=self._now(), tries=0, ended_at=None
        )
        self._keep(job, entry.thing)
        self._jobs.entries[job_id] = replace(self._jobs.entries[job_id], fence=entry.fence + 1)
        return job

    # the outbox

    async def post(
        self, kind: LetterKind, account_id: str, name: str, body: bytes, *, due_at: datetime
    ) -> bool:
        await trio.lowlevel.checkpoint()
        account = self._accounts[account_id]
        place = _letter_name(kind, account.id, name)
        if place in self._letters.entries:
            return False
        letter = Letter(place, kind, account.id, name, body, 0, self._now(), due_at)
        self._letters.put(place, letter, due_at)
        return True

    async def claim_letters(self, kind: LetterKind, *, limit: int, lease_s: float) -> list[Letter]:
        await trio.lowlevel.checkpoint()
        now = self._now()
        claimed = []
        for letter, fence in self._letters.claim(
            now, limit=limit, lease_s=lease_s, who=lambda letter: letter.kind == kind
        ):
            first = letter.first_tried_at or now
            letter = replace(letter, fence=fence, first_tried_at=first)
            entry = self._letters.entries[letter.id]
            self._letters.entries[letter.id] = replace(entry, thing=letter)
            claimed.append(letter)
        return claimed

    async def letter_tried(
        self, letter: Letter, *, sent: bool, due_at: datetime | None, error: str | None = None
    ) -> bool:
        await trio.lowlevel.checkpoint()
        entry = self._letters.entries.get(letter.id)
        if entry is None or entry.fence != letter.fence or entry.due_at is None:
            return False
        tried = replace(
            entry.thing,
            tries=entry.thing.tries + 1,
            due_at=due_at,
            sent_at=self._now() if sent else None,
            error=error,
        )
        self._letters.put(letter.id, tried, due_at)
        return True

    async def letters(
        self, kind: LetterKind, *, account_id: str | None = None, limit: int
    ) -> list[Letter]:
        await trio.lowlevel.checkpoint()
        letters = [entry.thing for entry in reversed(self._letters.entries.values())]
        return [
            letter
            for letter in letters
            if letter.kind == kind and account_id in (None, letter.account_id)
        ][: min(limit, LISTED_MAX)]

    # upkeep

    async def tidy(self, retention_days: dict[Tier, int]) -> None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        for account in self._accounts.values():
            if account.tier in retention_days:
                since = kept_since(now, retention_days[account.tier])
                self._drop_rows(account.id, since)
                self._drop_jobs(account.id, since)
        for window in self._windows.values():
            for at in [at for at in window if at <= now - WINDOW]:
                del window[at]
        self._leases = {id: lease for id, lease in self._leases.items() if lease.until > now}
        self._settled = {part: at for part, at in self._settled.items() if at > now - SETTLED_KEPT}
        self._onces = {key: once for key, once in self._onces.items() if once.stands(now)}
        self._drop_letters(now)

    def _drop_jobs(self, account_id: str, since: datetime) -> None:
        for entry in [*self._jobs.entries.values()]:
            job = entry.thing.job
            if job.account_id == account_id and job.ended_at and job.ended_at < since:
                del self._jobs.entries[job.id]

    def _drop_letters(self, now: datetime) -> None:
        for letter in [entry.thing for entry in self._letters.entries.values()]:
            if letter.due_at is None and letter.made_at <= now - LETTERS_KEPT[letter.kind]:
                del self._letters.entries[letter.id]

    def _drop_rows(self, account_id: str, since: datetime) -> None:
        usage = self._usage.get(account_id, [])
        self._usage[account_id] = [row for row in usage if row.at >= since]
        refusals = self._refusals.get(account_id, {})
        self._refusals[account_id] = {
            place: row for place, row in refusals.items() if place[1] >= since
        }

    async def check(self) -> datetime:
        await trio.lowlevel.checkpoint()
        return self._now()


def _letter_name(kind: LetterKind, account_id: str, name: str) -> str:
    return f"{kind} {account_id} {name}"
