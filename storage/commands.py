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
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from msgspec import Struct

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


class EncryptedFirst(Struct, frozen=True):
    """A FirstAnswer as it is stored."""

    idempotency: IdempotencyRecord
    answer: bytes


class Raised(Struct, frozen=True):
    """An error to raise at the caller. A refusal, even an exception, is returned as a value."""

    error: Exception


# accounts and keys


class CreateKey(StoreCommand[Key], frozen=True):
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


class Reserve(StoreCommand[Reservation | R], Generic[R], frozen=True):
    caller: Caller
    units: int
    check_limits: Callable[[Ledger], R | None]
    lease_s: float

    @property
    def holds_units(self) -> bool:
        """Whether the units are reserved, or counted in the window alone."""
        return self.lease_s > 0


class Spend(StoreCommand[R | None], Generic[R], frozen=True):
    """Rows known before the limits are checked: granted, logged and counted in one step."""

    caller: Caller
    rows: Sequence[UsageRow]
    check_limits: Callable[[Ledger], R | None]
    emit_meter_event: bool
    first: EncryptedFirst | None = None

    @property
    def units(self) -> int:
        return units_of(self.rows)


class _ReservationCommand(Struct, frozen=True):
    reservation: Reservation

    @property
    def caller(self) -> Caller:
        """Whose units they are."""
        return self.reservation.caller


class Extend(_ReservationCommand, StoreCommand[None], frozen=True):
    lease_s: float


class Settle(_ReservationCommand, StoreCommand[None], frozen=True):
    rows: Sequence[UsageRow]
    part: int = 0
    ends: bool = True
    emit_meter_event: bool = False
    first: EncryptedFirst | None = None
    chunk: ChunkPart | None = None


class LogRefusal(StoreCommand[None], frozen=True):
    caller: Caller
    row: UsageRow


class ReadLedger(StoreCommand[Ledger], frozen=True):
    caller: Caller


# idempotency


class BeginIdempotent(StoreCommand[IdempotencyRecord | bytes], frozen=True):
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


class FinishIdempotent(StoreCommand[None], frozen=True):
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


class CreateJob(StoreCommand[Job | R], Generic[R], frozen=True):
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


class ClaimJobs(StoreCommand[list[EncryptedClaim]], frozen=True):
    work: Work
    limit: int
    each_max: int
    lease_s: float
    account_max: int | None = None


class _ClaimCommand(Struct, frozen=True):
    claim: Claim

    @property
    def caller(self) -> Caller:
        """Whose job it is."""
        return self.claim.caller


class JobVerified(_ClaimCommand, StoreCommand[bool], frozen=True):
    row: UsageRow
    payload: bytes
    emit_meter_event: bool


class JobAttempted(_ClaimCommand, StoreCommand[bool], frozen=True):
    attempt: Attempt
    state: JobState
    due_at: datetime | None


class PostponeJob(_ClaimCommand, StoreCommand[bool], frozen=True):
    due_at: datetime


class AbandonJob(_ClaimCommand, StoreCommand[bool], frozen=True):
    pass


# the outbox


class EnqueueMessage(StoreCommand[bool], frozen=True):
    account_id: str
    kind: MessageKind
    name: str
    body: bytes
    due_at: datetime


# connection leases


class LeaseConnections(StoreCommand[Mapping[str, int]], frozen=True):
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
