"""NDJSON: a JSON object, or a string, on each line.

The address is a field that holds text. One inside another is named with a path, such as
`contact.email`; `emails.0` is the first of several.

An object's line is not re-encoded: the result's members are appended to its own, so
that numbers, order and duplicate names are preserved. Only where an object has the result
of an earlier cleaning, it is written anew without that; its values keep their text.
"""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import msgspec

from ..cells.unwrapping import NO_ADDRESS, CellReading, read_cell
from ..terminal import plain
from .addresses import CellNotes, first_address
from .bounds import SAMPLE_MAX, SHORT_CHARACTERS, excess_of
from .columns import SAMPLE_ROWS, Wanted, find_columns, has_address
from .earlier_results import (
    EMAIL,
    are_others,
    earlier_results,
    named_results,
    without,
)
from .survey import BadList, Survey
from .text import text_lines

NESTED_SAMPLE = 20  # lines searched for addresses in nested fields
DEPTH_MAX = 5  # levels searched
PATHS_MAX = 5  # paths named in a message
TEXT = "text"  # the field name of a string that is more than an address

FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

Path = tuple[str, ...]  # the names that lead to a field


class ObjectRow(msgspec.Struct, frozen=True):
    """One line; `line` is its text as an object, `fields` its members.

    A string that is an address has no fields: the result contains it.
    """

    readings: Sequence[CellReading]
    line: str
    fields: dict[str, Any]
    objects: "Objects"
    whole: dict[str, object]  # its members with the results of an earlier cleaning

    @property
    def address(self) -> str:
        return first_address(self.readings)

    def results(self) -> dict[str, str]:
        values = [_cell_text(self.whole.get(name)) for name in self.objects.earlier]
        return named_results(values, self.objects.earlier_fields)

    def cells(self) -> list[str]:
        own = FIELDS.decode(self.line) if self.fields else {}
        return [_cell_of(own.get(column)) for column in self.objects.columns]

    def members(self) -> bytes:
        return self.line.strip().encode() if self.fields else b"{}"


def _cell_of(raw: msgspec.Raw | None) -> str:
    """Return a value as a cell: a string's characters, or any other value's JSON text."""
    if raw is None:
        return ""
    octets = bytes(raw).strip()
    if octets.startswith(b'"'):
        return msgspec.json.decode(octets, type=str)
    return "" if octets == b"null" else octets.decode()


