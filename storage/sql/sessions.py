"""Transactions of browser sessions that were signed out, and of challenges that were used."""

from mailprobe.storage import audit
from mailprobe.storage.audit import Act
from mailprobe.storage.columns import micros
from mailprobe.storage.database import Database
from mailprobe.storage.sessions import EndSession, HasSessionEnded, UseChallenge

ENDED = "INSERT INTO ended_sessions (id, until) VALUES (:id, :until) ON CONFLICT (id) DO NOTHING"


def end(db: Database, command: EndSession) -> None:
    """See SessionStore.end_session."""
    if db.change(ENDED, {"id": command.id, "until": micros(command.until)}):
        audit.add_to(db, command.account_id, command.by, Act("signed_out"))


def has_ended(db: Database, command: HasSessionEnded) -> bool:
    """See SessionStore.has_session_ended."""
    return bool(db.all("SELECT 1 FROM ended_sessions WHERE id = :id", {"id": command.id}))


def use_challenge(db: Database, command: UseChallenge) -> bool:
    """See SessionStore.use_challenge."""
    return bool(db.change(ENDED, {"id": f"challenge {command.id}", "until": micros(command.until)}))
