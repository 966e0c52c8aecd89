"""The last octets of a backup: how many octets are before them, and their SHA-256.

SQLite ignores what follows a database's last page, so that a backup stays a file that SQLite reads.
The header's application id tells that these octets belong to the file: a backup that lost them is
refused, and so is one of which any octet has changed.
"""

import hashlib
import os
import re
from pathlib import Path

from ..contract import StoreBroken

# "MPRB" and "MPRO", at octet 68 of the file (https://sqlite.org/fileformat2.html). They differ in
# three bits of one octet, which is written at once.
BACKUP_ID = 0x4D505242
APPLICATION_ID = 0x4D50524F
MAGIC = b"SQLite format 3\0"
ID_AT = 68
TRAILER = "\nmailprobe backup octets={octets:020} sha256={sha256}\n"
TRAILER_OCTETS = len(TRAILER.format(octets=0, sha256="0" * 64))
READ_OCTETS = 1024 * 1024


def is_marked(path: Path) -> bool:
    """Whether the header says that the file is a backup with these octets. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(ID_AT + 4)
    return head.startswith(MAGIC) and head[ID_AT:] == BACKUP_ID.to_bytes(4)


def append_trailer(path: Path) -> None:
    """Append the octets to a file whose header has BACKUP_ID, and which is complete. Raises OSError."""
    octets = path.stat().st_size
    trailer = TRAILER.format(octets=octets, sha256=_sha256(path, octets))
    with path.open("ab") as file:
        file.write(trailer.encode())


def check_trailer(path: Path) -> None:
    """Read all of a marked file. Raises StoreBroken if it is not as it was written, OSError."""
    octets = path.stat().st_size - TRAILER_OCTETS
    with path.open("rb") as file:
        file.seek(max(0, octets))
        trailer = file.read()
    pattern = re.escape(TRAILER).replace(r"\{octets:020\}", r"(\d{20})")
    found = re.fullmatch(pattern.replace(r"\{sha256\}", "([0-9a-f]{64})").encode(), trailer)
    if found is None or int(found[1]) != octets:
        raise StoreBroken(f"{path} is damaged: its end is missing, or is not as it was written")
    if found[2].decode() != _sha256(path, octets):
        raise StoreBroken(f"{path} is damaged: its SHA-256 is not that of the backup")


def remove_mark(path: Path) -> None:
    """Make a database of a marked file that was checked, for SQLite to open. Raises OSError.

    One octet decides: a process that is killed meanwhile leaves a backup or a database.
    """
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), APPLICATION_ID.to_bytes(4), ID_AT)
        os.fsync(file.fileno())
        file.truncate(path.stat().st_size - TRAILER_OCTETS)
        os.fsync(file.fileno())


def _sha256(path: Path, octets: int) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while octets and (piece := file.read(min(octets, READ_OCTETS))):
            found.update(piece)
            octets -= len(piece)
    return found.hexdigest()
