"""Reads a list into its rows, in the reader process."""

import os

from ..listfile.bounds import weight_of
from ..listfile.opening import ListFile, read_list
from .bounds import allow_cpu, own_file_bounds
from .frames import Channel, ListedRow, ListedRows, ReadRows, RowsRead

ROWS_MAX = 1_000  # of a frame
WEIGHT_MAX = 1 << 17  # cells and characters of a frame, before its last row of at most 64 KiB


def send_rows(channel: Channel, descriptor: int, order: ReadRows) -> None:
    """Send all rows of a list on one's own machine. Raises BadList."""
    with (
        os.fdopen(descriptor, "rb", closefd=False) as file,
        read_list(ListFile(file, order.name, order.ending), order.reading) as source,
    ):
        allow_cpu(own_file_bounds(source.survey.octets).cpu_s)
        rows: list[ListedRow] = []
        weight = 0
        for row in source.rows():
            addresses = sum(len(each.addresses) for each in row.readings)
            listed = ListedRow(row.address, row.cells(), row.results(), addresses > 1)
            rows.append(listed)
            weight += weight_of(listed.cells) + weight_of([*listed.results.values()])
            if len(rows) == ROWS_MAX or weight > WEIGHT_MAX:
                channel.send(ListedRows(source.columns, rows))
                rows, weight = [], 0
        channel.send(ListedRows(source.columns, rows))
    channel.send(RowsRead())
