"""Credentials that have ended before their time: sign-ins, challenges that were used."""

from datetime import datetime

from mailprobe.storage import audit
from mailprobe.storage.audit import Act
from mailprobe.storage.base.columns import micros
from mailprobe.storage.database import Database
from mailprobe.storage.records import Actor
from mailprobe.storage.store_part import StorePart
from mailprobe.storage.transaction import read, write

ENDED = "INSERT INTO ended_sessions (id, until) VALUES (:id, :until) ON CONFLICT (id) DO NOTHING"


def end_sign_in(db: Database, sign_in_id: str, until: datetime, account_id: str, by: Actor) -> None:
    """Remember that the sign-in has ended, until its cookie is valid no longer."""
    if db.change(ENDED, {"id": sign_in_id, "until": micros(until)}):
        audit.add_to(db, account_id, by, Act("signed_out"))


def has_sign_in_ended(db: Database, sign_in_id: str) -> bool:
    """Return whether the sign-in was ended."""
    return bool(db.all("SELECT 1 FROM ended_sessions WHERE id = :id", {"id": sign_in_id}))


def use_challenge(db: Database, challenge_id: str, until: datetime) -> bool:
    """Use a challenge that is good until then; False if it was used, in whatever process."""
    return bool(db.change(ENDED, {"id": f"challenge {challenge_id}", "until": micros(until)}))


class SignInStore(StorePart):
    """The part of the store that keeps ended sign-ins and used challenges, until their time."""

    end_sign_in = write(end_sign_in)
    has_sign_in_ended = read(has_sign_in_ended)
    use_challenge = write(use_challenge)
