"""Commands that a batch may combine: each names the caller or account that the batch locks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailprobe.storage.checks import units_of
from mailprobe.storage.encrypted_columns import EncryptedFirst
from mailprobe.storage.records import (
    Attempt,
    Caller,
    Claim,
    IdempotencyRecord,
    JobOrder,
    JobState,
    Key,
    KeyKind,
    Ledger,
    MessageKind,
    Reservation,
    UsageRow,
)


@dataclass(frozen=True, slots=True)
class Reserve:
    caller: Caller
    units: int
    check_limits: Callable[[Ledger], Any]
    lease_s: float


@dataclass(frozen=True, slots=True)
class Spend:
    """Rows known before the limits are checked: granted, logged and counted in one step."""

    caller: Caller
    rows: Sequence[UsageRow]
    check_limits: Callable[[Ledger], Any]
    metered: bool
    first: EncryptedFirst | None = None

    @property
    def units(self) -> int:
        return units_of(self.rows)


@dataclass(frozen=True, slots=True)
class CreateJob:
    """A job to store, with its secret encrypted. It is its own reservation of one unit."""

    caller: Caller
    order: JobOrder
    secret: bytes | None
    check_limits: Callable[[Ledger], Any]
    first: EncryptedFirst | None = None
    units: int = 1


@dataclass(frozen=True, slots=True)
class _OfReservation:
    reservation: Reservation

    @property
    def caller(self) -> Caller:
        return self.reservation.caller


@dataclass(frozen=True, slots=True)
class Extend(_OfReservation):
    lease_s: float


@dataclass(frozen=True, slots=True)
class Settle(_OfReservation):
    rows: Sequence[UsageRow]
    part: int
    ends: bool
    metered: bool
    first: EncryptedFirst | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    caller: Caller
    row: UsageRow


@dataclass(frozen=True, slots=True)
class _ClaimCommand:
    claim: Claim

    @property
    def caller(self) -> Caller:
        return self.claim.caller


@dataclass(frozen=True, slots=True)
class Verified(_ClaimCommand):
    row: UsageRow
    payload: bytes
    metered: bool


@dataclass(frozen=True, slots=True)
class JobAttempted(_ClaimCommand):
    attempt: Attempt
    state: JobState
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Abandoned(_ClaimCommand):
    pass


@dataclass(frozen=True, slots=True)
class Post:
    account_id: str
    kind: MessageKind
    name: str
    body: bytes
    due_at: datetime


@dataclass(frozen=True, slots=True)
class Begin:
    """Look up or create an idempotency record. The stored answer is encrypted; `_s` are seconds."""

    account_id: str
    key: str
    body_sha256: str
    lease_s: float
    keep_s: float


@dataclass(frozen=True, slots=True)
class Finish:
    """End an idempotent request that counted nothing, with its encrypted answer or None."""

    idempotency: IdempotencyRecord
    answer: bytes | None

    @property
    def account_id(self) -> str:
        return self.idempotency.account_id


@dataclass(frozen=True, slots=True)
class NewKey:
    account_id: str
    kind: KeyKind
    label: str | None
    sha256: str
    prefix: str
    keys_max: int | None
    keys_per_minute_max: int | None = None
    idempotency: IdempotencyRecord | None = None
    answer: Callable[[Key], EncryptedFirst] | None = None


Outcome = Verified | JobAttempted | Abandoned  # of a claimed job
AccountCommand = Post | Begin | Finish | NewKey
Command = Reserve | Spend | CreateJob | Extend | Settle | Refuse | Outcome | AccountCommand
