"""The callback at the end of a list: a job whose result is known. Pure."""

from datetime import datetime
from typing import Literal

import msgspec

from mailprobe.storage.list_records import StoredList
from mailprobe.storage.records import JobOrder

from ..schema import Instant


class ListCallback(msgspec.Struct, frozen=True):
    """The body of a list's callback."""

    list_id: str
    status: Literal["done"]
    rows: int
    addresses: int
    counts: dict[str, int]
    created_at: Instant
    ended_at: Instant


def callback_of(ended: StoredList, secret: str | None, now: datetime) -> JobOrder | None:
    """The job that calls back; None without a webhook. Its id is the list's."""
    if ended.webhook is None:
        return None
    body = ListCallback(
        ended.id, "done", ended.rows, ended.addresses, dict(ended.counts), ended.created_at, now
    )
    return JobOrder(
        ended.id, "", ended.webhook, ended.host, secret,
        payload=msgspec.json.encode(body), trace=ended.trace,
    )  # fmt: skip
