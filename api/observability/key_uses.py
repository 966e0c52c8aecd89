"""When keys were last used, for their owners: collected here, and stored once a minute.

A request only adds to a set. A killed process loses its last minute of uses, which the next
hour's make up for.
"""

from datetime import datetime

from mailprobe.storage.contract import KEY_USE_EVERY
from mailprobe.storage.records import Key
from mailprobe.storage.store import Store

# Of a minute: 1 MB. Keys beyond it are noted in the next minute in which they are used.
PENDING_MAX = 10_000


class KeyUses:
    """Keys that were used since the last time they were stored."""

    def __init__(self) -> None:
        self._pending: set[str] = set()

    def note(self, key: Key, now: datetime) -> None:
        """A request came with this key. Never waits."""
        is_known = key.used_at is not None and now - KEY_USE_EVERY < key.used_at
        if not is_known and len(self._pending) < PENDING_MAX:
            self._pending.add(key.id)

    async def save(self, store: Store) -> None:
        """Store what was noted since the last time. Raises StoreUnavailable."""
        noted = sorted(self._pending)
        if noted:
            await store.note_key_uses(noted)
            self._pending.difference_update(noted)
