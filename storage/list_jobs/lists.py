"""Transactions of lists."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from .. import audit, idempotency
from ..audit import Act
from ..base.columns import LIST_COLUMNS, day_start, instant, list_of, micros
from ..base.columns import is_test as is_test_of
from ..base.lease_holders import is_gone
from ..commands import EncryptedFirst
from ..contract import (
    LISTED_MAX,
    WINDOW,
    IdempotencyInProgress,
    ListLimitReached,
    ListRateExceeded,
    ListRoomExceeded,
    at_most,
)
from ..database import Database, Values
from ..list_records import (
    ENDED,
    KEY_REVOKED,
    LAST_PLACE,
    HostWait,
    ListBounds,
    ListChunk,
    ListClaim,
    ListOrder,
    ListState,
    LoadedList,
    StoredList,
)
from ..records import Actor, Caller
from . import conversations, list_lines, list_waits
from .list_lines import ROWS_PART, LinesPart, ListKey

IS_TEST = is_test_of("lists")
OF_ACCOUNTS = "lists JOIN accounts ON accounts.number = lists.account"
LOADING_MAX = timedelta(minutes=15)  # reading and storing a list that takes longer has died
PASS_PLACES = 1_000  # in one transaction: some 10 ms, so that no answer of the list waits long
DELETED_MAX = 1_000  # chunks without lines in one transaction: some 10 ms
# Of a list: chunks with rows that wait for their turn, or are claimed.
HAS_DUE = (
    "(EXISTS (SELECT 1 FROM list_chunks WHERE list = lists.number AND due_at IS NOT NULL"
    f" AND lease_until IS NULL AND place <> {LAST_PLACE})"
    " OR EXISTS (SELECT 1 FROM list_chunks WHERE list = lists.number AND lease_until IS NOT NULL"
    f" AND place <> {LAST_PLACE}))"
)
# Uploads that have died, or are being deleted. The other states are of lists that were stored.
UNLOADED = "ended_at IS NULL AND state IN ('loading', 'failed')"
GIVEN_UP = "lists.ended_at IS NULL AND lists.state = 'failed'"  # of these, those that are deleted


class PassStep(Struct, frozen=True):
    """Whether chunks are due, once it is known, and at which place to go on; None at the end."""

    is_due: bool
    next_place: int | None


def insert_list(
    db: Database,
    caller: Caller,
    order: ListOrder,
    secret: bytes | None,
    bounds: ListBounds,
    holder: str | None,
) -> StoredList:
    """See ListStore.create_list. The secret is encrypted; the holder is the process that stores the rows."""
    now = db.now()
    values = {"account": caller.account.id, "key": caller.key.id}
    ((account, paced),) = db.all(
        f"SELECT number, lists_paced_until FROM accounts WHERE id = :account{db.FOR_UPDATE}", values
    )
    _abandon_dead(db, "account = :account", {"account": account})
    _check_bounds(db, now, account, paced and instant(paced), bounds)
    db.change(
        "INSERT INTO lists (id, account, key, name, state, columns, rows, addresses, answered,"
        " counts, created_at, day, webhook, host, secret, rechecks, strict_clocks, asks_hosts, trace,"
        " holder, patience_s)"
        " VALUES (:id, :account,"
        " (SELECT number FROM keys WHERE id = :key), :name, 'loading', '[]', 0, 0, 0, '{}', :now, :day,"
        " :webhook, :host, :secret, :rechecks, :strict_clocks, :asks_hosts, :trace, :holder,"
        " :patience_s)",
        {
            "id": order.id,
            "account": account,
            "key": caller.key.id,
            "name": order.name,
            "now": micros(now),
            "day": micros(day_start(now)),
            "webhook": order.webhook,
            "host": order.host,
            "secret": secret,
            "rechecks": order.rechecks,
            "strict_clocks": int(order.strict_clocks),
            "asks_hosts": int(order.asks_hosts),
            "trace": order.trace,
            "holder": holder,
            "patience_s": order.patience_s,
        },
    )
    db.change(
        "INSERT INTO list_chunks (list, place, units, due_at, fence)"
        " VALUES ((SELECT number FROM lists WHERE id = :id), :place, 0, NULL, 0)",
        {"id": order.id, "place": LAST_PLACE},
    )
    made = stored_list(db, order.id)
    assert made
    return made


def _check_bounds(
    db: Database, now: datetime, account: int, paced: datetime | None, bounds: ListBounds
) -> None:
    """Raise ListLimitReached or ListRateExceeded; else count one more list. The account is locked."""
    ((kept, active),) = db.all(
        "SELECT count(*), count(*) - count(ended_at) FROM lists WHERE account = :account"
        f" AND NOT ({GIVEN_UP})",
        {"account": account},
    )
    if active >= bounds.active_max:
        raise ListLimitReached(bounds.active_max, active=True)
    if kept >= bounds.kept_max:
        raise ListLimitReached(bounds.kept_max, active=False)
    until = _paced_until(paced, now, bounds.per_minute_max)
    if until > now + WINDOW:
        raise ListRateExceeded(now, until - WINDOW)
    db.change(
        "UPDATE accounts SET lists_paced_until = :until WHERE number = :account",
        {"account": account, "until": micros(until)},
    )


def _paced_until(before: datetime | None, now: datetime, per_minute_max: int) -> datetime:
    """Return until when an account has used its rate after one more (the generic cell rate algorithm).

    More than WINDOW ahead of now is too fast. What a clock that was ahead wrote is ignored.
    """
    begins = before if before is not None and now < before <= now + WINDOW else now
    return begins + WINDOW / per_minute_max


def add_chunks(db: Database, list_id: str, chunks: Sequence[ListChunk], *, octets_max: int) -> bool:
    """Store chunks of a list that is loading; False if it is not, for instance deleted.

    Raises ListRoomExceeded, and stores nothing, if the account's lists, whatever their state,
    would have more than `octets_max`: rows, names of columns and results together.
    """
    # They are due at once, so that no transaction has to change all of a list; they are
    # claimed when the list runs. The account itself is not locked: some MiB take a tenth of a second,
    # for which all requests would wait that are counted together with one of its.
    now = db.now()
    which = {"id": list_id}
    for (account,) in db.all("SELECT account FROM lists WHERE id = :id", which):
        db.lock_uploads(account)
    found = db.all(
        f"SELECT number, day, account FROM lists WHERE id = :id AND state = 'loading'{db.FOR_UPDATE}",
        which,
    )
    if not found:
        return False
    ((number, day, account),) = found
    octets = sum(len(chunk.rows.encode()) for chunk in chunks)
    ((kept,),) = db.all(
        "SELECT sum(octets) FROM lists WHERE account = :account", {"account": account}
    )
    if kept + octets > octets_max:
        raise ListRoomExceeded
    db.change_each(
        "INSERT INTO list_chunks (list, place, units, due_at, fence)"
        " VALUES (:list, :place, :units, :due_at, 0)",
        [
            {
                "list": number, "place": chunk.place, "units": chunk.units,
                "due_at": micros(now) if chunk.units else None,
            }
            for chunk in chunks
        ],
    )  # fmt: skip
    key = ListKey(number, day)
    list_lines.add(db, [LinesPart(key, each.place, ROWS_PART, rows=each.rows) for each in chunks])
    db.change(
        "UPDATE lists SET octets = octets + :octets WHERE number = :list",
        {"list": number, "octets": octets},
    )
    return True


def change_state(
    db: Database,
    list_id: str,
    state: ListState,
    before: Sequence[ListState],
    cause: str | None,
    loaded: LoadedList | None,
    key_id: str | None,
    answer: Callable[[StoredList], EncryptedFirst] | None,
) -> StoredList | None:
    """See ListStore.change_list. Raises IdempotencyInProgress."""
    now = db.now()
    states = ", ".join(f"'{each}'" for each in before)
    ended_at = micros(now) if state in ENDED else None
    values = {
        "id": list_id, "state": state, "cause": cause,
        "ended_at": ended_at, "key": key_id,
    }  # fmt: skip
    changed = db.change(
        "UPDATE lists SET state = :state, cause = :cause, ended_at = :ended_at,"
        " key = coalesce((SELECT number FROM keys WHERE id = :key), key)"
        f" WHERE id = :id AND state IN ({states})",
        values,
    )
    if not changed:
        return None
    if ended_at is not None:
        _end_claims(db, list_id)
    if loaded is not None:
        columns = json.dumps(loaded.columns)
        db.change(
            "UPDATE lists SET columns = :columns, rows = :rows, addresses = :addresses,"
            " blank_rows = :blank_rows, reading = :reading, holder = NULL,"
            " octets = octets + :octets WHERE id = :id",
            {
                "id": list_id, "columns": columns, "octets": len(columns),
                "rows": loaded.rows, "addresses": loaded.addresses,
                "blank_rows": loaded.blank_rows, "reading": loaded.reading,
            },
        )  # fmt: skip
        if not loaded.addresses:
            make_last_due(db, now, [list_id])
    if state == "running":
        db.change(
            "UPDATE lists SET ran_at = :now, ran_from = answered WHERE id = :id",
            {"id": list_id, "now": micros(now)},
        )
    pause_of_revoked(db, "id = :id", values)
    made = stored_list(db, list_id)
    if made is not None and answer is not None and not idempotency.keep(db, answer(made)):
        raise IdempotencyInProgress
    return made


def _end_claims(db: Database, list_id: str) -> None:
    """End the claims of a list that has ended: else every search of claims would read them."""
    db.change(
        "UPDATE list_chunks SET lease_until = NULL, holder = NULL"
        " WHERE list = (SELECT number FROM lists WHERE id = :id) AND lease_until IS NOT NULL",
        {"id": list_id},
    )


def pause_of_revoked(db: Database, which: str, values: Values) -> None:
    """Pause lists that run by a key that was revoked."""
    db.change(
        "UPDATE lists SET state = 'paused', cause = :revoked"
        f" WHERE {which} AND state = 'running'"
        " AND (SELECT revoked_at FROM keys WHERE number = lists.key) IS NOT NULL",
        {**values, "revoked": KEY_REVOKED},
    )


def pause_of_key(db: Database, key_id: str) -> None:
    """Pause the lists that run by a key, if it was revoked; in the order in which all lock lists."""
    of_key = "key = (SELECT number FROM keys WHERE id = :key) AND state = 'running'"
    db.all(f"SELECT 1 FROM lists WHERE {of_key} ORDER BY id{db.FOR_UPDATE}", {"key": key_id})
    pause_of_revoked(db, of_key, {"key": key_id})


def make_last_due(db: Database, now: datetime, list_ids: Sequence[str]) -> None:
    """Let the chunks be claimed that finish these lists."""
    db.change_each(
        "UPDATE list_chunks SET due_at = :now"
        " WHERE list = (SELECT number FROM lists WHERE id = :id) AND place = :place",
        [{"id": id, "now": micros(now), "place": LAST_PLACE} for id in list_ids],
    )


def stored_list(db: Database, list_id: str) -> StoredList | None:
    """Return the list, or None if there is none with this id."""
    rows = db.all(f"SELECT {LIST_COLUMNS} FROM {OF_ACCOUNTS} WHERE lists.id = :id", {"id": list_id})
    return list_of(rows[0]) if rows else None


def set_list_mail(db: Database, list_id: str, mails: bool) -> bool:
    """Let the account get a mail when the list is done, or none; False if it has ended."""
    return bool(
        db.change(
            "UPDATE lists SET mails = :mails WHERE id = :id AND ended_at IS NULL",
            {"id": list_id, "mails": int(mails)},
        )
    )


def list_lists(
    db: Database, account_id: str, *, limit: int, is_test: bool | None = None
) -> list[StoredList]:
    """Return the account's lists, newest first, at most LISTED_MAX; None: of both kinds."""
    rows = db.all(
        f"SELECT {LIST_COLUMNS} FROM {OF_ACCOUNTS} WHERE accounts.id = :account AND NOT ({GIVEN_UP})"
        f" AND (:both = 1 OR {IS_TEST} = (:test = 1))"
        " ORDER BY lists.number DESC LIMIT :limit",
        {
            "account": account_id,
            "limit": at_most(LISTED_MAX, limit),
            "both": int(is_test is None),
            "test": int(bool(is_test)),
        },
    )
    return [list_of(row) for row in rows]


