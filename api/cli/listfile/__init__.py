"""List files: a table, a sheet, objects or plain lines, read row by row and written back.

    with open_list(Path("list.csv"), column=None) as addresses:
        for row in addresses.rows():
            print(row.address)

`survey` looks at a file's bytes, `tables` and `objects` read its rows, `columns`
finds the one with the addresses, `writing` writes rows with what was found out.
"""

from api.cli.listfile.opening import List, Manner, Row, open_list
from api.cli.listfile.survey import BadList
from api.cli.listfile.writing import (
    CannotWrite,
    check_fits_sheet,
    open_writer,
    output_manner,
    replacing,
    writing_to,
)

__all__ = [
    "BadList",
    "CannotWrite",
    "List",
    "Manner",
    "Row",
    "check_fits_sheet",
    "open_list",
    "open_writer",
    "output_manner",
    "replacing",
    "writing_to",
]
