"""Browser sessions that were signed out before their cookies end.

The statements are those that SQLite and PostgreSQL share: see `mailprobe.storage.sql`.
"""

from dataclasses import dataclass
from datetime import datetime

from mailprobe.storage.columns import micros
from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.reputation import ReputationStore
from mailprobe.storage.sql.database import Database


@dataclass(frozen=True, slots=True)
class EndSession(StoreCommand[None]):
    id: str
    until: datetime


@dataclass(frozen=True, slots=True)
class HasSessionEnded(StoreCommand[bool]):
    id: str


class SessionStore(ReputationStore):
    """The part of the store that keeps ended sessions."""

    async def end_session(self, session_id: str, until: datetime) -> None:
        """Remember that the session has ended, until its cookie is valid no longer."""
        await self._execute(EndSession(session_id, until))

    async def has_session_ended(self, session_id: str) -> bool:
        """Return whether the session was ended."""
        return await self._execute(HasSessionEnded(session_id))


def end(db: Database, command: EndSession) -> None:
    """See SessionStore.end_session."""
    db.change(
        "INSERT INTO ended_sessions (id, until) VALUES (:id, :until) ON CONFLICT (id) DO NOTHING",
        {"id": command.id, "until": micros(command.until)},
    )


def has_ended(db: Database, command: HasSessionEnded) -> bool:
    """See SessionStore.has_session_ended."""
    return bool(db.all("SELECT 1 FROM ended_sessions WHERE id = :id", {"id": command.id}))