# claims, which list_claims makes


HELD = (
    "list = (SELECT number FROM lists WHERE id = :id) AND place = :place AND fence = :fence"
    " AND lease_until IS NOT NULL"
)


def _claimed(claim: ListClaim) -> dict[str, object]:
    return {"id": claim.list.id, "place": claim.chunk.place, "fence": claim.fence}


def release_chunk(
    db: Database,
    claim: ListClaim,
    due_at: datetime,
    *,
    waits: Sequence[HostWait] | None = None,
) -> bool:
    """End the claim, so that the chunk is due at `due_at`; False if another claim followed.

    `waits` are the addresses of the chunk that wait for mail hosts, in the place of those
    before; None: those stay. The first of them begin the chunk's wait.
    """
    values = {**_claimed(claim), "due_at": micros(due_at)}
    has_waited = claim.chunk.waits_since is not None
    if waits is not None and (waits or has_waited):
        if not db.all(f"SELECT 1 FROM lists WHERE id = :id{db.FOR_UPDATE}", values):
            return False
        if not db.all(f"SELECT 1 FROM list_chunks WHERE {HELD}{db.FOR_UPDATE}", values):
            return False
        list_waits.change(db, claim.list.id, {claim.chunk.place: waits})
    return bool(
        db.change(
            "UPDATE list_chunks SET lease_until = NULL, holder = NULL, due_at = :due_at"
            f" WHERE {HELD}",
            values,
        )
    )


