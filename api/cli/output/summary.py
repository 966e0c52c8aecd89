"""The summary of a run of `clean`, for the reports on it."""

from pathlib import Path

from msgspec import Struct

from ...results.counts import ResultCounts


class Summary(Struct, frozen=True):
    """The result of a run; `counts` has rows, `verified` the addresses verified in this run."""

    outputs: tuple[Path, ...]  # none for standard output
    rows: int
    blank: int
    addresses: int
    verified: int
    took_s: float
    counts: ResultCounts
    written: int  # rows, of all outputs
    report: Path | None = None
    columns: tuple[str, ...] = ()  # that were verified, for people; none: each line is an address
    unwrapped: int = 0  # rows in which something stood around the address
    doubtful: int = 0  # rows whose address is suggested, and was not verified


def counted(count: int, one: str, more: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count:,} {one if count == 1 else more}"


def cell_notes(summary: Summary) -> str:
    """` (2 without an address, 3 unwrapped)`: rows whose cells are anything but an address."""
    notes = {
        "without an address": summary.blank,
        "unwrapped": summary.unwrapped,
        "doubtful": summary.doubtful,
    }
    noted = ", ".join(f"{count:,} {words}" for words, count in notes.items() if count)
    return f" ({noted})" if noted else ""
