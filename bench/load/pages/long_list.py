"""Makes a list of any length of one that was verified: its chunks again and again, in the database.

Verifying a million rows takes minutes, and a page reads only what is stored.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

_PLACE = re.compile(r"^\[(\d+),", re.MULTILINE)  # where a row has its address


def lengthen(database: Path, list_id: str, times: int) -> int:
    """Repeat what a list has, and return how many rows it has then. The service may run."""
    with closing(sqlite3.connect(database)) as db, db:
        number, rows = db.execute(
            "SELECT number, rows FROM lists WHERE id = ?", (list_id,)
        ).fetchone()
        ((places,),) = db.execute(
            "SELECT max(place) + 1 FROM list_chunks WHERE list = ?", (number,)
        )
        for table in ("list_chunks", "list_lines", "list_marks"):
            found = db.execute(f"SELECT * FROM {table} WHERE list = ? AND place >= 0", (number,))
            names = [each[0] for each in found.description]
            chunks = found.fetchall()
            takes = f"INSERT INTO {table} VALUES ({','.join('?' * len(names))})"
            for n in range(1, times):
                db.executemany(takes, (_moved(each, names, n * places) for each in chunks))
        counts = db.execute("SELECT counts FROM lists WHERE id = ?", (list_id,)).fetchone()[0]
        counted = re.sub(r"\d+", lambda count: str(int(count[0]) * times), counts)
        db.execute(
            "UPDATE lists SET rows = rows * ?, addresses = addresses * ?, answered = answered * ?,"
            " counts = ? WHERE id = ?",
            (times, times, times, counted, list_id),
        )
    return int(rows) * times


def _moved(chunk: tuple[object, ...], names: list[str], places: int) -> list[object]:
    values = dict(zip(names, chunk, strict=True))
    values["place"] = int(str(values["place"])) + places
    if "rows" in values:
        values["rows"] = _PLACE.sub(lambda at: f"[{int(at[1]) + places},", str(values["rows"]))
    return [*values.values()]
