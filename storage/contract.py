"""Promises of every store: its location, its schema, its limits, its retention and its errors.

The methods are those of `Store` (mailprobe.storage.store). Arguments that end in `_s` are
seconds, names that end in `_S` too.
"""

from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from mailprobe.release import version

from .records import MessageKind

DEFAULT_FOLDER = Path("data")  # of the database where no other is named: it is created
POSTGRES = ("postgresql://", "postgres://")
WINDOW = timedelta(seconds=60)  # the sliding window; older units no longer count
REFUSALS_SINGLE_MAX = 20  # rows per key, minute and reason; the other refusals share one more row
ANSWER_OCTETS_MAX = 4 * 1024 * 1024  # 50 results with the longest evidence need far less
USAGE_ROWS_MAX = 10_000  # per call: key look-ups wait until the rows are read
SETTLED_KEPT = timedelta(days=7)  # a second settlement within this time is recognised
# A key's last use is written once in this time: a write costs a sync.
KEY_USE_EVERY = timedelta(hours=1)
RECEIVERS_MAX = 100  # per call: each costs a look-up
LISTED_MAX = 1_000  # jobs, attempts or messages per call
ID_PREFIX_MIN = 8  # characters: fewer would be those of many jobs of other accounts
METER_SLOT_S = 10  # billable verifications within a slot go to the billing meter as one count
METER_REST_S = 2  # from the end of a slot until its count is due
MESSAGES_KEPT_MAX: dict[MessageKind, timedelta] = {
    "alert": timedelta(days=400),
    "meter": timedelta(days=40),
}  # alert: a yearly period; meter: Stripe accepts events of the last 35 days
# A clock that was ahead for a moment has written instants far in the future. apply_retention() limits
# them to the longest lease and the longest wait that the program itself ever sets.
LEASES_MAX = timedelta(minutes=5)  # the longest is an alert's, three minutes
# Between two attempts: a day plus 20 %, or what a receiver asked for.
WAITS_MAX = timedelta(hours=30)
IDEMPOTENCY_KEPT_MAX = timedelta(days=1)  # the answer to a request with an idempotency key
RECEIVERS_KEPT = timedelta(days=1)  # after the last attempt: the longest wait between two attempts


def at_most(most: int, limit: int) -> int:
    """Clamp `limit` to the range from 0 to `most`."""
    return max(0, min(limit, most))


def is_postgres(url_or_path: str | Path) -> bool:
    """Return whether this is the URL of a PostgreSQL database."""
    return str(url_or_path).startswith(POSTGRES)


def shown(url_or_path: str | Path) -> str:
    """Return the location for display: without a password."""
    text = str(url_or_path)
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return f"{text.partition('://')[0]}://…"
    user, at, place = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{place}{parts.path}"


class StoreSize(Struct, frozen=True):
    """How many connections an open store has, and how long each of its calls may take."""

    readers: int = 2  # PostgreSQL only: SQLite's one reader answers from memory
    writers: int = 2  # likewise; metering, claims and leases have connections of their own
    answer_s: float | None = None  # until StoreUnavailable; None: call_queue.ANSWER_S


STANDARD_SIZE = StoreSize()


# Schemas are numbered by their migration scripts, and a program migrates an older one when it
# starts. A database keeps the version that first gave it each schema, so that an older program
# can name the version that reads it.
VERSIONS = (
    "CREATE TABLE IF NOT EXISTS schema_versions (schema integer PRIMARY KEY, version text NOT NULL)"
)
NEWEST = "SELECT schema, version FROM schema_versions ORDER BY schema DESC LIMIT 1"


class SchemaState(Struct, frozen=True):
    """A database's schema, the newest that this program knows, and who first wrote the former."""

    database: str  # without a password
    found: int  # 0: there is no database, or an empty one
    known: int
    written_by: str | None = None

    @property
    def is_newer(self) -> bool:
        return self.found > self.known

    @property
    def is_older(self) -> bool:
        return 0 < self.found < self.known

    def __str__(self) -> str:
        """One line: what a start of this program would do, and where it cannot, what would."""
        if self.is_newer:
            return (
                f"{self.database} has schema {self.found} of a newer version of this program; this"
                f" one, {version()}, reads up to {self.known}: use {self.written_by or 'the newer'}"
                f"{' or newer' if self.written_by else ' one'}, or a backup from before the upgrade"
            )
        if not self.found:
            return (
                f"{self.database}: no tables yet; a start of {version()} makes schema {self.known}"
            )
        if self.is_older:
            return (
                f"{self.database} has schema {self.found}; a start of {version()} migrates it to"
                f" {self.known}, which an older version does not read"
            )
        return f"{self.database} has schema {self.found}, which {version()} uses: nothing to do"


class StoreUnavailable(Exception):
    """The store could not answer, and nothing was changed.

    Where it may have been changed, OutcomeUnknown is raised.
    """


class StoreFull(StoreUnavailable):
    """The disk of the database is full."""


class OutcomeUnknown(StoreUnavailable):
    """The store did not answer in time, or the connection was lost in a commit: it may be done yet.

    A reservation then ends with its lease, `settle` may be called again, and an
    idempotent request frees its key.
    """


class StoreBroken(StoreUnavailable):
    """The database is not usable by this program, and a retry will not help. One line for the operator."""


class DatabaseInUse(StoreBroken):
    """Another process uses a database that must be left alone meanwhile."""


class KeyLimitReached(Exception):
    """The account already has its maximum number of standard keys."""


class RateExceeded(Exception):
    """Too many of something in a minute.

    `asked_at` is the store's clock, `reset_at` when the next one is possible.
    """

    def __init__(self, asked_at: datetime, reset_at: datetime) -> None:
        super().__init__(reset_at)
        self.asked_at = asked_at
        self.reset_at = reset_at


class KeyCreationTooFast(RateExceeded):
    """The account created its maximum number of standard keys within the last minute."""


class ListLimitReached(Exception):
    """The account has its maximum number of lists: `active`, that have not ended, or in all states."""

    def __init__(self, lists_max: int, *, active: bool) -> None:
        super().__init__(lists_max)
        self.lists_max = lists_max
        self.active = active


class ListRateExceeded(RateExceeded):
    """The account sent lists at more than its rate."""


class ListRoomExceeded(Exception):
    """The account's lists would have more octets than they may."""


class IdempotencyInProgress(Exception):
    """The first request with this idempotency key is still running."""


class IdempotencyKeyReused(Exception):
    """This idempotency key was used before with another request body."""
