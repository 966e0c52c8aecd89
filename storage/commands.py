"""Calls that share a transaction with others, or that each database does in its own way.

All other methods of the store are functions (mailprobe.storage.database). A method makes its
command, with every argument checked and every secret encrypted, and an executor runs it: in memory,
in SQLite or in PostgreSQL. The type argument is the method's result; the method's docstring says what
it promises. A module with a table of commands names its functions by `run_by`, so that mypy
compares their arguments and results.

`caller` or `account_id` is the account that a batch of commands has to lock. Arguments
that end in `_s` are seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from .database import StoreCommand
from .list_records import ChunkPart
from .records import (
    SERVICE,
    Actor,
    Attempt,
    Caller,
    Claim,
    IdempotencyRecord,
    Job,
    JobOrder,
    JobState,
    Key,
    KeyKind,
    LeaseRequest,
    Ledger,
    MessageKind,
    Reservation,
    UsageRow,
    Work,
    units_of,
)

R = TypeVar("R")
EncryptedClaim = tuple[Claim, bytes | None]  # a claim without its secret, and the encrypted secret


@dataclass(frozen=True, slots=True)
class EncryptedFirst:
    """A FirstAnswer as it is stored."""

    idempotency: IdempotencyRecord
    answer: bytes


@dataclass(frozen=True, slots=True)
class Raised:
    """An error to raise at the caller. A refusal, even an exception, is returned as a value."""

    error: Exception


# accounts and keys


@dataclass(frozen=True, slots=True)
class CreateKey(StoreCommand[Key]):
    """With `answer`, its result is stored in the same transaction."""

    account_id: str
    kind: KeyKind
    label: str | None
    sha256: str
    prefix: str
    keys_max: int | None
    keys_per_minute_max: int | None = None
    idempotency: IdempotencyRecord | None = None
    answer: Callable[[Key], EncryptedFirst] | None = None
    origins: tuple[str, ...] = ()
    rate_per_min: int | None = None
    by: Actor = SERVICE


# usage


@dataclass(frozen=True, slots=True)
class Reserve(StoreCommand[Reservation | R], Generic[R]):
    caller: Caller
    units: int
    check_limits: Callable[[Ledger], R | None]
    lease_s: float

    @property
    def holds_units(self) -> bool:
        """Whether the units are reserved, or counted in the window alone."""
        return self.lease_s > 0


@dataclass(frozen=True, slots=True)
class Spend(StoreCommand[R | None], Generic[R]):
    """Rows known before the limits are checked: granted, logged and counted in one step."""

    caller: Caller
    rows: Sequence[UsageRow]
    check_limits: Callable[[Ledger], R | None]
    emit_meter_event: bool
    first: EncryptedFirst | None = None

    @property
    def units(self) -> int:
        return units_of(self.rows)


@dataclass(frozen=True, slots=True)
class _ReservationCommand:
    reservation: Reservation

    @property
    def caller(self) -> Caller:
        """Whose units they are."""
        return self.reservation.caller


@dataclass(frozen=True, slots=True)
class Extend(_ReservationCommand, StoreCommand[None]):
    lease_s: float


@dataclass(frozen=True, slots=True)
class Settle(_ReservationCommand, StoreCommand[None]):
    rows: Sequence[UsageRow]
    part: int = 0
    ends: bool = True
    emit_meter_event: bool = False
    first: EncryptedFirst | None = None
    chunk: ChunkPart | None = None


@dataclass(frozen=True, slots=True)
class LogRefusal(StoreCommand[None]):
    caller: Caller
    row: UsageRow


@dataclass(frozen=True, slots=True)
class ReadLedger(StoreCommand[Ledger]):
    caller: Caller


# idempotency


@dataclass(frozen=True, slots=True)
class BeginIdempotent(StoreCommand[IdempotencyRecord | bytes]):
    """Look up or create an idempotency record. The stored answer is returned encrypted.

    `mark` is the microseconds of the lease's end, so it ends up to two seconds before `lease_s`.
    """

    account_id: str
    key: str
    body_sha256: str
    lease_s: float
    keep_s: float
    mark: int
    holder: str | None = None  # the process in which it runs; see lease_holders

    def lease_until(self, now: datetime) -> datetime:
        return (now + timedelta(seconds=self.lease_s - 1)).replace(microsecond=self.mark)


@dataclass(frozen=True, slots=True)
class FinishIdempotent(StoreCommand[None]):
    """End an idempotent request that counted nothing, with its encrypted answer or None.

    None deletes the record of the same mark, whenever its lease ends.
    """

    idempotency: IdempotencyRecord
    answer: bytes | None

    @property
    def account_id(self) -> str:
        """Whose request it is."""
        return self.idempotency.account_id


# jobs


@dataclass(frozen=True, slots=True)
class CreateJob(StoreCommand[Job | R], Generic[R]):
    """A job to store, with its secret encrypted. It is its own reservation of one unit."""

    caller: Caller
    order: JobOrder
    secret: bytes | None
    check_limits: Callable[[Ledger], R | None]
    first: EncryptedFirst | None = None
    units: int = 1

    @property
    def holds_units(self) -> bool:
        """Whether the unit is reserved, or counted in the window alone."""
        return self.order.first_state == "pending"


@dataclass(frozen=True, slots=True)
class ClaimJobs(StoreCommand[list[EncryptedClaim]]):
    work: Work
    limit: int
    each_max: int
    lease_s: float
    account_max: int | None = None


@dataclass(frozen=True, slots=True)
class _ClaimCommand:
    claim: Claim

    @property
    def caller(self) -> Caller:
        """Whose job it is."""
        return self.claim.caller


@dataclass(frozen=True, slots=True)
class JobVerified(_ClaimCommand, StoreCommand[bool]):
    row: UsageRow
    payload: bytes
    emit_meter_event: bool


@dataclass(frozen=True, slots=True)
class JobAttempted(_ClaimCommand, StoreCommand[bool]):
    attempt: Attempt
    state: JobState
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class PostponeJob(_ClaimCommand, StoreCommand[bool]):
    due_at: datetime


@dataclass(frozen=True, slots=True)
class AbandonJob(_ClaimCommand, StoreCommand[bool]):
    pass


# the outbox


@dataclass(frozen=True, slots=True)
class EnqueueMessage(StoreCommand[bool]):
    account_id: str
    kind: MessageKind
    name: str
    body: bytes
    due_at: datetime


# connection leases


@dataclass(frozen=True, slots=True)
class LeaseConnections(StoreCommand[Mapping[str, int]]):
    holder: str
    requested: Mapping[str, LeaseRequest]  # by IP address
    limit: int
    lease_s: float


# of one account each: a database may combine them in one transaction
Outcome = JobVerified | JobAttempted | PostponeJob | AbandonJob  # of a claimed job
AccountCommand = EnqueueMessage | BeginIdempotent | FinishIdempotent | CreateKey
BatchCommand = (
    Reserve[object]
    | Spend[object]
    | CreateJob[object]
    | Extend
    | Settle
    | LogRefusal
    | Outcome
    | AccountCommand
)
