"""List files: a table, a sheet, objects or plain lines, read row by row and written back.

    with open_list(Path("list.csv"), column=None) as addresses:
        for row in addresses.rows():
            print(row.address)

`survey` looks at a file's bytes and `encodings` tells what text they are, `dialect` how
its cells are separated and quoted. `tables`, `sheets` and `objects` read its rows,
`columns` finds the one with the addresses, `writing` writes rows with what was found out.
"""

from mailprobe.api.cli.listfile.opening import (
    List,
    ListRow,
    OutputFormat,
    ReadOptions,
    open_list,
    temporary_file,
)
from mailprobe.api.cli.listfile.survey import BadList, known_encoding
from mailprobe.api.cli.listfile.writer import (
    CannotWrite,
    check_fits_sheet,
    check_header,
    open_writer,
    output_manner,
    replacing,
    writing_to,
)

__all__ = [
    "BadList",
    "CannotWrite",
    "List",
    "ListRow",
    "OutputFormat",
    "ReadOptions",
    "check_fits_sheet",
    "check_header",
    "known_encoding",
    "open_list",
    "open_writer",
    "output_manner",
    "replacing",
    "temporary_file",
    "writing_to",
]
