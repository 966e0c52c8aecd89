"""Where a list is on its way, and how long it takes: what pages, sockets and the API say. Pure."""

from dataclasses import dataclass
from datetime import datetime

from mailprobe.api.quota.list_charge import FREE_SHARE
from mailprobe.api.schema import ListStage
from mailprobe.storage.list_records import StoredList


@dataclass(frozen=True, slots=True)
class Progress:
    """The rate is since the list was started or resumed last; None: nothing is under way."""

    stage: ListStage
    per_s: float
    left_s: float | None


def progress_of(found: StoredList, now: datetime, units_per_minute: int) -> Progress:
    """`units_per_minute` is the limit that holds for the list: it takes no more of it."""
    stage = _stage_of(found, now)
    since = found.ran_at or found.created_at
    took_s = ((found.ended_at or now) - since).total_seconds()
    per_s = (found.answered - found.ran_from) / took_s if took_s > 0 else 0.0
    left_s = None
    if stage in ("asking", "waiting"):
        left = found.addresses - found.answered
        limit_s = left * 60 / max(1.0, units_per_minute * (1 - FREE_SHARE))
        left_s = max(left / per_s, limit_s) if per_s else None
    return Progress(stage, per_s, left_s)


def _stage_of(found: StoredList, now: datetime) -> ListStage:
    if found.state == "loading":
        return "reading"
    if found.state != "running":
        return found.state
    if found.answered < found.addresses:
        is_waiting = found.waits_until is not None and found.waits_until > now
        return "waiting" if is_waiting else "asking"
    return "finishing" if found.recheck_at is None else "asking_again"
