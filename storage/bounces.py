"""Addresses whose mail came back, by account: a keyed hash of each, never the address.

An account's hashes cannot be compared with another's, nor made without the secret key.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.store_part import StorePart

BOUNCES_KEPT = timedelta(days=90)  # by then a mailbox may have a new owner
BOUNCES_MAX = 200_000  # of an account, the newest: 30 MB; to trim them takes some milliseconds
ASKED_MAX = 500  # hashes in one statement
HASH_DIGITS = 32  # 128 bits: no two addresses share them by chance


@dataclass(frozen=True, slots=True)
class Bounce:
    """When and by what it became known that an address takes no mail."""

    source: str
    at: datetime


@dataclass(frozen=True, slots=True)
class RecordBounces(StoreCommand[None]):
    account_id: str
    hashes: Sequence[str]
    source: str


@dataclass(frozen=True, slots=True)
class HasBounces(StoreCommand[bool]):
    account_id: str


@dataclass(frozen=True, slots=True)
class FindBounces(StoreCommand[Mapping[str, Bounce]]):
    account_id: str
    hashes: Sequence[str]


@dataclass(frozen=True, slots=True)
class ForgetBounces(StoreCommand[int]):
    account_id: str
    hashes: Sequence[str]


class BounceStore(StorePart):
    """The part of the store that keeps bounces."""

    async def record_bounces(self, account_id: str, mailboxes: Sequence[str], source: str) -> None:
        """Keep for BOUNCES_KEPT that these mailboxes do not exist; a repetition starts it anew.

        Case does not count. Only the newest BOUNCES_MAX of an account are kept. Raises KeyError if
        there is no such account.
        """
        hashes = list(self._by_hash(account_id, mailboxes))
        for begin in range(0, len(hashes), ASKED_MAX):
            part = hashes[begin : begin + ASKED_MAX]
            await self._execute(RecordBounces(account_id, part, source))

    async def forget_bounces(self, account_id: str, mailboxes: Sequence[str]) -> int:
        """Forget that mail to these mailboxes came back; return how many had been kept."""
        hashes = list(self._by_hash(account_id, mailboxes))
        return sum(
            [
                await self._execute(ForgetBounces(account_id, hashes[begin : begin + ASKED_MAX]))
                for begin in range(0, len(hashes), ASKED_MAX)
            ]
        )

    async def has_bounces(self, account_id: str) -> bool:
        """Return whether any bounce of the account is kept."""
        return await self._execute(HasBounces(account_id))

    async def bounces(self, account_id: str, mailboxes: Sequence[str]) -> dict[str, Bounce]:
        """Return those of the mailboxes that bounced, in lower case."""
        by_hash = self._by_hash(account_id, mailboxes)
        hashes, found = list(by_hash), dict[str, Bounce]()
        for begin in range(0, len(hashes), ASKED_MAX):
            part = hashes[begin : begin + ASKED_MAX]
            for each, bounce in (await self._execute(FindBounces(account_id, part))).items():
                found[by_hash[each]] = bounce
        return found

    def _by_hash(self, account_id: str, mailboxes: Sequence[str]) -> dict[str, str]:
        key = self._cipher.derived_key("bounces")
        folded = (mailbox.lower() for mailbox in mailboxes)
        return {
            hmac.digest(key, f"{account_id} {each}".encode(), "sha256").hex()[:HASH_DIGITS]: each
            for each in folded
        }
