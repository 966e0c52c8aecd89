"""A row of a list as it is stored, for readers too, which import as little as they can.

A line has names, so that a later version may add some. Lines of versions before had none.
"""

import msgspec


def _no_cells() -> list[str]:
    """No default that msgspec omits: a blank row has its cells in its line, too."""
    return []


class StoredRow(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={"place": "p", "number": "n", "address": "a", "cells": "c"},
):
    """A row of a list: where its address is, and its own cells."""

    place: int | None = None  # of the chunk
    number: int | None = None  # of the address in that chunk
    address: str | None = None
    cells: list[str] = msgspec.field(default_factory=_no_cells)


class _PositionalRow(msgspec.Struct, array_like=True):
    """A row as earlier versions wrote it. It never changes."""

    place: int | None
    number: int | None
    address: str | None
    cells: list[str]


BLANK = '{"c":'  # how a row without an address begins

_encode = msgspec.json.Encoder().encode
_named = msgspec.json.Decoder(StoredRow).decode
_positional = msgspec.json.Decoder(_PositionalRow).decode


def encode_row(row: StoredRow) -> str:
    return _encode(row).decode() + "\n"


def decode_row(line: str) -> StoredRow:
    if not line.startswith("["):
        return _named(line)
    row = _positional(line)
    return StoredRow(row.place, row.number, row.address, row.cells)


def starts_of(place: int, numbers: list[int]) -> tuple[str, ...]:
    """How the lines of the rows begin that have these addresses first, in both forms."""
    named = [f'{{"p":{place},"n":{number},"a":"' for number in numbers]
    return (*named, *(f'[{place},{number},"' for number in numbers))
