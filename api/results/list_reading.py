"""The reading of a list's cells: stored with the list as a line of JSON, for its report."""

import msgspec


class ListReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns of the addresses, and the rows whose cells were read otherwise than they stand."""

    columns: list[str] = []  # for people; none: each line is an address
    positions: list[int] = []  # of these columns, from 0
    sources: list[str] = []  # their names, where the results have them
    proposed: list[str] = []  # further columns of addresses
    unwrapped: int = 0  # rows in which something stood around the address
    doubtful: int = 0  # rows whose address is suggested, and was not verified
    several: int = 0  # rows with several addresses in one cell
    encoding: str = ""  # of a text that was read as it is
    delimiter: str = ""  # of its cells; none: each line is one
    sheet: str = ""  # of a workbook: the title of the one that was read
    sheets: list[str] = []  # its visible ones, as far as they are shown


_decode = msgspec.json.Decoder(ListReading).decode


def encode_reading(reading: ListReading) -> str:
    return msgspec.json.encode(reading).decode()


def decode_reading(stored: str | None) -> ListReading | None:
    """None for a list that an earlier version has read."""
    return None if stored is None else _decode(stored)
