"""Finds mails: in an mbox, a file of one mail (.eml), or a folder of these, such as a Maildir."""

import mailbox
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MBOX = b"From "
MESSAGE_OCTETS_MAX = 1 << 20  # a report is short; what it returns of our message is not read
BEGIN_OCTETS = 4_096
ONE_MAIL = ".eml"
# A file that begins with a header which no list has as its only column.
HEADER = re.compile(
    rb"(?:Return-Path|Received|Delivered-To|Envelope-To|X-[\w-]+|ARC-[\w-]+|DKIM-Signature|Date|"
    rb"Message-ID|MIME-Version|Authentication-Results|Content-Type|From|To|Subject):[ \t\r]",
    re.IGNORECASE,
)


def is_mail(path: Path) -> bool:
    """Whether a file is an mbox or a mail. Raises OSError."""
    with _regular(path) as file:
        begin = file.read(BEGIN_OCTETS)
    return begin.startswith(MBOX) or path.suffix.lower() == ONE_MAIL or _begins_with_header(begin)


def mails_of(path: Path) -> Iterator[bytes]:
    """The mails of a file, without what is behind their first octets. Raises OSError."""
    with _regular(path) as file:
        if file.read(len(MBOX)) != MBOX:
            file.seek(0)
            yield file.read(MESSAGE_OCTETS_MAX)
            return
    box = mailbox.mbox(path, create=False)
    try:
        for key in box.iterkeys():
            with box.get_file(key) as message:
                yield message.read(MESSAGE_OCTETS_MAX)
    finally:
        box.close()


def files_of(folder: Path) -> Iterator[Path]:
    """The regular files of a folder and those below it, without what is being delivered."""
    for directory, folders, names in os.walk(folder):
        if {"cur", "new"} <= set(folders):
            folders[:] = [name for name in folders if name != "tmp"]
        folders.sort()
        for name in sorted(names):
            path = Path(directory) / name
            if not name.startswith(".") and stat.S_ISREG(path.lstat().st_mode):
                yield path


def _begins_with_header(begin: bytes) -> bool:
    """Two header lines at least: one alone may be a line of a list."""
    lines = begin.lstrip(b"\xef\xbb\xbf").splitlines()
    headers = [line for line in lines[:20] if HEADER.match(line)]
    return bool(lines) and HEADER.match(lines[0]) is not None and len(headers) > 1


def _regular(path: Path) -> BinaryIO:
    """Open a regular file; opening a pipe would block."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "it is not a regular file")
    return file
