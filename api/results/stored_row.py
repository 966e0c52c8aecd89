"""A row of a list as it is stored, for readers too, which import as little as they can.

A line has names, so that a later version may add some. Lines of versions before had none.
"""

import re

import msgspec


class FurtherAddress(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={"column": "i", "place": "p", "number": "n", "address": "a"},
):
    """A further address of a row: of the same cell, or of another of the chosen columns."""

    column: int  # of those that were chosen, from 0
    place: int  # of the chunk
    number: int  # of the address in that chunk
    address: str | None = None  # in the row that has it first


def _no_cells() -> list[str]:
    """No default that msgspec omits: a blank row has its cells in its line, too."""
    return []


class StoredRow(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={"place": "p", "number": "n", "address": "a", "cells": "c", "further": "f"},
):
    """A row of a list: where its address is, and its own cells.

    A row whose first column has no address may have `further` ones all the same.
    """

    place: int | None = None  # of the chunk
    number: int | None = None  # of the address in that chunk
    address: str | None = None
    cells: list[str] = msgspec.field(default_factory=_no_cells)
    further: list[FurtherAddress] = []


BLANK = '{"c":'  # how a row without an address of its own begins
FURTHER = (
    '"f":['  # in each row with further addresses, and in no other: a cell's quotes are escaped
)
BLANK_WITH_FURTHER = re.compile(f"^{re.escape(BLANK)}.*{re.escape(FURTHER)}", re.MULTILINE)

_encode = msgspec.json.Encoder().encode
_named = msgspec.json.Decoder(StoredRow).decode
# The place, number, address and cells of a row as earlier versions wrote it. It never changes.
_positional = msgspec.json.Decoder(tuple[int | None, int | None, str | None, list[str]]).decode


def encode_row(row: StoredRow) -> str:
    return _encode(row).decode() + "\n"


def blank_rows_in(lines: str) -> int:
    """How many of these rows, which `encode_row` made, have no address."""
    blank = f"\n{lines}".count(f"\n{BLANK}")
    if FURTHER not in lines:
        return blank
    return blank - len(BLANK_WITH_FURTHER.findall(lines))


def decode_row(line: str) -> StoredRow:
    if not line.startswith("["):
        return _named(line)
    return StoredRow(*_positional(line))


def starts_of(place: int, numbers: list[int]) -> tuple[str, ...]:
    """How the lines of the rows begin that have these addresses first, in both forms."""
    named = [f'{{"p":{place},"n":{number},"a":"' for number in numbers]
    return (*named, *(f'[{place},{number},"' for number in numbers))
