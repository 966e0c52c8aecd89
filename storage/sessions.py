"""What has ended before its time: browser sessions, challenges that were used. The last use of keys."""

from collections.abc import Sequence
from datetime import datetime

from mailprobe.storage import audit
from mailprobe.storage.audit import Act
from mailprobe.storage.base.columns import micros
from mailprobe.storage.contract import KEY_USE_EVERY
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


KEYS_NOTED_MAX = 500  # in one transaction: some milliseconds, so that no request waits long


def note_uses(db: Database, key_ids: Sequence[str]) -> None:
    """Write that the keys were used now, each at most once in KEY_USE_EVERY."""
    now = db.now()
    # An instant that a clock wrote which was ahead is corrected. In order, so that two
    # processes never wait for each other's rows.
    db.change_each(
        "UPDATE keys SET used_at = :now WHERE id = :id"
        " AND (used_at IS NULL OR used_at <= :before OR used_at > :now)",
        [
            {"id": id, "now": micros(now), "before": micros(now - KEY_USE_EVERY)}
            for id in sorted(key_ids)
        ],
    )


class KeyUseStore(StorePart):
    """The part of the store that keeps when keys were last used."""

    async def note_key_uses(self, key_ids: Sequence[str]) -> None:
        """Note that these keys were used now; a key is written at most once in KEY_USE_EVERY."""
        for begin in range(0, len(key_ids), KEYS_NOTED_MAX):
            await self.executor.write(note_uses, key_ids[begin : begin + KEYS_NOTED_MAX])
