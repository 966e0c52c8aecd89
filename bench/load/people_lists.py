"""Cleans cells and files as people have them against the lab, and counts what comes out wrong."""

import csv
import io
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.cli.source import AnswerSource, open_own_engine
from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.opening import ReadOptions
from mailprobe.api.settings import Settings

from ..harness.figures import Figure
from ..lab.people_cells import ANN, cells
from ..lab.people_files import files

FIELDS = ("email", "light", "suggestion")
RED, YELLOW = "RED_LIGHT", "YELLOW_LIGHT"
REMARKS_MAX = 10


class PeopleLists:
    """Cleans lists in a folder, by an engine with these settings."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._engine = settings.engine
        self._folder = folder
        self.wrong: list[str] = []

    def cleaned(
        self, file: str, octets: bytes, reading: ReadOptions
    ) -> list[dict[str, str]] | None:
        """The rows of the output, with their fields; None if the list is refused."""
        source, output = self._folder / file, self._folder / "out.ndjson"
        source.write_bytes(octets)

        def open_source() -> AbstractAsyncContextManager[AnswerSource]:
            return open_own_engine(self._engine, {})

        order = Order(source, output, reading, force=True, fields=FIELDS)
        try:
            clean_list(order, open_source, standard_output=io.BytesIO())
        except CommandError as refusal:
            if refusal.exit_code != 2:
                raise
            return None
        lines = output.read_text("utf-8").splitlines()
        return [_result_of(json.loads(line)) for line in lines]


def _result_of(row: dict[str, str | None]) -> dict[str, str]:
    """The result's fields, whatever their names became: they stand last, and the light's ends so."""
    light = max(place for place, name in enumerate(row) if name.endswith("light"))
    values = [value or "" for value in row.values()]
    return dict(zip(FIELDS, values[light - 1 :], strict=False))


def measure_people(settings: Settings, folder: Path) -> list[Figure]:
    lists = PeopleLists(settings, folder)
    figures = [*_of_cells(lists), *_of_files(lists)]
    for words in lists.wrong[:REMARKS_MAX]:
        print(f"# {words}")
    return figures


def _of_cells(lists: PeopleLists) -> list[Figure]:
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(("n", "email"))
    every = list(cells())
    writer.writerows((number, cell.text) for number, cell in enumerate(every))
    rows = lists.cleaned("cells.csv", table.getvalue().encode(), ReadOptions(column="email"))
    assert rows is not None
    red = otherwise = 0
    for cell, row in zip(every, rows, strict=True):
        lives = ANN in cell.addresses
        red += lives and row["light"] == RED
        is_right = {
            "none": row["light"] == "",
            "doubtful": (row["light"], row["suggestion"]) == (YELLOW, ANN),
            "bad": row["light"] == RED,
        }.get(cell.kind, row["email"] in cell.addresses)
        if not is_right:
            otherwise += 1
            lists.wrong.append(f"{cell.text!r}: {row}")
    return [
        Figure("people: living addresses that are red by their cell", red, f"of {len(every)}"),
        Figure("people: cells read otherwise than they are meant", otherwise, f"of {len(every)}"),
    ]


def _of_files(lists: PeopleLists) -> list[Figure]:
    red = otherwise = all_red = 0
    every = list(files())
    for each in every:
        rows = lists.cleaned(each.file, each.octets, ReadOptions())
        if not _is_right(rows, each.addresses):
            otherwise += 1
            lists.wrong.append(f"{each.name}: {rows}")
        for row in rows or ():
            red += row["email"] == ANN and row["light"] == RED
        all_red += bool(rows) and all(row["light"] in (RED, "") for row in rows or ())
    return [
        Figure(
            "people: living addresses that are red by their file", red, f"of {len(every)} files"
        ),
        Figure("people: lists that are red throughout", all_red, f"of {len(every)}"),
        Figure("people: files read otherwise than they are meant", otherwise, f"of {len(every)}"),
    ]


def _is_right(rows: Sequence[dict[str, str]] | None, addresses: Sequence[str] | None) -> bool:
    if rows is None or addresses is None:
        return rows is None and addresses is None
    return [row["email"] for row in rows] == [*addresses]
