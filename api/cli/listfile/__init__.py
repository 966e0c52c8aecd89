"""List files: a table, a sheet, objects or plain lines, read row by row and written back.

    with open_list(Path("list.csv"), column=None) as addresses:
        for row in addresses.rows():
            print(row.address)

`survey` inspects a file's bytes and `encodings` finds their encoding; `delimiter` and
`quoting` find its `dialect`. `tables`, `sheets` and `objects` read its rows, `columns`
finds the column of the addresses, `writer` writes rows with their results.
"""

from mailprobe.api.cli.listfile.opening import (
    List,
    ListRow,
    OutputFormat,
    ReadOptions,
    open_list,
    open_list_in,
    temporary_file,
    unpacked_name,
)
from mailprobe.api.cli.listfile.results import ResultColumns
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
from mailprobe.api.cli.output.results import RowResult

__all__ = [
    "BadList",
    "CannotWrite",
    "List",
    "ListRow",
    "OutputFormat",
    "ReadOptions",
    "ResultColumns",
    "RowResult",
    "check_fits_sheet",
    "check_header",
    "known_encoding",
    "open_list",
    "open_list_in",
    "open_writer",
    "output_manner",
    "replacing",
    "temporary_file",
    "unpacked_name",
    "writing_to",
]
