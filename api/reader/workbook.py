"""Makes a workbook of rows that the starter sends, in the reader process.

The rows go to a temporary file first: the types of the columns are known after the last.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from ..listfile.opening import temporary_file
from ..listfile.workbook.new_workbook import CellType, add_types, open_new_workbook
from ..results.counts import ResultCounts
from .frames import (
    HEAD,
    BookEnd,
    BookRows,
    Channel,
    MakeWorkbook,
    OutputWritten,
    decode_command,
)


def make_workbook(channel: Channel, descriptor: int, order: MakeWorkbook) -> None:
    """Make the workbook in the file that was handed over."""
    types: list[CellType] = ["blank"] * order.own
    written = 0
    with temporary_file() as spool, os.fdopen(descriptor, "w+b", closefd=False) as file:
        counts = _received(channel, spool, types)
        if counts is None:
            return  # the starter is gone
        with open_new_workbook(file, order.names, types, counts) as add:
            for part in _spooled(spool):
                for cells, values in part.rows:
                    add(cells, values)
                written += len(part.rows)
        file.flush()
    channel.send(OutputWritten(written))


def _received(channel: Channel, spool: BinaryIO, types: list[CellType]) -> ResultCounts | None:
    """Keep the rows that come, and learn the types; return the counts at their end."""
    while (body := channel.receive()) is not None:
        match decode_command(body):
            case BookRows(rows=rows):
                for cells, _ in rows:
                    add_types(types, cells)
                spool.write(HEAD.pack(len(body)))
                spool.write(body)
            case BookEnd() as end:
                return ResultCounts(
                    statuses=Counter(end.statuses),
                    reasons=Counter(end.reasons),
                    lights=Counter(end.lights),
                )
    return None


def _spooled(spool: BinaryIO) -> Iterator[BookRows]:
    spool.seek(0)
    while head := spool.read(HEAD.size):
        part = decode_command(spool.read(*HEAD.unpack(head)))
        assert isinstance(part, BookRows)
        yield part
