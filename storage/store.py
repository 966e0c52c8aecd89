"""The Store: what the API needs remembered, one transaction a method.

Three stores keep one contract (tests/storage/test_store.py): memory, the
readable specification; SQLite, the default; PostgreSQL, for many machines.
A store that can't answer raises StoreUnavailable within a second and heals by
itself. What `settle` and `reserve` have returned is durable. The clock is read
after the lock is held. A caller that is cancelled leaves either the whole of a
transaction or nothing of it.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any, Protocol, TypeVar

from storage.records import (
    Account,
    Answered,
    Caller,
    DayCount,
    Key,
    KeyKind,
    Ledger,
    Reservation,
    Tier,
    UsageRow,
)

R = TypeVar("R")


class StoreUnavailable(Exception):
    """The store could not be asked just now; nothing was changed."""


class KeyLimitReached(Exception):
    """The account has as many standard keys as it may have."""


class IdempotencyInProgress(Exception):
    """The first request with this idempotency key is still running."""


class IdempotencyKeyReused(Exception):
    """This idempotency key came with another body before."""


class Store(Protocol):
    """Everything that is remembered."""

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account: ...

    async def account(self, account_id: str) -> Account | None: ...

    async def accounts(self) -> list[Account]: ...

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        """Set fields of Account by name; None where there is no such account."""
        ...

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
        """Keep a key's hash. `keys_max` bounds the account's active standard keys.

        Raises KeyLimitReached, and KeyError where there is no such account.
        """
        ...

    async def keys(self, account_id: str) -> list[Key]:
        """The active keys of both kinds, oldest first."""
        ...

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        """Revoke for good; False where the account (None: any) has no such active key."""
        ...

    async def caller(self, sha256: str) -> Caller | None:
        """Whose key this hash is; None for an unknown or a revoked one."""
        ...

    # metering

    async def reserve(
        self, caller: Caller, units: int, weigh: Callable[[Ledger], R | None], *, lease_s: float
    ) -> Reservation | R:
        """Read the ledger, weigh, and where weigh() gives None grant the units, in one transaction.

        A reservation that nobody settles or extends within `lease_s` is given
        back: its units leave quota and `reserved`; the sliding window keeps them.
        """
        ...

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None: ...

    async def settle(self, reservation: Reservation, rows: Sequence[UsageRow]) -> None:
        """Log what was used and end the reservation; what was not used is given back, once.

        A second call for the same reservation changes nothing. Rows of a
        reservation whose lease had ended are still counted.
        """
        ...

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        """Log a refused request: a row each while they are few, one a minute in a flood."""
        ...

    async def ledger(self, caller: Caller) -> Ledger:
        """The ledger as it is, to show; nothing is changed."""
        ...

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        """Billable verifications of each UTC day, zeros left out, oldest first."""
        ...

    # idempotency

    async def begin_once(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | None:
        """None: go on, this is the first; else the answer that was given.

        Raises IdempotencyInProgress, IdempotencyKeyReused. A first request that
        died is forgotten after `lease_s`.
        """
        ...

    async def finish_once(self, account_id: str, key: str, answer: Answered | None) -> None:
        """Keep the answer for later requests, or (None) let the key be used again."""
        ...

    # upkeep

    async def tidy(self, retention_days: dict[Tier, int]) -> None:
        """Drop rows past their retention, ended leases, old windows. Counts stay as they are."""
        ...

    async def check(self) -> datetime:
        """The store's clock; raises StoreUnavailable. For health and the doctor."""
        ...
