"""How the rows of a list and its results are stored: as lines of JSON in a chunk.

    rows       [0, 3, "ann@shop.test", ["Ann", "ann@shop.test"]]
    results    [3, "ann@shop.test", true, "deliverable", ...]

A row names the chunk and the number of its address there; the address itself is only in the
row that has it first. A row without an address has null in the place of all three. A row with
several addresses has the further ones at its end. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from mailprobe.api.results.row_result import RowResult, row_result
from mailprobe.api.results.stored_row import FURTHER_END, StoredRow
from mailprobe.engine import Answer
from mailprobe.engine.verdict import Blame, FailedCheck, Reason, Status
from mailprobe.storage.list_records import ListChunk


class StoredResult(msgspec.Struct, frozen=True, array_like=True):
    """The result for the address of this number in its chunk."""

    number: int
    email: str
    valid: bool
    status: Status
    confidence: float
    failed_check: FailedCheck | None
    disposable: bool
    role: bool
    free_provider: bool
    catch_all: bool
    smtp_blocked: bool
    mx_found: bool
    mx_host: str | None
    suggestion: str | None
    latency_ms: int
    reason: Reason
    blame: Blame | None

    def as_row_result(self) -> RowResult:
        _, *fields = msgspec.structs.astuple(self)
        return RowResult(*fields)


_encoder = msgspec.json.Encoder()
_rows = msgspec.json.Decoder(StoredRow)
_results = msgspec.json.Decoder(StoredResult)


def _lines(text: str) -> list[str]:
    """The lines of a chunk; `splitlines` would also split at U+2028, which JSON may contain."""
    return text.split("\n")[:-1]


def rows_of(chunk: ListChunk) -> Iterator[StoredRow]:
    return (_rows.decode(line) for line in _lines(chunk.rows))


def results_of(chunk: ListChunk) -> dict[int, RowResult]:
    """The results that are there, by the number of their address."""
    return results_in(chunk.results)


def results_in(lines: str) -> dict[int, RowResult]:
    """The same of a chunk's lines of results."""
    stored = (_results.decode(line) for line in _lines(lines))
    return {result.number: result.as_row_result() for result in stored}


def found_at(
    chunk: ListChunk, numbers: Iterable[int]
) -> Iterator[tuple[int, StoredRow, RowResult]]:
    """The rows that have these addresses first, with their results; decodes no others."""
    wanted = sorted(numbers)
    results = {
        result.number: result.as_row_result()
        for line in _lines(chunk.results)
        if line.startswith(tuple(f"[{number}," for number in wanted))
        for result in [_results.decode(line)]
    }
    starts = tuple(f'[{chunk.place},{number},"' for number in wanted)
    for line in _lines(chunk.rows):
        if line.startswith(starts) or line.endswith(FURTHER_END):
            row = _rows.decode(line)
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
    answered = {_results.decode(line).number for line in _lines(chunk.results)}
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
    result = row_result(answer)
    fields: Sequence[object] = msgspec.structs.astuple(result)[
        : len(StoredResult.__struct_fields__) - 1
    ]
    return _encoder.encode([number, *fields]).decode() + "\n"
