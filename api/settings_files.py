"""Reads the files that settings name: whole, at most FILE_OCTETS_MAX, never blocking on a FIFO.

All functions raise Unreadable, whose message says why the file can't be used; the caller
adds the setting's name and value.
"""

import os
import stat
from pathlib import Path

FILE_OCTETS_MAX = 4 * 1024 * 1024  # a bundle of all public certificate authorities has 250 KB


class Unreadable(ValueError):
    """A file that can't be used; `missing` where there is none."""

    def __init__(self, words: str, *, missing: bool = False) -> None:
        super().__init__(words)
        self.missing = missing


def read_octets(path: Path) -> bytes:
    """Return the content of a regular file or /dev/null. FIFOs and devices are refused."""
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            status = os.fstat(file.fileno())
            nothing = os.path.samestat(status, os.stat(os.devnull))  # stands for no file
            if not stat.S_ISREG(status.st_mode) and not nothing:
                raise Unreadable("cannot be read: it is not a regular file")
            octets = file.read(FILE_OCTETS_MAX + 1)
    except FileNotFoundError as error:
        raise Unreadable(f"cannot be read: {error.strerror}", missing=True) from None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # a NUL or a lone surrogate in its name
        if isinstance(error, Unreadable):
            raise
        raise Unreadable("cannot be read: no file can have this name") from None
    if len(octets) > FILE_OCTETS_MAX:
        raise Unreadable(f"cannot be read: it has more than {FILE_OCTETS_MAX >> 20} MiB")
    return octets


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without waiting for a FIFO's writer; no difference for regular files."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def read_text(path: Path) -> str:
    """The content of a file in UTF-8."""
    try:
        return read_octets(path).decode("utf-8")
    except UnicodeDecodeError:
        raise Unreadable("cannot be read: it is not in UTF-8") from None


def read_toml(path: Path) -> dict[str, object]:
    """The content of a TOML file."""
    import tomllib  # most runs have no file

    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise Unreadable(f"is not TOML: {error}") from None
    except RecursionError:
        raise Unreadable("is not TOML: it is nested too deeply") from None


def check_authorities(path: Path) -> None:
    """Raise Unreadable unless TLS can load the file's certificates as authorities."""
    if b"-----BEGIN CERTIFICATE-----" not in read_octets(path):
        raise Unreadable("holds no PEM certificate")
    import ssl  # most runs name no authority

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError):
        raise Unreadable("holds no PEM certificate that can be used") from None