def begin_pass_from(
    db: Database, claim: ListClaim, due_at: datetime, first: int
) -> PassStep | None:
    """Make some chunks due again, and with the last of them end the claim.

    None, and nothing is changed, if the claim has ended; none is due if no pass is left. A killed
    process has made some due: a repetition from the first place on changes nothing at these. Of a
    process that stood still between two steps all may be answered again: then the list is finished.
    """
    locked = _locked_for_pass(db, claim)
    if locked is None:
        return None
    number, rechecks = locked
    if not rechecks:
        return PassStep(False, None)
    end = first + PASS_PLACES
    values = {
        **_claimed(claim), "list": number, "first": first,
        "end": end, "due_at": micros(due_at),
    }  # fmt: skip
    db.change(
        "UPDATE list_chunks SET due_at = :due_at WHERE list = :list AND place >= :first"
        " AND place < :end AND passing > 0 AND lease_until IS NULL",
        values,
    )
    if db.all(
        "SELECT 1 FROM list_chunks WHERE list = :list AND place >= :end ORDER BY place LIMIT 1",
        values,
    ):
        return PassStep(True, end)
    is_due = bool(db.all(f"SELECT 1 FROM lists WHERE number = :list AND {HAS_DUE}", values))
    if is_due:
        db.change(
            "UPDATE lists SET rechecks = rechecks - 1, recheck_at = :due_at WHERE number = :list",
            values,
        )
        db.change(
            f"UPDATE list_chunks SET due_at = NULL, lease_until = NULL, holder = NULL WHERE {HELD}",
            values,
        )
    return PassStep(is_due, None)


