"""The PostgreSQL server: its URL, a connection to it, and the meaning of its errors.

No message made here contains the URL's password.
"""

import re
import select
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime
from functools import cache
from typing import Any, cast
from uuid import UUID

import psycopg
from psycopg import conninfo, errors, pq
from psycopg.abc import AdaptContext, Params
from psycopg.adapt import Buffer, Dumper
from psycopg.types.string import StrDumper, TextLoader

from ...base.columns import instant
from ...contract import StoreBroken, StoreFull, StoreUnavailable, shown
from ...database import Row, RowInsert

SCHEMA = "mailprobe"  # a schema of our own, so that other programs' tables do not conflict

# https://www.postgresql.org/docs/15/libpq-connect.html: the operator's URL may override these
CONNECTING = {
    "connect_timeout": "2",  # seconds, libpq's least
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "2000",  # ms: a connection without acknowledgements is closed after them
    "application_name": "mailprobe",
}
# Less than a caller's ANSWER_S: a statement that the server cancels has changed nothing.
STATEMENT_MS = 700
ENDS_BEFORE_S = 0.1  # as much less than another patience
LOCK_MS = 500  # less, so that a wait for a lock ends as one
IDLE_MS = 2_000  # a process that stalls within a transaction blocks others no longer than this
# PostgreSQL 15 does not always end a session by its idle_in_transaction_session_timeout once it has sent a
# pipeline, and never within one. After a lock timeout those sessions of ours are therefore ended.
END_STALLED = (
    "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND usename = session_user"
    " AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
    " AND wait_event = 'ClientRead' AND state IN ('active', 'idle in transaction')"
    f" AND state_change < clock_timestamp() - interval '{IDLE_MS} ms'"
)
UPKEEP_MS = 60_000  # for work that blocks no request
SETTINGS = (
    f"SET search_path = {SCHEMA}, pg_temp;"
    f"SET statement_timeout = {STATEMENT_MS};"
    f"SET lock_timeout = {LOCK_MS};"
    f"SET idle_in_transaction_session_timeout = {IDLE_MS};"
    "SET default_transaction_isolation = 'read committed';"
    "SET jit = off;"  # compiling would take longer than the statement
    # Every statement finds its rows by an index, whatever the statistics say. A generic plan
    # is made once, not again for each value.
    "SET enable_seqscan = off;"
    "SET plan_cache_mode = force_generic_plan"
)

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"  # microseconds since 1970

# SQLSTATE classes (https://www.postgresql.org/docs/15/errcodes-appendix.html) of failures outside
# the statement: connection, resources, operator intervention, system, internal error
UNAVAILABLE = ("08", "53", "57", "58", "XX")
DISK_FULL = "53100"
UNAVAILABLE_CODES = {
    "25006",  # read-only: a standby
    "40001",
    "40P01",  # deadlock
    "55P03",  # lock_timeout
    "55006",
    "25P03",  # idle_in_transaction_session_timeout
}
BROKEN_CODES = {
    "28000": "the server lets this user not in",
    "28P01": "the server refuses the password",
    "3D000": "there is no such database: make it with createdb",
    "3F000": "the tables are gone",
    "42P01": "the tables are gone",
    "42501": "the user may not make or use the tables: let it own the database",
}

ESCAPE = "\x01"


