"""Claims of chunks: one statement chooses and takes them, accounts in turn.

The account with the fewest claims of this worker comes first, then the one after the account
that a claim took last. A chunk that another transaction holds is skipped, not awaited, so that
workers of many machines claim at once. A claim costs the same however long the lists are: of
each running list it reads a few chunks, by an index of those that are free and one of those whose
lease has ended.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from ..base.columns import LIST_COLUMNS, instant, list_of, micros
from ..base.lease_holders import is_gone
from ..callers import callers_of_keys
from ..database import Database, Row, encoded
from ..list_records import ListChunk, ListClaim, ListShare
from . import list_lines, list_waits
from .list_lines import ListKey
from .lists import OF_ACCOUNTS

# Chunks that are read for each that is wanted, of all running lists together: other workers may
# hold the first, and an account with one list may get all.
READ_FOR_EACH = 20
READ_OF_A_LIST = 10  # as many, of one list
OF_A_LIST = (
    "(SELECT CASE WHEN count(*) * :of_a_list <= :in_all THEN :of_a_list"
    " ELSE 1 + :in_all / count(*) END FROM running)"
)

FREE = "due_at <= :now AND lease_until IS NULL"
LAPSED = "lease_until <= :now"  # its claim has ended: it was due
# As both, of a chunk that was found before it was locked; no index is to be used for it.
STILL_DUE = "coalesce(due_at, :until) <= :now AND coalesce(lease_until, 0) <= :now"
EncryptedListClaim = tuple[ListClaim, bytes | None]  # without its secret, and the encrypted secret

CHANGED_MAX = 1_000  # chunks in one transaction: some 10 ms
TRIED_MAX = 500  # chunks, until enough are found that no other worker holds

TURN = "turn, owner <= :after, owner"
SHARE = "key text, value bigint"  # of an account
HELD = "number bigint, id text, place bigint, fence bigint"


def _open_lists(db: Database) -> str:
    """SQL of the running lists of accounts that may have more chunks, as the table `running`."""
    return (
        "running AS MATERIALIZED (SELECT lists.number AS number, accounts.id AS owner,"
        " coalesce(held.value, 0) AS held, coalesce(most.value, :each_max) AS most"
        f" FROM {OF_ACCOUNTS} LEFT JOIN {db.records('held', SHARE)} AS held ON held.key = accounts.id"
        f" LEFT JOIN {db.records('most', SHARE)} AS most ON most.key = accounts.id"
        " WHERE state = 'running' AND coalesce(held.value, 0) < coalesce(most.value, :each_max))"
    )


def first_chunks(db: Database, columns: str, most: str) -> str:
    """SQL of these columns of the first due chunks of each of the table `running`."""
    return " UNION ALL ".join(
        f"SELECT {columns} FROM {db.first_chunks_of('running', which, order, most)}"
        for which, order in ((FREE, "due_at, place"), (LAPSED, "lease_until, place"))
    )


class ClaimRequest(Struct, frozen=True):
    """What a worker claims."""

    limit: int
    lease_s: float
    each_max: int  # of an account that is not in `shares`
    shares: Mapping[str, ListShare]  # by account
    after: str = ""  # the account whose turn was last
    holder: str | None = None  # of the claims; see lease_holders

    def bounds(self, now: datetime) -> dict[str, object]:
        """The values of `_open_lists`."""
        shares = self.shares.items()
        return {
            "now": micros(now),
            "each_max": self.each_max,
            "held": encoded([{"key": account, "value": share.held} for account, share in shares]),
            "most": encoded([{"key": account, "value": share.most} for account, share in shares]),
        }


def is_due(db: Database, request: ClaimRequest) -> bool:
    """Whether a chunk is due of an account that may have more."""
    rows = db.all(
        f"WITH {_open_lists(db)} {first_chunks(db, '1', '1')} LIMIT 1",
        request.bounds(db.now()),
    )
    return bool(rows) or bool(_holders_gone(db))


def _holders_gone(db: Database) -> list[str]:
    """Return the holders of claims whose processes have ended."""
    rows = db.all("SELECT DISTINCT holder FROM list_chunks WHERE holder IS NOT NULL", {})
    return [holder for (holder,) in rows if is_gone(holder)]


def _end_claims(db: Database, holder: str) -> None:
    """End claims of a process that has ended; the next claim finds what is left."""
    db.change(
        "WITH left_behind AS MATERIALIZED (SELECT list, place FROM list_chunks"
        f" WHERE holder = :holder LIMIT :most{db.SKIP_LOCKED})"
        " UPDATE list_chunks SET lease_until = NULL, holder = NULL FROM left_behind"
        " WHERE list_chunks.list = left_behind.list AND list_chunks.place = left_behind.place",
        {"holder": holder, "most": CHANGED_MAX},
    )


def claim(db: Database, request: ClaimRequest) -> list[EncryptedListClaim]:
    """Claim due chunks, accounts in turn; return them by list and place."""
    now = db.now()
    for holder in _holders_gone(db):
        _end_claims(db, holder)
    limit = max(0, request.limit)
    columns = "owner, held, most, chunks.list, chunks.place, chunks.due_at"
    rows = db.all(
        f"WITH {_open_lists(db)}, found AS ({first_chunks(db, columns, OF_A_LIST)}),"
        " turns AS MATERIALIZED (SELECT owner, most, list, place, held + row_number() OVER"
        " (PARTITION BY owner ORDER BY due_at, list, place) AS turn FROM found),"
        " tried AS MATERIALIZED (SELECT * FROM turns WHERE turn <= most"
        f" ORDER BY {TURN} LIMIT {TRIED_MAX}),"
        " chosen AS MATERIALIZED (SELECT list_chunks.list, list_chunks.place FROM tried"
        " JOIN list_chunks ON list_chunks.list = tried.list AND list_chunks.place = tried.place"
        f" WHERE {STILL_DUE} ORDER BY {TURN} LIMIT :limit{db.SKIP_LOCKED})"
        " UPDATE list_chunks SET lease_until = :until, holder = :holder, fence = fence + 1"
        " FROM chosen WHERE list_chunks.list = chosen.list AND list_chunks.place = chosen.place"
        " RETURNING list_chunks.list, list_chunks.place, fence, units, waits_since, waits",
        {
            **request.bounds(now), "limit": limit, "after": request.after,
            "of_a_list": READ_OF_A_LIST * limit, "in_all": READ_FOR_EACH * limit,
            "until": micros(now + timedelta(seconds=request.lease_s)), "holder": request.holder,
        },
    )  # fmt: skip
    return _claims(db, sorted(rows, key=lambda row: row[:2]))


def bring_back(db: Database, wait: int) -> bool:
    """Let some chunks be due at `wait` that a clock that was ahead has put off until later.

    Return whether there may be more. It looks at each list, as of all due chunks there are millions.
    """
    found = db.first_chunks_of(
        "going_on", "due_at > :wait AND lease_until IS NULL", "due_at, place", ":most"
    )
    changed = db.all(
        "WITH going_on AS MATERIALIZED (SELECT number FROM lists WHERE ended_at IS NULL),"
        f" late AS MATERIALIZED (SELECT chunks.list, chunks.place FROM {found} LIMIT :most)"
        " UPDATE list_chunks SET due_at = :wait FROM late"
        " WHERE list_chunks.list = late.list AND list_chunks.place = late.place"
        " AND lease_until IS NULL RETURNING list_chunks.place",
        {"wait": wait, "most": CHANGED_MAX},
    )
    return len(changed) == CHANGED_MAX


def _claims(db: Database, rows: Sequence[Row]) -> list[EncryptedListClaim]:
    numbers = sorted({number for number, *_ in rows})
    read = db.all_each(
        f"SELECT lists.key, lists.secret, lists.day, {LIST_COLUMNS} FROM {OF_ACCOUNTS}"
        " WHERE lists.number = :number",
        [{"number": number} for number in numbers],
    )
    lists = {number: found for number, (found,) in zip(numbers, read, strict=True)}
    callers = callers_of_keys(db, sorted({key for key, *_ in lists.values()}))
    lines = list_lines.read(
        db, [(ListKey(number, lists[number][2]), place) for number, place, *_ in rows]
    )
    claims = []
    for (number, place, fence, units, since, waits), each in zip(rows, lines, strict=True):
        key, secret, _, *columns = lists[number]
        chunk = ListChunk(
            place, units, *each, waits_since=since and instant(since),
            waits=list_waits.of_chunk(waits),
        )  # fmt: skip
        made = ListClaim(list_of(tuple(columns)), callers[key], chunk, fence)
        claims.append((made, secret))
    return claims


def extend(
    db: Database, claims: Sequence[ListClaim], lease_s: float, lock: str | None = None
) -> list[bool | None]:
    """Let the claims end later; False for each that has ended, or whose list is not running.

    It waits for no lock: None for a chunk that another transaction is changing.
    """
    now = db.now()
    held = [
        {"number": number, "id": each.list.id, "place": each.chunk.place, "fence": each.fence}
        for number, each in enumerate(claims)
    ]
    values = {
        "held": encoded(held), "now": micros(now),
        "until": micros(now + timedelta(seconds=lease_s)),
    }  # fmt: skip
    outcomes: dict[int, bool | None]
    held_chunks = (
        "held AS MATERIALIZED (SELECT each.number, lists.number AS list, each.place, each.fence"
        f" FROM {db.records('held', HELD)} AS each JOIN lists ON lists.id = each.id"
        " WHERE state = 'running')"
    )
    which = (
        "JOIN list_chunks ON list_chunks.list = held.list AND list_chunks.place = held.place"
        " WHERE list_chunks.fence = held.fence AND lease_until > :now"
    )
    db.change(
        f"WITH {held_chunks}, free AS MATERIALIZED (SELECT list_chunks.list, list_chunks.place"
        f" FROM held {which}{db.SKIP_LOCKED if lock is None else lock})"
        " UPDATE list_chunks SET lease_until = :until FROM free"
        " WHERE list_chunks.list = free.list AND list_chunks.place = free.place",
        values,
    )
    rows = db.all(f"WITH {held_chunks} SELECT held.number, lease_until FROM held {which}", values)
    outcomes = {number: True if until >= values["until"] else None for number, until in rows}
    return [outcomes.get(number, False) for number in range(len(held))]


def extend_locked(db: Database, claim: ListClaim, lease_s: float) -> bool | None:
    """The same for one claim; waits until no other transaction has its chunk locked."""
    # Only one: a transaction that waits for several locks may deadlock.
    return extend(db, [claim], lease_s, db.FOR_UPDATE)[0]