def _locked_for_pass(db: Database, claim: ListClaim) -> tuple[int, int] | None:
    """Lock a running list by the claim of its last chunk; return its number, and its passes left."""
    values = _claimed(claim)
    found = db.all(
        f"SELECT number, rechecks FROM lists WHERE id = :id AND state = 'running'{db.FOR_UPDATE}",
        values,
    )
    if not found or not db.all(f"SELECT 1 FROM list_chunks WHERE {HELD}", values):
        return None
    ((number, rechecks),) = found
    return number, rechecks


# reading and deleting; the lines are read by list_lines


def list_columns(db: Database, list_id: str) -> tuple[str, ...]:
    """Return the names of a list's columns; none if it is loading or there is no such list."""
    rows = db.all("SELECT columns FROM lists WHERE id = :id", {"id": list_id})
    return tuple(json.loads(rows[0][0])) if rows else ()


def delete_step(db: Database, list_id: str, by: Actor) -> bool:
    """Delete some chunks of a list, and with the last of them the list. True when it is gone."""
    found = locked(db, "id = :id", {"id": list_id})
    if not found:
        return True
    ((account, name, state),) = db.all(
        "SELECT account, name, state FROM lists WHERE number = :list", {"list": found[0]}
    )
    is_deleted = delete_some(db, found[0])
    if is_deleted and state not in ("loading", "failed"):
        audit.add(db, account, by, Act("list_deleted", list_id, name))
    return is_deleted