def _cell_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Objects:
    """A list of objects; `columns` grows with the names found, as a TableList's does."""

    def __init__(self, file: BinaryIO, survey: Survey, wanted: Wanted, name: str) -> None:
        self.columns: list[str] = []
        self.notes = CellNotes()
        self.earlier_fields: Sequence[str] = ()
        self._is_named = len(wanted) > 1  # the results bear the names of their fields
        self._known: set[str] = set()
        self._file = file
        self._survey = survey
        self._name = name
        self.earlier: list[str] = []  # members of an earlier cleaning
        self._addresses: list[Path] = self._find_fields(wanted)

    @property
    def verified_columns(self) -> list[str]:
        """The fields of the addresses, for people; none: the lines are strings."""
        return [plain(".".join(path)) for path in self._addresses if path]

    @property
    def positions(self) -> Sequence[int]:
        """The columns of fields that are not within others."""
        names = [path[0] for path in self._addresses if len(path) == 1]
        return [self.columns.index(name) for name in names if name in self.columns]

    @property
    def sources(self) -> Sequence[str]:
        """The paths, if the results are to bear them."""
        return [".".join(path) for path in self._addresses] if self._is_named else ()

    def _are_of_another(
        self, fields: Sequence[str], path: Path, sample: Sequence[dict[str, object]]
    ) -> bool:
        """Whether the earlier results are about other addresses than those at the path."""
        if EMAIL not in fields or path[0] in self.earlier:
            return False
        name = self.earlier[fields.index(EMAIL)]
        return are_others(
            (_cell_text(value.get(name)), _cell_text(reach(value, path))) for value in sample
        )

    def rows(self) -> Iterator[ObjectRow]:
        """Yield every line; can be called repeatedly. Raises BadList for a line that is not JSON."""
        self.notes = CellNotes()
        self.columns = [name for name in self.columns if name not in self.earlier]
        for number, (line, value) in enumerate(self._values(), 1):
            row = self._row(line, value, number)
            if any(each.is_noted for each in row.readings):
                self.notes.add(number, row.readings)
            if len(line) > SHORT_CHARACTERS:
                cells = row.cells() or [row.address]
                if (excess := excess_of(cells)) is not None:
                    raise BadList(f"{self._name}, line {number}: {excess}; put that right first")
            yield row

    def _row(self, line: str, value: object, number: int) -> ObjectRow:
        match value:
            case dict():
                readings = [self._read_field(value, path, number) for path in self._addresses]
                own = value
                if any(name in value for name in self.earlier):
                    line = msgspec.json.encode(self._own(FIELDS.decode(line))).decode()
                    own = self._own(value)
                self._learn(own)
                return ObjectRow(readings, line, own, self, value)
            case str() if value and read_cell(value).addresses != (value,):
                self._learn(fields := {TEXT: value})
                text = f'{{"{TEXT}":{line.strip()}}}'
                return ObjectRow([read_cell(value)], text, fields, self, {})
            case str():
                return ObjectRow([read_cell(value)], line, {}, self, {})
            case _:
                return ObjectRow([NO_ADDRESS], line, {}, self, {})

    def _read_field(self, fields: dict[str, object], path: Path, number: int) -> CellReading:
        value = reach(fields, path)
        if isinstance(value, dict | list):
            raise BadList(
                f"{self._name}, line {number}: {plain('.'.join(path))} holds several values "
                f"and no text{_advice(_paths_to_addresses(fields), number)}"
            )
        return read_cell(_cell_text(value))

    def _learn(self, fields: dict[str, Any]) -> None:
        new = [field for field in fields if field not in self._known]
        if not new:
            return
        self._known.update(new)
        self.columns += new
        if (excess := excess_of(self.columns)) is not None:
            raise BadList(f"{self._name}: the row of all fields' names {excess}")

    def _values(self) -> Iterator[tuple[str, object]]:
        """Yield each line with its decoded value; None for a blank line."""
        for number, line in enumerate(text_lines(self._file, self._survey, self._name), 1):
            yield line, self._read(line, number) if line.strip() else None

    def _read(self, line: str, number: int) -> object:
        where = f"{self._name}, line {number}"
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            value = None
        if value is None:
            raise BadList(
                f"{where}: is not a whole JSON object or string; each takes one line (jq -c . makes "
                "lines of an object, jq -c '.users[]' of the items in its member users)"
            )
        if not isinstance(value, dict | str):
            raise BadList(f"{where}: is neither an object nor a string")
        return value

    def _find_fields(self, wanted: Wanted) -> list[Path]:
        """Return the paths of the fields with addresses; an empty one if all lines are strings."""
        sample: list[dict[str, object]] = []
        said = False
        weight = 0
        for line, value in self._values():
            weight += len(line)
            said = said or value is not None
            if isinstance(value, dict):
                self._learn(value)
                sample.append(value)
            if len(sample) > SAMPLE_ROWS or weight > SAMPLE_MAX:
                break
        if not said:
            raise BadList(f"{self._name} holds nothing but blank rows")
        if not sample:
            return [()]
        earlier = earlier_results(self.columns, wanted if len(wanted) > 1 else ())
        self.earlier = self.columns[earlier.place.start : earlier.place.stop]
        self.earlier_fields = earlier.fields
        if self.earlier and not wanted:
            if len(earlier.place) == len(self.columns):  # the list was one of strings
                return [(self.columns[earlier.place.start],)]
            self.columns = without(self.columns, earlier.place)
            sample = [self._own(value) for value in sample]
        paths = [self._find_path(sample, name) for name in wanted or (None,)]
        if len(paths) == 1 and self._are_of_another(earlier.fields, paths[0], sample):
            self.earlier, self.earlier_fields, self._is_named = [], (), True
        return paths

    def _find_path(self, sample: Sequence[dict[str, object]], wanted: str | None) -> Path:
        if wanted is not None and wanted not in self._known and "." in wanted:
            path = tuple(wanted.split("."))
            if any(reach(value, path) is not None for value in sample):
                return path
        return (self._find_column(sample, wanted),)

    def _own(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The members that are the list's own."""
        return {name: value for name, value in fields.items() if name not in self.earlier}

    def _find_column(self, sample: Sequence[dict[str, object]], wanted: str | None) -> str:
        """Find the field by name; without `wanted` one that has text and never several values."""
        texts = [
            column
            for column in self.columns
            if wanted is not None or _is_text([value.get(column) for value in sample])
        ]
        rows = [[_cell_text(value.get(column)) for column in texts] for value in sample]
        try:
            (position,) = find_columns(texts, rows, () if wanted is None else (wanted,), self._name)
        except BadList as bad:
            inside = _paths_to_addresses(*sample)
            if wanted is not None or not inside:
                raise
            raise BadList(
                f"{self._name} has no field of its own with an address",
                _advice(inside, len(sample)),
                "column",
            ) from bad
        if not any(any(row) for row in rows) or (rows and not any(row[position] for row in rows)):
            inside = _paths_to_addresses(*sample)
            if wanted is None and inside:
                raise BadList(
                    f"{self._name} has no address in {plain(texts[position])}",
                    _advice(inside, len(sample)),
                    "column",
                )
        return texts[position]


def _is_text(values: Sequence[object]) -> bool:
    several = any(isinstance(value, dict | list) for value in values)
    said = [value for value in values if value is not None]
    return not several and (not said or any(isinstance(value, str) for value in said))


def reach(fields: object, path: Path) -> object:
    """Return the value at a path; None if there is none."""
    for step in path:
        match fields:
            case dict():
                fields = fields.get(step)
            case list() if step.isascii() and step.isdigit() and int(step[:9]) < len(fields):
                fields = fields[int(step[:9])]
            case _:
                return None
    return fields


def _paths_to_addresses(*sample: dict[str, object]) -> list[str]:
    """Return paths to nested addresses in the first lines, in --column's syntax."""
    found: dict[str, None] = {}
    for fields in sample[:NESTED_SAMPLE]:
        waiting: list[tuple[str, object, int]] = [
            (name, value, 1) for name, value in fields.items()
        ]
        while waiting and len(found) < PATHS_MAX:
            path, value, depth = waiting.pop()
            match value:
                case str() if depth > 1 and has_address(value):
                    found[path] = None
                case dict() if depth < DEPTH_MAX:
                    waiting += [
                        (f"{path}.{name}", inner, depth + 1) for name, inner in value.items()
                    ]
                case [first, *_] if depth < DEPTH_MAX:
                    waiting.append((f"{path}.0", first, depth + 1))
    return list(found)


def _advice(paths: Sequence[str], rows: int) -> str:
    if not paths:
        return "; name the field with --column, such as contact.email"
    wrapped = next((path.partition(".0.")[0] for path in paths if ".0." in path), "")
    if wrapped and rows == 1:
        return f"; make each item of {plain(wrapped)} a line (jq -c '.{plain(wrapped)}[]')"
    return f"; name one inside another with --column ({', '.join(map(plain, paths))})"
