"""Rows of a list and their results as they are stored: lines of JSON in a chunk.

    rows       {"p":0,"n":3,"a":"ann@shop.test","c":["Ann","ann@shop.test"]}
    results    {"number":3,"email":"ann@shop.test","status":"deliverable",...}

A row names the chunk (p) and the number (n) of its address there; the address itself (a) is only
in the row that has it first. A row without an address has its cells (c) alone. A row with several
addresses has the further ones at its end (f). What is false or null is left out. Lines of earlier
versions are arrays without names, and are read as well; a list may have both. Pure.
"""

from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from mailprobe.engine import Answer
from mailprobe.engine.verdict import Blame, FailedCheck, Reason, Status
from mailprobe.storage.list_records import ListChunk

from .row_result import RowResult, row_result
from .stored_row import FURTHER, StoredRow, decode_row, starts_of


class StoredResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result for the address of this number in its chunk.

    Lines that are stored lack what a later version adds, so that it needs a default.
    """

    number: int
    email: str
    status: Status
    confidence: float
    reason: Reason
    valid: bool = False
    failed_check: FailedCheck | None = None
    disposable: bool = False
    role: bool = False
    free_provider: bool = False
    catch_all: bool = False
    smtp_blocked: bool = False
    mx_found: bool = False
    mx_host: str | None = None
    suggestion: str | None = None
    latency_ms: int = 0
    blame: Blame | None = None

    def as_row_result(self) -> RowResult:
        return RowResult(*_kept_of(self))


# The fields of a result in the order in which earlier versions wrote them. It never changes.
POSITIONS = (
    *("number", "email", "valid", "status", "confidence", "failed_check", "disposable", "role"),
    *("free_provider", "catch_all", "smtp_blocked", "mx_found", "mx_host", "suggestion"),
    *("latency_ms", "reason", "blame"),
)
# What is kept of a result, in its own order: all but what `clean` alone adds at the end.
_kept_of = attrgetter(
    *(name for name in RowResult.__struct_fields__ if name in StoredResult.__struct_fields__)
)
_stored_fields = attrgetter(*StoredResult.__struct_fields__[1:])
_encoder = msgspec.json.Encoder()
_named = msgspec.json.Decoder(StoredResult).decode
_positional = msgspec.json.Decoder(list[object]).decode


def _decoded(line: str) -> StoredResult:
    if not line.startswith("["):
        return _named(line)
    return msgspec.convert(dict(zip(POSITIONS, _positional(line), strict=True)), StoredResult)


def _lines(text: str) -> list[str]:
    """The lines of a chunk; `splitlines` would also split at U+2028, which JSON may contain."""
    return text.split("\n")[:-1]


def rows_of(chunk: ListChunk) -> Iterator[StoredRow]:
    return (decode_row(line) for line in _lines(chunk.rows))


def results_of(chunk: ListChunk) -> dict[int, RowResult]:
    """The results that are there, by the number of their address."""
    return results_in(chunk.results)


def results_in(lines: str) -> dict[int, RowResult]:
    """The same of a chunk's lines of results."""
    stored = (_decoded(line) for line in _lines(lines))
    return {result.number: result.as_row_result() for result in stored}


def found_at(
    chunk: ListChunk, numbers: Iterable[int]
) -> Iterator[tuple[int, StoredRow, RowResult]]:
    """The rows that have these addresses first, with their results; decodes no others."""
    wanted = sorted(numbers)
    starts = tuple(start for number in wanted for start in (f'{{"number":{number},', f"[{number},"))
    results = {
        result.number: result.as_row_result()
        for line in _lines(chunk.results)
        if line.startswith(starts)
        for result in [_decoded(line)]
    }
    row_starts = starts_of(chunk.place, wanted)
    for line in _lines(chunk.rows):
        if line.startswith(row_starts) or FURTHER in line:
            row = decode_row(line)
            for number, _ in _new_addresses(row):
                if number in results:
                    yield number, row, results[number]


def _new_addresses(row: StoredRow) -> Iterator[tuple[int, str]]:
    """The addresses that a row has first, with their numbers in the chunk."""
    if row.address is not None and row.number is not None:
        yield row.number, row.address
    for each in row.further:
        if each.address is not None:
            yield each.number, each.address


def addresses_of(chunk: ListChunk) -> dict[int, str]:
    """The chunk's addresses that have no result yet, by number."""
    answered = {_decoded(line).number for line in _lines(chunk.results)}
    return {
        number: address
        for row in rows_of(chunk)
        for number, address in _new_addresses(row)
        if number not in answered
    }


def passing_of(chunk: ListChunk) -> dict[int, tuple[str, Status]]:
    """The chunk's addresses whose result time may cure, by number, each with its status."""
    return {
        number: (result.email, result.status)
        for number, result in results_of(chunk).items()
        if result.is_passing
    }


def encode_results(answers: Iterable[tuple[int, Answer]]) -> str:
    """Lines for answers, each with the number of its address."""
    return "".join(_line_of(number, answer) for number, answer in answers)


def _line_of(number: int, answer: Answer) -> str:
    stored = StoredResult(number, *_stored_fields(row_result(answer)))
    return _encoder.encode(stored).decode() + "\n"
