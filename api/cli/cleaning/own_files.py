"""Output files that are written more than once: a file that a person has changed is never replaced.

Between two passes the output may be opened, edited, moved or removed. A file that is still as
this run, or the run that it continues, has written it is replaced by the newer one. One that
was removed or moved away is written again. One that was changed stays, and the newer one is
written beside it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ...errors import print_error
from ...listfile.journal import Journal, Stamp
from ...listfile.replacing import replacing
from ...terminal import plain


@contextmanager
def replacing_own(
    path: Path, journal: Journal, *, may_replace: bool
) -> Iterator[tuple[BinaryIO, Path]]:
    """Open an output, and say which: the one that is named, or the one beside it.

    Like `replacing`, which refuses a file that appeared before this journal's first output;
    `may_replace` is for such a file.
    """
    changed = journal.written and os.path.lexists(path) and not _is_own(path, journal)
    if changed and not may_replace:
        beside = path.with_name(f"{path.stem}.refreshed{path.suffix}")
        print_error(
            f"{plain(str(path))} was changed meanwhile and is kept; "
            f"what is known now is written to {plain(str(beside))}"
        )
        path = beside
    with replacing(path, may_replace=may_replace or _is_own(path, journal)) as file:
        yield file, path
        file.flush()
        journal.record_written(_stamp(os.fstat(file.fileno())))


def _is_own(path: Path, journal: Journal) -> bool:
    try:
        return _stamp(os.lstat(path)) in journal.written
    except OSError:
        return False


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
