"""A row of a list as it is stored, for readers too, which import as little as they can."""

import msgspec


class StoredRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of a list: where its address is, and its own cells."""

    place: int | None  # of the chunk
    number: int | None  # of the address in that chunk
    address: str | None
    cells: list[str]


BLANK = "[null,null,null,"  # how a row without an address begins

_encode = msgspec.json.Encoder().encode


def encode_row(row: StoredRow) -> str:
    return _encode(row).decode() + "\n"
