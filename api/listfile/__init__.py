"""List files: a table, a sheet, objects or plain lines, read row by row and written back.

    with open_list(Path("list.csv"), column=None) as addresses:
        for row in addresses.rows():
            print(row.address)

`survey` inspects a file's bytes and `encodings` finds their encoding; `delimiter` and
`quoting` find its `dialect`. `tables`, `sheets` and `objects` read its rows, `columns`
finds the column of the addresses, `writer` writes rows with their results. A name is imported
when it is first used: a process that only passes a file on needs none of the readers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# At once: a module that has the name of one of its functions would take its place here.
from .replacing import CannotWrite, replacing, writing_to

if TYPE_CHECKING:
    from ..results.row_result import RowResult
    from .opening import (
        List,
        ListFile,
        ListRow,
        OutputFormat,
        ReadOptions,
        open_file,
        open_list,
        read_list,
        temporary_file,
        unpacked_name,
    )
    from .results import ResultColumns
    from .survey import BadList, known_encoding
    from .writer import (
        check_fits_sheet,
        check_header,
        open_writer,
        output_manner,
    )
else:
    _MODULES = {
        "mailprobe.api.listfile.opening": (
            *("List", "ListFile", "ListRow", "OutputFormat", "ReadOptions"),
            *("open_file", "open_list", "read_list", "temporary_file", "unpacked_name"),
        ),
        "mailprobe.api.listfile.results": ("ResultColumns",),
        "mailprobe.api.listfile.survey": ("BadList", "known_encoding"),
        "mailprobe.api.listfile.writer": (
            *("check_fits_sheet", "check_header", "open_writer", "output_manner"),
        ),
        "mailprobe.api.results.row_result": ("RowResult",),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value


__all__ = [
    "BadList",
    "CannotWrite",
    "List",
    "ListFile",
    "ListRow",
    "OutputFormat",
    "ReadOptions",
    "ResultColumns",
    "RowResult",
    "check_fits_sheet",
    "check_header",
    "known_encoding",
    "open_file",
    "open_list",
    "open_writer",
    "output_manner",
    "read_list",
    "replacing",
    "temporary_file",
    "unpacked_name",
    "writing_to",
]