def locked(db: Database, which: str, values: Values) -> list[int]:
    """Lock a list that is to be deleted; return its number, if there is one.

    It is locked before its chunks, as by all that change both. A chunk that is being claimed is
    deleted afterwards: a claim waits for nothing.
    """
    rows = db.all(f"SELECT number FROM lists WHERE {which} LIMIT 1{db.FOR_UPDATE}", values)
    return [number for (number,) in rows]


def drop_upload_step(db: Database, list_id: str) -> bool:
    """Delete some chunks of a list that was not stored; whether there may be more."""
    return _drop(db, f"id = :id AND {UNLOADED}", {"id": list_id})


def delete_some(db: Database, number: int) -> bool:
    """Delete some lines or chunks of a locked list, and with the last chunk the list: then True.

    The first step ends it, so that no late command lets it run without the rows that are gone.
    """
    ((day, state, ended_at),) = db.all(
        "SELECT day, state, ended_at FROM lists WHERE number = :list", {"list": number}
    )
    if state == "loading":
        db.change("UPDATE lists SET state = 'failed' WHERE number = :list", {"list": number})
    elif ended_at is None and state != "failed":
        db.change(
            "UPDATE lists SET state = 'cancelled', ended_at = :now WHERE number = :list",
            {"list": number, "now": micros(db.now())},
        )
    if list_lines.delete_some(db, ListKey(number, day)) or conversations.drop_of_list(db, number):
        return False
    which = {"list": number, "most": DELETED_MAX}
    places = "SELECT place FROM list_chunks WHERE list = :list ORDER BY place LIMIT :most"
    for table in ("list_waits", "shared_reports"):
        db.change(f"DELETE FROM {table} WHERE list = :list", which)
    for table in ("list_marks", "list_chunks"):  # the chunks last: they say which
        changed = db.change(
            f"DELETE FROM {table} WHERE list = :list AND place IN ({places})", which
        )
    if changed == DELETED_MAX:
        return False
    db.change("DELETE FROM lists WHERE number = :list", which)
    return True


def drop_ended(db: Database, tier: str, since: int) -> bool:
    """Delete some chunks of a list of this tier that ended before; whether there may be more."""
    which = "account IN (SELECT number FROM accounts WHERE tier = :tier) AND ended_at < :since"
    return _drop(db, which, {"tier": tier, "since": since})


def drop_unloaded(db: Database) -> bool:
    """Delete some chunks of a list whose upload has died; whether there may be more."""
    _abandon_dead(db, "ended_at IS NULL", {})
    since = micros(db.now() - LOADING_MAX)
    which = f"{UNLOADED} AND (state = 'failed' OR created_at < :since)"
    return _drop(db, which, {"since": since})


def _abandon_dead(db: Database, which: str, values: Values) -> None:
    """Give up the lists whose rows a process stored that has ended for certain."""
    loading = f"{which} AND state = 'loading' AND holder"
    rows = db.all(f"SELECT DISTINCT holder FROM lists WHERE {loading} IS NOT NULL", values)
    for (holder,) in rows:
        if is_gone(holder):
            db.change(
                f"UPDATE lists SET state = 'failed' WHERE {loading} = :holder",
                {**values, "holder": holder},
            )


def _drop(db: Database, which: str, values: Values) -> bool:
    found = locked(db, which, values)
    for number in found:
        delete_some(db, number)
    return bool(found)
