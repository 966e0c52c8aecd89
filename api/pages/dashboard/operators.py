"""Accounts that run the service: those that a setting names, else the first that was created.

The first account is made by the link that only the operator of the machine reads, or by a
command there. It stays the first when it is deleted, so that no other account becomes the
operator's by a deletion.
"""

from mailprobe.storage.records import Account
from mailprobe.storage.store import Store

PAGE = "/dashboard/operator"
ACCOUNTS = f"{PAGE}/accounts"


class Operators:
    """Tells the operator's accounts from others."""

    def __init__(self, store: Store, named: frozenset[str] | None) -> None:
        """`named`: ids or e-mail addresses in lower case; None if the setting is not there."""
        self._store = store
        self._named = named
        self._first: str | None = None  # its id, which never changes

    async def includes(self, account: Account) -> bool:
        """Whether this account is an operator's. Raises StoreUnavailable."""
        if self._named is not None:
            return bool({account.id.lower(), account.email.lower()} & self._named)
        if self._first is None:
            self._first = await self._store.first_account_id()
        return account.id == self._first
