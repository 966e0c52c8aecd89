"""A row of a list as it is stored, for readers too, which import as little as they can."""

import re

import msgspec


class FurtherAddress(msgspec.Struct, frozen=True, array_like=True):
    """A further address of a row: of the same cell, or of another of the chosen columns."""

    column: int  # of those that were chosen, from 0
    place: int  # of the chunk
    number: int  # of the address in that chunk
    address: str | None  # in the row that has it first


class StoredRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of a list: where its address is, and its own cells.

    A row whose first column has no address may have `further` ones all the same.
    """

    place: int | None  # of the chunk
    number: int | None  # of the address in that chunk
    address: str | None
    cells: list[str]
    further: list[FurtherAddress] = []


BLANK = "[null,null,null,"  # how a row without an address begins
FURTHER_END = "]]]"  # how a row with further addresses ends: no other does
BLANK_WITH_FURTHER = re.compile(rf"^{re.escape(BLANK)}.*{FURTHER_END}$", re.MULTILINE)

_encode = msgspec.json.Encoder().encode


def encode_row(row: StoredRow) -> str:
    if row.further:
        return _encode(row).decode() + "\n"
    return _encode((row.place, row.number, row.address, row.cells)).decode() + "\n"


def blank_rows_in(lines: str) -> int:
    """How many of these rows have no address."""
    blank = f"\n{lines}".count(f"\n{BLANK}")
    if f"{FURTHER_END}\n" not in lines:
        return blank
    return blank - len(BLANK_WITH_FURTHER.findall(lines))
