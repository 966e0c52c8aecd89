"""Reads the files that settings name: whole, bounded, and never waiting for a writer.

All raise Unreadable, whose message says in a few words why the file can't be
used; the caller names the setting and its value.
"""

import os
import stat
from pathlib import Path
from typing import Any

FILE_OCTETS_MAX = 4 * 1024 * 1024  # a bundle of all authorities of the web has 250 KB


class Unreadable(ValueError):
    """A file that can't be used; `missing` where there is none."""

    def __init__(self, words: str, *, missing: bool = False) -> None:
        super().__init__(words)
        self.missing = missing


def read_octets(path: Path) -> bytes:
    """The content of a regular file. A FIFO or a device is refused, not waited for."""
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            status = os.fstat(file.fileno())
            nothing = os.path.samestat(status, os.stat(os.devnull))  # a way to say: no file
            if not stat.S_ISREG(status.st_mode) and not nothing:
                raise Unreadable("cannot be read: it is no regular file")
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
    """Opening a FIFO would wait for its writer otherwise; regular files don't care."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    import tomllib  # most runs have no file

    try:
        return tomllib.loads(read_octets(path).decode("utf-8"))
    except UnicodeDecodeError:
        raise Unreadable("cannot be read: it is not in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise Unreadable(f"is no TOML: {error}") from None
    except RecursionError:
        raise Unreadable("is no TOML: it is nested too deeply") from None


def check_authorities(path: Path) -> None:
    """Does the file hold certificates that TLS can take as its authorities?"""
    if b"-----BEGIN CERTIFICATE-----" not in read_octets(path):
        raise Unreadable("holds no PEM certificate")
    import ssl  # most runs name no authority

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError):
        raise Unreadable("holds no PEM certificate that can be used") from None
