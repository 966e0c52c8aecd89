"""The part of the store that carries facts between processes."""

from collections.abc import Sequence

from mailprobe.storage.facts.commands import ReadFacts, WriteFacts
from mailprobe.storage.facts.records import READ_MAX, WRITTEN_MAX, FactsRead, NewFact, is_sound
from mailprobe.storage.store_part import StorePart


class FactStore(StorePart):
    """Facts about domains and mail hosts, until their end. See mailprobe.storage.facts.records."""

    async def write_facts(self, facts: Sequence[NewFact], *, by_process: str) -> None:
        """Store facts; each replaces the one of its kind and key that ends sooner, and is read anew by all.

        Raises ValueError for more than WRITTEN_MAX, or one that is too long or lasts too long.
        """
        if len(facts) > WRITTEN_MAX or not all(map(is_sound, facts)):
            raise ValueError("too many facts, or one that may not be stored")
        await self._execute(WriteFacts(facts, by_process))

    async def read_facts(
        self, after: int, *, not_by: str, kind: str | None = None, limit: int = READ_MAX
    ) -> FactsRead:
        """Return the facts behind number `after` that have not ended and are not this process's.

        A caller that continues behind `last` misses none, whatever the order of the commits. A fact's
        `left_s` is by the store's clock, and at most KEPT_S_MAX.
        """
        return await self._execute(ReadFacts(after, not_by, kind, min(limit, READ_MAX)))
