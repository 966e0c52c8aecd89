"""Addresses whose mail came back, by account: a keyed hash of each, never the address.

An account's hashes cannot be compared with another's, nor made without the secret key.
"""

import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from .base.columns import instant, micros
from .callers import number_of
from .database import Database, StorePart, read

BOUNCES_KEPT = timedelta(days=90)  # by then a mailbox may have a new owner
BOUNCES_MAX = 200_000  # of an account, the newest: 30 MB; to trim them takes some milliseconds
ASKED_MAX = 500  # hashes in one statement
HASH_DIGITS = 32  # 128 bits: no two addresses share them by chance
KEPT = "account = (SELECT number FROM accounts WHERE id = :id) AND at > :since"


class Bounce(Struct, frozen=True):
    """When and by what it became known that an address takes no mail."""

    source: str
    at: datetime


def has_bounces(db: Database, account_id: str) -> bool:
    """Return whether any bounce of the account is kept."""
    values = {"id": account_id, "since": micros(db.now() - BOUNCES_KEPT)}
    return bool(db.all(f"SELECT 1 FROM bounces WHERE {KEPT} LIMIT 1", values))


class BounceStore(StorePart):
    """The part of the store that keeps bounces."""

    has_bounces = read(has_bounces)

    async def record_bounces(self, account_id: str, mailboxes: Sequence[str], source: str) -> None:
        """Keep for BOUNCES_KEPT that these mailboxes do not exist; a repetition starts it anew.

        Case does not count. Only the newest BOUNCES_MAX of an account are kept. Raises KeyError if
        there is no such account.
        """
        hashes = list(self._by_hash(account_id, mailboxes))
        for begin in range(0, len(hashes), ASKED_MAX):
            await self.executor.write(
                _record, account_id, hashes[begin : begin + ASKED_MAX], source
            )

    async def forget_bounces(self, account_id: str, mailboxes: Sequence[str]) -> int:
        """Forget that mail to these mailboxes came back; return how many had been kept."""
        hashes = list(self._by_hash(account_id, mailboxes))
        return sum(
            [
                await self.executor.write(_forget, account_id, hashes[begin : begin + ASKED_MAX])
                for begin in range(0, len(hashes), ASKED_MAX)
            ]
        )

    async def bounces(self, account_id: str, mailboxes: Sequence[str]) -> dict[str, Bounce]:
        """Return those of the mailboxes that bounced, in lower case."""
        by_hash = self._by_hash(account_id, mailboxes)
        hashes, found = list(by_hash), dict[str, Bounce]()
        for begin in range(0, len(hashes), ASKED_MAX):
            part = hashes[begin : begin + ASKED_MAX]
            for each, bounce in (await self.executor.read(_find, account_id, part)).items():
                found[by_hash[each]] = bounce
        return found

    def _by_hash(self, account_id: str, mailboxes: Sequence[str]) -> dict[str, str]:
        key = self._cipher.derived_key("bounces")
        folded = (mailbox.lower() for mailbox in mailboxes)
        return {
            hmac.digest(key, f"{account_id} {each}".encode(), "sha256").hex()[:HASH_DIGITS]: each
            for each in folded
        }


# the transactions of some hashes each


def _record(db: Database, account_id: str, hashes: Sequence[str], source: str) -> None:
    account = number_of(db, account_id)
    row = {"account": account, "source": source, "at": micros(db.now())}
    db.change_each(
        "INSERT INTO bounces (account, address, source, at)"
        " VALUES (:account, :address, :source, :at) ON CONFLICT (account, address)"
        " DO UPDATE SET source = excluded.source, at = excluded.at",
        # in one order, so that two transactions do not wait for each other
        [{**row, "address": address} for address in sorted(hashes)],
    )
    db.change(
        "DELETE FROM bounces WHERE account = :account AND at <= (SELECT at FROM bounces"
        " WHERE account = :account ORDER BY at DESC LIMIT 1 OFFSET :most)",
        {"account": account, "most": BOUNCES_MAX},
    )


def _forget(db: Database, account_id: str, hashes: Sequence[str]) -> int:
    names, values = _placeholders(hashes)
    where = f"{KEPT} AND address IN ({names})"
    values |= {"id": account_id, "since": micros(db.now() - BOUNCES_KEPT)}
    ((kept,),) = db.all(f"SELECT count(*) FROM bounces WHERE {where}", values)
    db.change(f"DELETE FROM bounces WHERE {where}", values)
    return int(kept)


def _find(db: Database, account_id: str, hashes: Sequence[str]) -> Mapping[str, Bounce]:
    names, values = _placeholders(hashes)
    rows = db.all(
        f"SELECT address, source, at FROM bounces WHERE {KEPT} AND address IN ({names})",
        {**values, "id": account_id, "since": micros(db.now() - BOUNCES_KEPT)},
    )
    return {address: Bounce(source, instant(at)) for address, source, at in rows}


def _placeholders(hashes: Sequence[str]) -> tuple[str, dict[str, str | int]]:
    """The names of these values in a statement, and the values."""
    values = {f"h{n}": each for n, each in enumerate(hashes)}
    return ", ".join(f":{name}" for name in values), {**values}
