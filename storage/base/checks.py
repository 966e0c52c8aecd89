"""Checks and computations that are the same in every store, whatever its database."""

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime

from ..contract import ANSWER_OCTETS_MAX, WINDOW
from ..records import Account, Answered, JobState

CHANGEABLE = {field.name for field in fields(Account)} - {"id", "created_at"}


def next_key_at(made: Sequence[datetime], keys_per_minute_max: int) -> datetime | None:
    """Return when the next key may be created; None if at once.

    `made` are the instants of the keys created within the last minute, `a_minute` the limit.
    """
    if len(made) < keys_per_minute_max:
        return None
    return sorted(made)[len(made) - keys_per_minute_max] + WINDOW


def paced_until(before: datetime | None, now: datetime, per_minute_max: int) -> datetime:
    """Return until when an account has used its rate after one more (the generic cell rate algorithm).

    More than WINDOW ahead of now is too fast. What a clock that was ahead wrote is ignored.
    """
    begins = before if before is not None and now < before <= now + WINDOW else now
    return begins + WINDOW / per_minute_max


def at_most(most: int, limit: int) -> int:
    """Clamp `limit` to the range from 0 to `most`."""
    return max(0, min(limit, most))


def check_units(units: int) -> None:
    """Raise ValueError if fewer than one unit is to be reserved."""
    if units < 1:
        raise ValueError(f"{units} units cannot be reserved")


def check_changes(changes: dict[str, object]) -> None:
    """Raise TypeError if a name is not a changeable field of Account."""
    fixed = changes.keys() - CHANGEABLE
    if fixed:
        raise TypeError(f"an account has no {', '.join(sorted(fixed))} to change")


def as_kept(answer: Answered) -> Answered:
    """Return the answer as it is stored: without its body if that exceeds ANSWER_OCTETS_MAX."""
    if answer.body is not None and len(answer.body) > ANSWER_OCTETS_MAX:
        return replace(answer, body=None)
    return answer


def check_sent(sent: bool, due_at: datetime | None) -> None:
    """Raise ValueError if a message is both sent and due again."""
    if sent and due_at is not None:
        raise ValueError("a message that was sent is not due again")


def check_outcome(state: JobState, due_at: datetime | None) -> None:
    """Raise ValueError if the state after an attempt does not fit `due_at`.

    Only a `delivering` job has a `due_at`, and an attempted job is never `pending`.
    """
    if state == "pending" or (state == "delivering") != (due_at is not None):
        raise ValueError(f"a job that was tried cannot be {state} and due at {due_at}")
