"""Addresses of a request that bounced before, as the account has reported.

Most accounts feed nothing back, so that nothing is looked up for them but, each EMPTY_S, whether
that has changed.
"""

from collections.abc import Mapping, Sequence

import trio
from msgspec import Struct, field

from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.storage.records import Caller
from mailprobe.storage.store import Store

EMPTY_S = 10.0  # so long another process may take to notice an account's first bounce
ACCOUNTS_MAX = 10_000  # whose bounces are known to be none: a few MB
NONE: Mapping[str, str] = {}


class BouncedAddresses(Struct, frozen=True):
    """What the accounts have fed back; one for a process."""

    _store: Store
    _empty_until: dict[str, float] = field(default_factory=dict)  # by account

    async def among(self, caller: Caller, texts: Sequence[str]) -> Mapping[str, str]:
        """The mailboxes that bounced, in lower case, with how it is known; none of a test key's.

        See open_answers(). Raises StoreUnavailable.
        """
        if caller.key.is_test:
            return NONE
        account_id, now = caller.account.id, trio.current_time()
        if self._empty_until.get(account_id, now) > now:
            return NONE
        if not await self._store.has_bounces(account_id):
            if len(self._empty_until) >= ACCOUNTS_MAX:
                self._empty_until.clear()
            self._empty_until[account_id] = now + EMPTY_S
            return NONE
        found = await self._store.bounces(account_id, [*mailboxes_of(texts)])
        return {
            mailbox: f"{bounce.source}, {bounce.at.date().isoformat()}"
            for mailbox, bounce in found.items()
        }

    def forget(self, account_id: str) -> None:
        """The account feeds bounces back: look again at the next request."""
        self._empty_until.pop(account_id, None)


def mailboxes_of(texts: Sequence[str]) -> dict[str, None]:
    """The mailboxes of those texts that are addresses, each once."""
    found: dict[str, None] = {}
    for text in texts:
        try:
            found[parse(text).mailbox] = None
        except NotAnAddress:
            continue
    return found
