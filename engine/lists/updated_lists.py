"""The lists that `mailprobe lists update` installed, and when they replace the product's own.

They are in a folder of their own below the operator's folder of lists, or below the
product's. A symbolic link names it, so that one rename replaces all of them. A process
that is killed at any moment leaves the old lists or the new ones.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from .lists import DATA, FILES, VERSION_FILE, version_of

FOLDER = "updated"
LINK = "current"
LOCK = ".lock"
OURS = re.compile(
    r"\d{4}-\d\d-\d\d-[0-9a-f]{8}"
)  # the folders of lists; whatever else is there stays
SHIPPED_FILE = "SHIPPED"  # the version of the product's lists when these were installed


class UpdateRuns(Exception):
    """Another process installs lists in the same folder."""


def current_folder(own_folder: Path | None = None) -> Path:
    """The folder of the lists to load: the updated ones, unless the product has newer ones.

    An operator may have gone back to older lists than the product's. Those are used until a
    later version of the product has newer lists than it had then.
    """
    try:
        folder = (_root(own_folder) / LINK).resolve(strict=True)
        known = max(version_of(folder), (folder / SHIPPED_FILE).read_text("ascii").strip())
    except (OSError, ValueError):  # there is none, or a damaged one
        return DATA
    has_all = all((folder / name).exists() for name in FILES)  # another version knew other files
    return folder if has_all and known >= version_of(DATA) else DATA


def current_version(own_folder: Path | None = None) -> str:
    """The day of the lists that are loaded."""
    return version_of(current_folder(own_folder))


def install(files: Mapping[str, bytes], own_folder: Path | None = None) -> Path:
    """Install the lists and return their folder. Raises OSError and UpdateRuns.

    The folder that was used before stays, because a process may be reading it.
    """
    root = _root(own_folder)
    with suppress(FileExistsError):
        _make(root)
    if root.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "is a symbolic link, and not a folder", str(root))
    with _alone(root):
        link = root / LINK
        former = link.resolve().name
        _remove_all_but(root, former)
        name = f"{files[VERSION_FILE].decode().strip()}-{secrets.token_hex(4)}"
        _write_folder(root / name, {**files, SHIPPED_FILE: f"{version_of(DATA)}\n".encode()})
        beside = root / f".{LINK}"
        beside.unlink(missing_ok=True)  # of a killed process
        beside.symlink_to(name)
        beside.replace(link)
        _sync(root)
        _remove_all_but(root, former, name)
    return root / name


def _root(own_folder: Path | None) -> Path:
    return (own_folder or DATA) / FOLDER


def _make(folder: Path) -> None:
    """Make a folder that all users may read: the service may be another one's."""
    folder.mkdir()
    folder.chmod(0o755)


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    _make(folder)
    for name, content in files.items():
        with (folder / name).open("wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
            file.flush()
            os.fsync(file.fileno())
    _sync(folder)


def _sync(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_all_but(root: Path, *names: str) -> None:
    """Remove former lists, and those that a killed process left."""
    for path in root.iterdir():
        if OURS.fullmatch(path.name) and path.name not in names and not path.is_symlink():
            shutil.rmtree(path)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    with (root / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UpdateRuns from None
        yield
