"""The Store: what the API needs remembered, one transaction a method.

Three stores keep one contract (tests/storage/test_store.py): memory, the
readable specification; SQLite, the default; PostgreSQL, for many machines.
A store that can't answer raises StoreUnavailable within a second and heals by
itself. What has returned is durable. The clock is read after the lock is held.
A caller that is cancelled leaves either the whole of a transaction or nothing
of it; once a transaction has begun, its caller gets the result before it learns
that it was cancelled, so no reservation is ever without somebody who knows it.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import date, datetime, timedelta
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


WINDOW = timedelta(seconds=60)  # the sliding window; units that old weigh no more
REFUSALS_SINGLE_MAX = 20  # of a key, a minute and a reason: a row each; then one row for the rest
ANSWER_OCTETS_MAX = 4 * 1024 * 1024  # 50 results with the longest evidence are far below
USAGE_ROWS_MAX = 10_000  # shown at a time: look-ups of keys wait behind them
CHANGEABLE = {field.name for field in fields(Account)} - {"id", "created_at"}
SETTLED_KEPT = timedelta(days=7)  # a reservation settled again within it is recognised


class StoreUnavailable(Exception):
    """The store could not be asked just now; nothing was changed.

    One case is open: where the disk itself stalls in mid-commit, what was asked
    may yet come true. A reservation then ends with its lease, and `settle` may
    be called again.
    """


class StoreBroken(StoreUnavailable):
    """What is there is no store of ours, and waiting will not heal it: one line for the operator."""


class KeyLimitReached(Exception):
    """The account has as many standard keys as it may have."""


class IdempotencyInProgress(Exception):
    """The first request with this idempotency key is still running."""


class IdempotencyKeyReused(Exception):
    """This idempotency key came with another body before."""


def check_units(units: int) -> None:
    if units < 1:
        raise ValueError(f"{units} units cannot be reserved")


def check_changes(changes: dict[str, Any]) -> None:
    fixed = changes.keys() - CHANGEABLE
    if fixed:
        raise TypeError(f"an account has no {', '.join(sorted(fixed))} to change")


def check_answer(answer: Answered | None) -> None:
    if answer and len(answer.body) > ANSWER_OCTETS_MAX:
        raise ValueError(f"an answer of {len(answer.body)} octets cannot be kept")


class Store(Protocol):
    """Everything that is remembered."""

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account: ...

    async def account(self, account_id: str) -> Account | None: ...

    async def accounts(self) -> list[Account]: ...

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        """Set fields of Account by name; None where there is no such account.

        Raises TypeError for a name that is no field, or one that never changes
        (`id`, `created_at`).
        """
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

        Provisioning keys are neither counted nor bounded. Raises KeyLimitReached,
        KeyError where there is no such account, ValueError for a hash that is
        kept already.
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

        weigh() may run in another thread while the lock is held: pure and quick.
        What it raises, this raises, and nothing is granted. A reservation that
        nobody settles or extends within `lease_s` is given back: its units leave
        quota and `reserved`. The sliding window keeps what was granted, used or not.
        Raises ValueError for less than one unit.
        """
        ...

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        """Let the lease end `lease_s` from now; one that has ended or was settled stays so."""
        ...

    async def settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        *,
        part: int = 0,
        ends: bool = True,
    ) -> None:
        """Log what was used, whole or in parts; the part that `ends` gives back what was not used.

        Each part of a reservation, by its number, is logged once: a second call
        with it changes nothing, and parts may come in any order. What a part uses
        is no longer reserved. Rows of a reservation whose lease had ended are
        still counted. Each row counts where its instant lies: its UTC day and
        month, its billing period.
        """
        ...

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        """Log a refused request: a row each while they are few, one a minute in a flood.

        It weighs on nothing, whatever the row's `units` say.
        """
        ...

    async def ledger(self, caller: Caller) -> Ledger:
        """The ledger as it is, to show; nothing is changed."""
        ...

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        """Billable verifications of each UTC day, zeros left out, oldest first."""
        ...

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        """The rows that retention has left, newest first; of one instant the last logged first.

        Refusals are among them. At most USAGE_ROWS_MAX, however many are asked for.
        """
        ...

    # idempotency

    async def begin_once(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | None:
        """None: go on, this is the first; else the answer that was given.

        Raises IdempotencyInProgress, IdempotencyKeyReused (which wins), and KeyError
        where there is no such account. A first request that died is forgotten
        after `lease_s`, an answer `keep_s` after its request began.
        """
        ...

    async def finish_once(self, account_id: str, key: str, answer: Answered | None) -> None:
        """Keep the answer for later requests, or (None) let the key be used again.

        The first answer stays: nothing is kept for a key that nobody has begun or
        that has its answer. Raises ValueError for a body of more than ANSWER_OCTETS_MAX.
        """
        ...

    # upkeep

    async def tidy(self, retention_days: dict[Tier, int]) -> None:
        """Drop rows past their retention, ended leases, old windows. Counts stay as they are.

        A row is kept on its own UTC day and for `retention_days` whole days after it.
        """
        ...

    async def check(self) -> datetime:
        """The store's clock; raises StoreUnavailable. For health and the doctor."""
        ...
