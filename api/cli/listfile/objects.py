"""NDJSON: a JSON object, or a string, on each line.

What an object's line says is never written anew: the result's members are put
behind its own, so that numbers, order and doubled names stay as they were.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from api.cli.listfile.columns import SAMPLE_ROWS, find_column
from api.cli.listfile.survey import BadList, Survey
from api.cli.listfile.text import text_lines, undecodable

COLUMNS_MAX = 1000  # names over all objects: more is data used as names


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """One line; `line` is its text, `fields` what it says (nothing for a string)."""

    address: str
    line: str
    fields: dict[str, Any]
    objects: "Objects"

    def cells(self) -> list[str]:
        return [_cell_text(self.fields.get(column)) for column in self.objects.columns]

    def members(self) -> bytes:
        return self.line.strip().encode() if self.fields else b"{}"


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Objects:
    """A list of objects; `columns` grows with the names met, as a Table's does."""

    def __init__(self, file: BinaryIO, survey: Survey, wanted: str | None, name: str) -> None:
        self.columns: list[str] = []
        self._known: set[str] = set()
        self._file = file
        self._survey = survey
        self._name = name
        self._address = self._find_field(wanted)

    def rows(self) -> Iterator[ObjectRow]:
        """Every line; can be read again and again. BadList names a line that is no JSON."""
        for line, value in self._values():
            match value:
                case dict():
                    self._learn(value)
                    yield ObjectRow(self._address_of(value), line, value, self)
                case str():
                    yield ObjectRow(value.strip(), line, {}, self)
                case _:
                    yield ObjectRow("", line, {}, self)

    def _address_of(self, fields: dict[str, Any]) -> str:
        value = fields.get(self._address)
        return value.strip() if isinstance(value, str) else _cell_text(value)

    def _learn(self, fields: dict[str, Any]) -> None:
        for field in fields:
            if field not in self._known:
                self._known.add(field)
                self.columns.append(field)
        if len(self.columns) > COLUMNS_MAX:
            raise BadList(f"{self._name} has more than {COLUMNS_MAX} different fields")

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Each line with what it says; None for a blank one."""
        number = 0
        try:
            for line in text_lines(self._file, self._survey.encoding):
                number += 1
                yield line, self._read(line, number) if line.strip() else None
        except UnicodeError:
            raise undecodable(self._name, number + 1) from None

    def _read(self, line: str, number: int) -> Any:
        where = f"{self._name}, line {number}"
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            raise BadList(f"{where}: is no JSON; each line takes one object or string") from None
        if isinstance(value, list) and number == 1:
            raise BadList(
                f"{self._name} is a JSON array; make each item a line (jq -c '.[]') and give it "
                "the ending .ndjson"
            )
        if not isinstance(value, dict | str):
            raise BadList(f"{where}: is neither an object nor a string")
        return value

    def _find_field(self, wanted: str | None) -> str:
        """The name of the field with the addresses; "" where all lines are strings."""
        sample: list[dict[str, Any]] = []
        said = False
        for _, value in self._values():
            said = said or value is not None
            if isinstance(value, dict):
                self._learn(value)
                sample.append(value)
            if len(sample) > SAMPLE_ROWS:
                break
        if not said:
            raise BadList(f"{self._name} holds nothing but blank rows")
        if not sample:
            return ""
        rows = [[_cell_text(value.get(column)) for column in self.columns] for value in sample]
        return self.columns[find_column(self.columns, rows, wanted, self._name)]
