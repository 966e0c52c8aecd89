"""The look-up of callers: keys with their accounts. It is each request's first call."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from .base.columns import ACCOUNT_COLUMNS, ACCOUNT_FIELDS, KEY_COLUMNS, account_of, key_of
from .database import Database, Row, encoded
from .records import Caller

COLUMNS = f"{ACCOUNT_COLUMNS}, {KEY_COLUMNS}"
OF_KEYS = "keys JOIN accounts ON accounts.number = keys.account"
ACTIVE = f"SELECT sha256, {COLUMNS} FROM {OF_KEYS} WHERE revoked_at IS NULL AND sha256"
CALLERS_MAX = 4096  # 1.5 KB per entry


@lru_cache(maxsize=CALLERS_MAX)
def caller_of(row: Row) -> Caller:
    """Make a Caller from a row of COLUMNS. Cached: most requests come from few callers."""
    fields = len(ACCOUNT_FIELDS)
    return Caller(account_of(row[:fields]), key_of(row[fields:]))


def find_callers(db: Database, hashes: Sequence[str]) -> list[Caller | None]:
    """Return the active keys with these hashes; None for an unknown or a revoked one."""
    asked = {"hashes": encoded(list(set(hashes)))}
    rows = db.all(f"{ACTIVE} {db.among('hashes', 'text')}", asked)
    found = {sha256: caller_of(tuple(row)) for sha256, *row in rows}
    return [found.get(sha256) for sha256 in hashes]


def callers_of_keys(db: Database, numbers: Sequence[int]) -> Mapping[int, Caller]:
    """Return the callers by the number of their key, revoked or not."""
    found = db.all_each(
        f"SELECT {COLUMNS} FROM {OF_KEYS} WHERE keys.number = :number",
        [{"number": number} for number in numbers],
    )
    return {number: caller_of(row) for number, (row,) in zip(numbers, found, strict=True)}


def number_of(db: Database, account_id: str) -> int:
    """Return the account's row number. Raises KeyError if there is none."""
    found = db.all("SELECT number FROM accounts WHERE id = :id", {"id": account_id})
    if not found:
        raise KeyError(account_id)
    return int(found[0][0])
