"""Credentials that have ended before their time: browser sessions, challenges that were used."""

from datetime import datetime

from mailprobe.storage import audit
from mailprobe.storage.audit import Act
from mailprobe.storage.base.columns import micros
from mailprobe.storage.database import Database
from mailprobe.storage.records import Actor
from mailprobe.storage.store_part import StorePart
from mailprobe.storage.transaction import read, write

ENDED = "INSERT INTO ended_sessions (id, until) VALUES (:id, :until) ON CONFLICT (id) DO NOTHING"


def end_session(db: Database, session_id: str, until: datetime, account_id: str, by: Actor) -> None:
    """Remember that the session has ended, until its cookie is valid no longer."""
    if db.change(ENDED, {"id": session_id, "until": micros(until)}):
        audit.add_to(db, account_id, by, Act("signed_out"))


def has_session_ended(db: Database, session_id: str) -> bool:
    """Return whether the session was ended."""
    return bool(db.all("SELECT 1 FROM ended_sessions WHERE id = :id", {"id": session_id}))


def use_challenge(db: Database, challenge_id: str, until: datetime) -> bool:
    """Use a challenge that is good until then; False if it was used, in whatever process."""
    return bool(db.change(ENDED, {"id": f"challenge {challenge_id}", "until": micros(until)}))


class SessionStore(StorePart):
    """The part of the store that keeps ended sessions and used challenges, until their time."""

    end_session = write(end_session)
    has_session_ended = read(has_session_ended)
    use_challenge = write(use_challenge)
