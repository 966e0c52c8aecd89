"""Browser sessions that were signed out before their cookies end."""

from dataclasses import dataclass
from datetime import datetime

from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.oversight import OversightStore
from mailprobe.storage.records import Actor


@dataclass(frozen=True, slots=True)
class EndSession(StoreCommand[None]):
    id: str
    until: datetime
    account_id: str
    by: Actor


@dataclass(frozen=True, slots=True)
class HasSessionEnded(StoreCommand[bool]):
    id: str


class SessionStore(OversightStore):
    """The part of the store that keeps ended sessions."""

    async def end_session(
        self, session_id: str, until: datetime, account_id: str, by: Actor
    ) -> None:
        """Remember that the session has ended, until its cookie is valid no longer."""
        await self._execute(EndSession(session_id, until, account_id, by))

    async def has_session_ended(self, session_id: str) -> bool:
        """Return whether the session was ended."""
        return await self._execute(HasSessionEnded(session_id))
