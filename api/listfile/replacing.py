"""Output files that appear only once they are complete."""

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..errors import CommandError
from ..terminal import plain

PART_NAME_OCTETS_MAX = 180  # of the output's name, as part of the temporary file's name


class CannotWrite(CommandError):
    """Writing failed, such as on a full disk; earlier output is kept."""


@contextmanager
def replacing(path: Path, *, may_replace: bool = True) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only once it is complete on disk.

    It is written under a new name in the same folder, so no existing file is opened. It
    keeps the permissions of a file that it replaces. Leftovers of a killed run for the
    same output are removed first. Raises CannotWrite if a file has appeared under its name
    that it may not replace.
    """
    with _replacing(path, _mode_for, may_replace) as (_, file):
        yield file


@contextmanager
def replacing_by_name(path: Path, *, may_replace: bool) -> Iterator[Path]:
    """Like `replacing()`, for what opens files itself: an empty file, for its owner alone."""
    with _replacing(path, lambda _: 0o600, may_replace) as (part, _):
        yield part


@contextmanager
def _replacing(
    path: Path, mode_for: Callable[[Path], int], may_replace: bool
) -> Iterator[tuple[Path, BinaryIO]]:
    with writing_to(plain(str(path))):
        mode = mode_for(path)
        _remove_leftovers(path)
        part, file = _fresh_file(path)
        try:
            with file:
                yield part, file
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                if not may_replace and os.path.lexists(path):
                    raise CannotWrite(f"{plain(str(path))} appeared meanwhile; it is kept")
                part.replace(path)  # while it is still open and therefore locked
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _part_stem(path: Path) -> str:
    """Return the start of the temporary file's name for an output; long names are cut."""
    octets, name = os.fsencode(path.name), path.name
    if len(octets) > PART_NAME_OCTETS_MAX:
        begin = octets[:PART_NAME_OCTETS_MAX].decode("utf-8", "ignore")
        name = begin + hashlib.sha256(octets).hexdigest()[:16]
    return f".{name}.mailprobe-"


def _fresh_file(path: Path) -> tuple[Path, BinaryIO]:
    """Create a file beside the output under an unused name; it is locked while open.

    Only this user may read it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        part = path.with_name(f"{_part_stem(path)}{secrets.token_hex(8)}.part")
        with suppress(FileExistsError):
            file = os.fdopen(os.open(part, flags, 0o600), "wb")
            if _lock(file.fileno(), part) is not False:
                return part, file
            file.close()  # another run removed it as a leftover before it was locked


def _remove_leftovers(path: Path) -> None:
    """Remove the files that a killed run left for the same output.

    Only files whose whole name matches ours and that no process has locked.
    """
    ours = re.compile(re.escape(_part_stem(path)) + r"[0-9a-f]{16}\.part")
    with suppress(OSError), os.scandir(path.parent) as entries:
        for name in [entry.name for entry in entries if ours.fullmatch(entry.name)]:
            with suppress(OSError):
                _remove_leftover(path.with_name(name))


def _remove_leftover(part: Path) -> None:
    descriptor = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if own and status.st_nlink == 1 and _lock(descriptor, part):
            part.unlink()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> bool | None:
    """Lock a file; False if it is locked or renamed, None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        return None


def _mode_for(path: Path) -> int:
    """Return the permissions of the file to replace, or else those that the umask allows."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except FileNotFoundError:
        umask = os.umask(0o077)
        os.umask(umask)
        return 0o666 & ~umask


def sync_folder(folder: Path) -> None:
    """Sync the folder's names to disk, if possible, against a power failure."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def writing_to(name: str) -> Iterator[None]:
    """Convert OSError into CannotWrite; BrokenPipeError is raised unchanged."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise CannotWrite(f"{name} cannot be written: {reason}") from error