class _Dumper(StrDumper):
    """Stores octet zero, which PostgreSQL accepts in no text, as two other characters."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_escaped(obj))


def _escaped(text: str) -> str:
    if "\0" in text or ESCAPE in text:
        return text.replace(ESCAPE, ESCAPE * 2).replace("\0", f"{ESCAPE}0")
    return text


class _Loader(TextLoader):
    def load(self, data: Buffer) -> str:
        text = cast(str, super().load(data))
        if ESCAPE in text:
            parts = text.split(ESCAPE * 2)
            text = ESCAPE.join(part.replace(f"{ESCAPE}0", "\0") for part in parts)
        return text


class _ArrayDumper(Dumper):
    """Sends a list as an array of unknown type; a cast or a column of the statement gives its type.

    psycopg's own dumper inspects every element for the narrowest type, and each type needs
    another prepared statement; a batch's arrays took a sixth of our time.
    """

    oid = 0  # unknown: the statement gives the type

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self._encoding = context.connection.info.encoding if context and context.connection else ""

    def dump(self, obj: list[object]) -> Buffer:
        kinds = set(map(type, obj))
        if kinds <= {int}:
            text = f"{obj}"[1:-1]
        else:
            written = {kind: _writer(kind) for kind in kinds}
            text = ",".join([written[type(each)](each) for each in obj])
        return f"{{{text}}}".encode(self._encoding or "utf-8")


def _writer(kind: type) -> Callable[[object], str]:
    for known in kind.__mro__:
        if known in ELEMENTS:
            return ELEMENTS[known]
    raise TypeError(f"no rule says how a {kind.__name__} is written in an array")


def _quoted(text: str) -> str:
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# https://www.postgresql.org/docs/15/arrays.html#ARRAYS-IO
ELEMENTS: dict[type, Callable[[Any], str]] = {
    int: int.__repr__,
    bool: lambda value: "t" if value else "f",
    str: _quoted,
    bytes: lambda octets: f'"\\\\x{octets.hex()}"',
    date: date.isoformat,
    UUID: lambda value: f"{value.int:032x}",
    type(None): lambda _: "NULL",
}


class PostgresServer:
    """A PostgreSQL database, given by its URL."""

    def __init__(self, url: str, *, answer_s: float | None = None) -> None:
        """Statements may take almost `answer_s`. Raises StoreBroken for a URL that cannot be read."""
        self.name = shown(url)
        self._settings = SETTINGS
        if answer_s is not None:
            limit_ms = int((answer_s - ENDS_BEFORE_S) * 1000)
            lock_ms = max(1, limit_ms - STATEMENT_MS + LOCK_MS)
            self._settings += f"; SET statement_timeout = {limit_ms}; SET lock_timeout = {lock_ms}"
        try:
            given = conninfo.conninfo_to_dict(url)
        except (psycopg.Error, ValueError):  # its message may contain the password
            message = (
                f"{self.name} is not a URL of a PostgreSQL database:"
                " postgresql://user:password@host:5432/name is"
            )
            raise StoreBroken(message) from None
        self._parameters = {**CONNECTING, **given}
        self._password = given.get("password")

    def connect(self) -> psycopg.Connection:
        """Open a connection in autocommit mode with our limits; raises StoreUnavailable, StoreBroken."""
        try:
            db = psycopg.connect(**cast(dict[str, Any], self._parameters), autocommit=True)
            try:
                db.adapters.register_dumper(str, _Dumper)
                db.adapters.register_dumper(list, _ArrayDumper)
                db.adapters.register_loader("text", _Loader)
                db.execute(self._settings)
                db.prepare_threshold = 0  # prepare at first use: every statement is used again
            except BaseException:
                db.close()
                raise
        except psycopg.Error as error:
            raise self.as_unavailable(error) from None
        return db

    def as_unavailable(self, error: BaseException) -> StoreUnavailable:
        if isinstance(error, StoreUnavailable):
            return type(error)(*error.args)
        words = self._words(error)
        for code, meaning in BROKEN_CODES.items():
            if code_of(error) == code or _says(error, code):
                return StoreBroken(f"{self.name}: {meaning} ({words})")
        kind = StoreFull if code_of(error) == DISK_FULL else StoreUnavailable
        return kind(f"{self.name} cannot be used just now: {words}")

    def _words(self, error: BaseException) -> str:
        """Return the error's message in one line, without the password."""
        words = " ".join(str(error).split()) or type(error).__name__
        return words.replace(str(self._password), "***") if self._password else words


