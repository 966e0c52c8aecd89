"""The first sheet of a workbook."""

import datetime
from collections.abc import Iterator
from typing import Any, BinaryIO

from api.cli.listfile.dialect import RawRecord
from api.cli.listfile.survey import BadList
from api.cli.listfile.tables import Records


def sheet_records(file: BinaryIO, name: str) -> Records:
    """The records of a workbook's first sheet, every cell as text; held in memory."""
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError

    file.seek(0)
    try:
        workbook = CalamineWorkbook.from_object(file)
        sheet = workbook.get_sheet_by_index(0)
    except PasswordError:
        raise BadList(f"{name} is protected by a password; save it without one") from None
    except (CalamineError, OSError, IndexError):
        raise BadList(f"{name} is no XLSX workbook that can be read; save it anew") from None

    def read() -> Iterator[RawRecord]:
        for record in sheet.iter_rows():
            yield [_cell_text(cell) for cell in record], ""

    return Records(name, read)


def _cell_text(cell: Any) -> str:
    """A cell as a person would type it."""
    match cell:
        case str():
            return cell
        case bool():
            return str(cell).lower()
        case float() if cell.is_integer() and abs(cell) < 1e15:
            return str(int(cell))
        case datetime.datetime():
            return cell.isoformat(" ")
        case datetime.date() | datetime.time():
            return cell.isoformat()
        case None:
            return ""
    return str(cell)
