"""Transactions of what waits of lists: for a limit, and for mail hosts, with what each chunk adds.

A chunk keeps what it has added, so that it is taken out again once the chunk is asked or answered,
also after a process was killed. The sums are rows of their own: a page reads a few of them, however
many chunks wait. The row of the list is locked by all that change them.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from ..base.columns import instant, micros
from ..contract import LISTED_MAX
from ..database import Database
from ..list_records import NO_WAITS, HostWait, ListWaits

WAITING_HOSTS_MAX = 10  # of a list: those at which most wait
NUMBER = "(SELECT number FROM lists WHERE id = :id)"


class _HostChange(Struct):
    """Of one host: how many more addresses wait, and what is known of it last."""

    addresses: int = 0
    reason: str = ""
    takes: int = 0
    until: int = 0


def change(db: Database, list_id: str, waits: Mapping[int, Sequence[HostWait]]) -> None:
    """Keep what waits of these chunks, by place, in the place of what waited of them before.

    The list is locked, and the chunks are held. A chunk's wait begins with the first call that
    lets some of it wait.
    """
    places = sorted(waits)
    changes: dict[str, _HostChange] = {}
    found = db.all_each(
        f"SELECT waits FROM list_chunks WHERE list = {NUMBER} AND place = :place",
        [{"id": list_id, "place": place} for place in places],
    )
    for rows in found:
        for before in of_chunk(rows[0][0]) if rows else ():
            changes.setdefault(before.host, _HostChange()).addresses -= before.addresses
    # What keeps a host's addresses waiting most often is said, and when that ends.
    of_chunks = (wait for place in places for wait in waits[place])
    for wait in sorted(of_chunks, key=lambda wait: (not wait.takes, wait.until)):
        of_host = changes.setdefault(wait.host, _HostChange())
        of_host.addresses += wait.addresses
        if not of_host.until:
            of_host.reason, of_host.takes = wait.reason, wait.takes
            of_host.until = micros(wait.until)
    now = micros(db.now())
    db.change_each(
        "UPDATE list_chunks SET waits = :waits,"
        " waits_since = CASE WHEN :begins = 1 THEN coalesce(waits_since, :now) ELSE waits_since END"
        f" WHERE list = {NUMBER} AND place = :place",
        [
            {
                "id": list_id, "place": place, "waits": _kept(waits[place]),
                "begins": int(bool(waits[place])), "now": now,
            }
            for place in places
        ],
    )  # fmt: skip
    _add(db, list_id, changes)


def _kept(waits: Sequence[HostWait]) -> str | None:
    """What a chunk keeps; see `of_chunk`."""
    kept = [
        (wait.host, wait.reason, wait.takes, wait.addresses, micros(wait.until), wait.numbers)
        for wait in waits
    ]
    return json.dumps(kept) if kept else None


def of_chunk(kept: str | None) -> tuple[HostWait, ...]:
    """What waits of a chunk, as it is kept."""
    return tuple(
        HostWait(host, reason, takes, addresses, instant(until), tuple(numbers))
        for host, reason, takes, addresses, until, numbers in json.loads(kept or "[]")
    )


def _add(db: Database, list_id: str, changes: Mapping[str, _HostChange]) -> None:
    newer = "excluded.until_at > 0"
    db.change_each(
        "INSERT INTO list_waits (list, host, reason, takes, addresses, until_at)"
        " SELECT number, :host, :reason, :takes, :addresses, :until FROM lists WHERE id = :id"
        " ON CONFLICT (list, host) DO UPDATE SET"
        " addresses = list_waits.addresses + excluded.addresses,"
        f" reason = CASE WHEN {newer} THEN excluded.reason ELSE list_waits.reason END,"
        f" takes = CASE WHEN {newer} THEN excluded.takes ELSE list_waits.takes END,"
        " until_at = CASE WHEN excluded.until_at > list_waits.until_at"
        " THEN excluded.until_at ELSE list_waits.until_at END",
        [
            {
                "id": list_id, "host": host, "reason": each.reason, "takes": each.takes,
                "addresses": each.addresses, "until": each.until,
            }
            for host, each in sorted(changes.items())
        ],
    )  # fmt: skip
    gone = [host for host, each in sorted(changes.items()) if each.addresses < 0]
    db.change_each(
        f"DELETE FROM list_waits WHERE list = {NUMBER} AND host = :host AND addresses <= 0",
        [{"id": list_id, "host": host} for host in gone],
    )


def note_wait(db: Database, list_id: str, until: datetime, cause: str) -> None:
    """Keep until when a limit lets a list wait, and the code of its error; the longest wait stays."""
    db.change(
        "UPDATE lists SET waits_until = :until, waits_for = :cause WHERE id = :id"
        " AND (waits_until IS NULL OR waits_until < :until)",
        {"id": list_id, "until": micros(until), "cause": cause},
    )


def read_waits(
    db: Database, list_ids: Sequence[str], *, hosts_max: int = WAITING_HOSTS_MAX
) -> dict[str, ListWaits]:
    """Return what waits of each of these lists, at most LISTED_MAX, for its mail hosts."""
    list_ids = list_ids[:LISTED_MAX]
    ids = [{"id": id, "most": hosts_max} for id in list_ids]
    totals = db.all_each(
        "SELECT coalesce(sum(addresses), 0), count(*), min(until_at) FROM list_waits"
        f" WHERE list = {NUMBER}",
        ids,
    )
    hosts = db.all_each(
        f"SELECT host, reason, takes, addresses, until_at FROM list_waits WHERE list = {NUMBER}"
        " ORDER BY addresses DESC, host LIMIT :most",
        ids,
    )
    again = db.all_each(
        "SELECT coalesce(sum(passing), 0) FROM list_chunks WHERE due_at IS NOT NULL AND list ="
        " (SELECT number FROM lists WHERE id = :id AND answered = addresses AND ended_at IS NULL)",
        ids,
    )
    found: dict[str, ListWaits] = {}
    for id, total, rows, passing in zip(list_ids, totals, hosts, again, strict=True):
        [(addresses, count, first)], [(passes,)] = total, passing
        shown = tuple(
            HostWait(host, reason, takes, waiting, instant(until))
            for host, reason, takes, waiting, until in rows
        )
        found[id] = ListWaits(
            int(addresses), count, None if first is None else instant(first), shown, int(passes)
        )
    return found


def read_waiting_hosts(db: Database, *, hosts_max: int) -> ListWaits:
    """Return what waits of all running lists for their mail hosts."""
    rows = db.all(
        "SELECT list_waits.host, min(reason), max(takes), sum(list_waits.addresses), min(until_at),"
        " sum(sum(list_waits.addresses)) OVER (), count(*) OVER (), min(min(until_at)) OVER ()"
        " FROM lists JOIN list_waits ON list_waits.list = lists.number WHERE lists.state = 'running'"
        " GROUP BY list_waits.host ORDER BY 4 DESC, list_waits.host LIMIT :most",
        {"most": hosts_max},
    )
    hosts = tuple(
        HostWait(host, reason, takes, int(waiting), instant(until))
        for host, reason, takes, waiting, until, *_ in rows
    )
    return ListWaits(int(rows[0][5]), rows[0][6], instant(rows[0][7]), hosts) if rows else NO_WAITS