def code_of(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""


def _says(error: BaseException, code: str) -> bool:
    """Recognise a connection error by its text: libpq gives it no code."""
    said = {
        "28P01": "password authentication failed",
        "3D000": "does not exist",
        "28000": "no pg_hba.conf entry",
    }.get(code)
    return bool(said and not code_of(error) and said in str(error))


def is_server_failure(error: BaseException) -> bool:
    """Return whether the server is unavailable, rather than a single transaction wrong."""
    if isinstance(error, StoreUnavailable | OSError | errors.InterfaceError):
        return True
    code = code_of(error)
    if not code:
        return isinstance(error, psycopg.OperationalError)
    return code.startswith(UNAVAILABLE) or code in UNAVAILABLE_CODES or code in BROKEN_CODES


def is_blocked(error: BaseException) -> bool:
    """Return whether a statement waited for a lock in vain."""
    return isinstance(error, errors.LockNotAvailable)


def is_lost(error: BaseException) -> bool:
    """Return whether the connection was lost, so that the result of a commit in progress is unknown.

    A server that reports its shutdown may have committed before.
    """
    if isinstance(error, errors.InterfaceError | OSError):
        return True
    return isinstance(error, psycopg.OperationalError) and code_of(error)[:3] in ("", "57P", "08")


def is_gone(db: psycopg.Connection) -> bool:
    """Return whether the server has closed an idle connection, or announced that it will."""
    if db.closed:
        return True
    try:
        ready, _, _ = select.select([db.fileno()], [], [], 0)
    except (psycopg.Error, OSError, ValueError):
        return True
    return bool(ready)


class TransactionConnection:
    """What a transaction uses: the connection and the clock.

    The clock is the database's, which all machines share, unless `now` is given (in tests).
    """

    def __init__(
        self,
        db: psycopg.Connection,
        now: Callable[[], datetime] | None,
        partitions: Set[tuple[str, date]] = frozenset(),
    ) -> None:
        self.db = db
        self._now = now
        self.partitions = partitions  # by table and day, as far as this process knows
        self.committing = False  # once True, a lost connection leaves the result unknown
        self.marker: object = None  # identifies rows that show the commit

    def execute(self, statement: str, values: Params | None = None) -> "psycopg.Cursor":
        return self.db.execute(statement, values)

    def one(self, statement: str, values: Params | None = None) -> Any:
        return self.execute(statement, values).fetchone()

    def all(self, statement: str, values: Params | None = None) -> list[Any]:
        return self.execute(statement, values).fetchall()

    def instant(self, micros: int) -> datetime:
        """Return `micros`, just read from the database's clock, as an instant, or the injected clock's."""
        return self._now() if self._now else instant(micros)

    def now(self) -> datetime:
        """Read the clock, in UTC; call it only after the locks are acquired."""
        if self._now:
            return self._now()
        return instant(self.one(f"SELECT {NOW}")[0])

    def given_moment(self, locked: "psycopg.Cursor") -> datetime | None:
        """Return the injected clock's instant once `locked` has its locks; None without such a clock."""
        if not self._now:
            return None
        locked.fetchone()  # waits for the locks
        return self._now()

    def begin(self) -> None:
        self.execute("BEGIN")

    def rollback(self) -> None:
        """Roll back without psycopg's execute(), which discards all prepared statements at a rollback."""
        result = self.db.pgconn.exec_(b"ROLLBACK")
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.OperationalError("the transaction could not be rolled back")

    def commit(self) -> None:
        self.committing = True
        self.execute("COMMIT")


NAMED = re.compile(r"(?<!:):([a-z]\w*)")


@cache
def _positional(statement: str) -> tuple[str, list[str]]:
    """A shared statement with psycopg's places, and the names of their values."""
    return NAMED.sub("%s", statement.replace("%", "%%")), NAMED.findall(statement)


def columns_of(rows: Sequence[Row]) -> list[list[object]]:
    """The rows as an array of each column."""
    return [list(column) for column in zip(*rows, strict=True)]


class Writes:
    """Statements that share no row, sent as one statement to save a round trip each."""

    def __init__(self) -> None:
        self._statements: list[str] = []
        self._values: list[object] = []

    def add(self, statement: str, *values: object) -> None:
        self._statements.append(statement)
        self._values += values

    def insert(self, into: RowInsert, rows: Sequence[Row]) -> None:
        if rows:
            self.add(into.of_arrays, *columns_of(rows))

    def add_named(self, statement: str, values: Mapping[str, object]) -> None:
        """Add a statement whose values have names, as the shared ones have."""
        positional, names = _positional(statement)
        self.add(positional, *(values[name] for name in names))

    def send(self, db: TransactionConnection) -> None:
        if not self._statements:
            return
        *others, last = self._statements
        named = [f"step_{number} AS ({words})" for number, words in enumerate(others)]
        words = f"WITH {', '.join(named)} {last}" if named else last
        db.execute(words, self._values)

    def __bool__(self) -> bool:
        return bool(self._statements)
