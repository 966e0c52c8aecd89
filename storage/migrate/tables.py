"""The mapping of SQLite's tables and columns to PostgreSQL's for `mailprobe migrate`.

Both schemas use the same names, except where TABLES says otherwise. An unknown table or
column stops the move before it begins, so a changed schema never loses data silently.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any
from uuid import UUID

from msgspec import Struct, field

from ..contract import StoreBroken

# Whole numbers are summed modulo this: sums of 4 thousand million rows fit in 64 bits.
CHECKED = 2**31 - 1


class TableMap(Struct, frozen=True):
    """A table, and the order in which its rows are read."""

    name: str
    key: tuple[str, ...]  # SQLite's columns that order the rows
    renamed: Mapping[str, str] = field(default_factory=dict)  # SQLite's column -> PostgreSQL's
    left_out: frozenset[str] = frozenset()  # SQLite's columns that PostgreSQL may lack
    has_texts: bool = False  # of some KiB each


# In this order, because later tables refer to accounts and keys.
TABLES = (
    TableMap("accounts", ("number",)),
    TableMap("keys", ("number",)),
    TableMap("months", ("account", "month")),
    TableMap("days", ("account", "day")),
    TableMap("periods", ("account", "start")),
    TableMap("rate_windows", ("key", "at"), left_out=frozenset({"total"})),
    TableMap("reservations", ("number",), renamed={"number": "id"}),
    TableMap("settlements", ("reservation", "part")),
    TableMap("idempotency_records", ("number",), left_out=frozenset({"number"})),
    TableMap("jobs", ("number",)),
    TableMap("lists", ("number",)),
    TableMap("list_chunks", ("list", "place")),
    TableMap("list_marks", ("list", "place")),
    TableMap("list_waits", ("list", "host")),
    TableMap("shared_reports", ("number",)),
    TableMap("list_lines", ("day", "list", "place", "part"), has_texts=True),
    TableMap("job_attempts", ("job", "place")),
    TableMap(
        "job_backlogs",
        ("account",),
        left_out=frozenset({"pending_due_at", "delivering_due_at"}),
    ),
    TableMap("receivers", ("account", "host")),
    TableMap("outbox", ("number",)),
    TableMap("refusals", ("account", "minute", "key", "failed_check", "place")),
    TableMap("usage", ("number",)),
    TableMap("reputation", ("day", "operator")),
    TableMap("egress_rests", ("egress",)),
    TableMap("egress_days", ("day", "egress")),
    TableMap("egress_replies", ("egress", "operator", "reason")),
    TableMap("ended_sessions", ("id",)),
    TableMap("people", ("number",)),
    TableMap("sign_ins", ("id",)),
    TableMap("sign_in_links", ("sha256",)),
    TableMap("bounces", ("account", "address")),
    TableMap("audit_entries", ("number",)),
    TableMap("pauses", ("kind", "name")),
    TableMap("host_tolerances", ("egress", "host")),
)

# Tables that are not moved: each store's own records, and what expires by itself: leases, which
# machines run, the facts of a fleet, which its engines find again, and conversations, which rows of
# lists ask for again.
EXPIRING = frozenset({"connection_leases", "machines", "known_facts", "conversations"})
OF_SQLITE = (
    frozenset(
        {
            *("_sqlite_migrations", "schema_versions", "sqlite_sequence"),
            *("job_partitions", "store_properties"),
        }
    )
    | EXPIRING
)
OF_POSTGRES = frozenset({"store_properties", "migrations", "schema_versions"}) | EXPIRING


def reservation_id(number: int) -> UUID:
    """Return a UUID of version 7 (RFC 9562) dated 1970: it sorts before all that the store makes."""
    return UUID(int=number & (1 << 62) - 1 | 0x7 << 76 | 0b10 << 62)


# PostgreSQL's type -> conversion from SQLite's value
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "boolean": bool,
    "uuid": reservation_id,
}
UNCHANGED = frozenset({"bigint", "text", "bytea"})
SUMMED = frozenset({"bigint", "boolean"})


class TablePlan(Struct, frozen=True):
    """How one table is moved, once both sides' columns are known."""

    table: TableMap
    columns: tuple[str, ...]  # SQLite's
    targets: tuple[str, ...]  # PostgreSQL's, in the same order
    types: tuple[str, ...]  # the targets' PostgreSQL types

    def converted(self, rows: Sequence[Sequence[object]]) -> Iterator[Sequence[object]]:
        """Yield the rows with SQLite's values converted to PostgreSQL's types."""
        acts = [(n, CONVERSIONS[type]) for n, type in enumerate(self.types) if type in CONVERSIONS]
        for row in rows:
            values = list(row)
            for n, act in acts:
                if values[n] is not None:
                    values[n] = act(values[n])
            yield values

    def totals(self, *, of_source: bool) -> str:
        """Return SQL for the row count, units or null, and a sum per integer or boolean column."""
        kind = "INTEGER" if of_source else "bigint"
        sums = ["count(*)"]
        sums.append(_sum("units", kind) if "units" in self.targets else "NULL")
        for ours, theirs, type in zip(self.columns, self.targets, self.types, strict=True):
            if type in SUMMED:
                name = ours if of_source else theirs
                sums.append(
                    _sum(f"{name}::integer" if type == "boolean" and not of_source else name, kind)
                )
        return f"SELECT {', '.join(sums)} FROM {self.table.name}"


def _sum(column: str, kind: str) -> str:
    """Return SQL for a sum modulo CHECKED: sums of instants in microseconds would exceed 64 bits."""
    return f"CAST(coalesce(sum(CAST({column} AS {kind}) % {CHECKED}), 0) AS {kind})"


def planned(
    of_sqlite: Mapping[str, Sequence[str]], of_postgres: Mapping[str, Mapping[str, str]]
) -> list[TablePlan]:
    """Plan the move from each side's columns by table, PostgreSQL's with their types.

    Raises StoreBroken for a table, column or type that is missing or unknown.
    """
    _check_known("SQLite", of_sqlite, {table.name for table in TABLES} | OF_SQLITE)
    _check_known("PostgreSQL", of_postgres, {table.name for table in TABLES} | OF_POSTGRES)
    for table in TABLES:
        if table.name not in of_sqlite or table.name not in of_postgres:
            raise StoreBroken(f"the table {table.name} is not on both sides")
    return [_planned(table, of_sqlite[table.name], of_postgres[table.name]) for table in TABLES]


def _check_known(side: str, there: Iterable[str], known: Set[str]) -> None:
    if unknown := sorted(set(there) - known):
        raise StoreBroken(f"this version cannot move {side}'s table {', '.join(unknown)}")


def _planned(table: TableMap, ours: Sequence[str], theirs: Mapping[str, str]) -> TablePlan:
    columns = [name for name in ours if name in theirs or name not in table.left_out]
    targets = [table.renamed.get(name, name) for name in columns]
    if unknown := sorted(set(targets) ^ set(theirs)):
        raise StoreBroken(f"this version cannot move {table.name}'s column {', '.join(unknown)}")
    types = [theirs[name] for name in targets]
    if strange := sorted(set(types) - UNCHANGED - CONVERSIONS.keys()):
        raise StoreBroken(f"this version cannot move {table.name}'s type {', '.join(strange)}")
    return TablePlan(table, tuple(columns), tuple(targets), tuple(types))
