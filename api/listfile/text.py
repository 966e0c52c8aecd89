"""A file's text, line by line; repeated readings are checked to be equal.

Each complete reading is fingerprinted: a file that was changed since the survey raises
Changed at its end, so that no row is lost or repeated silently.
"""

import hashlib
import io
from collections.abc import Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, BinaryIO

from .bounds import ROW_CHARACTERS_MAX
from .survey import (
    END_MARK,
    BadList,
    Changed,
    Survey,
    TooManyLines,
    unquoted_line,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

READ_OCTETS = 1 << 18


class Watched(io.RawIOBase):
    """A file read from its beginning, with its bytes counted and hashed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._octets = 0
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(self._octets)  # other readers share the file's position
        octets = self._file.read(len(view))
        view[: len(octets)] = octets
        self._octets += len(octets)
        self._digest.update(octets)
        return len(octets)

    def check(self, survey: Survey, name: str) -> None:
        """Raise Changed if the bytes differ from the survey's; call it at the end of the file."""
        if (self._octets, self._digest.hexdigest()) != (survey.octets, survey.sha256):
            raise changed(name)


def changed(name: str) -> Changed:
    return Changed(f"{name} was changed while it was read; clean it again when nothing writes it")


def text_lines(
    file: BinaryIO, survey: Survey, name: str, characters_max: int = ROW_CHARACTERS_MAX
) -> Iterator[str]:
    """Yield the lines from the beginning with their own line ends; the file stays open.

    Raises BadList for a line that is too long or cannot be decoded, and Changed.
    """
    watched = Watched(file)
    text = io.TextIOWrapper(
        io.BufferedReader(watched, READ_OCTETS), survey.encoding, survey.errors, newline=""
    )
    number, most = 0, inf if survey.lines_max is None else survey.lines_max
    try:
        for line in iter(partial(text.readline, characters_max), ""):
            number += 1
            if number > most:
                raise TooManyLines(name, int(most))
            if len(line) == characters_max and not line.endswith(("\n", "\r")):
                raise BadList(
                    f"{name}, line {number}: is longer than {characters_max:,} characters; "
                    "put that right first"
                )
            if line[-1] == END_MARK and not (line := line.rstrip(END_MARK)):
                continue
            yield unquoted_line(line) if survey.quoted_lines else line
        watched.check(survey, name)
    except UnicodeError:
        while watched.read(READ_OCTETS):  # a changed file is the more likely reason
            pass
        watched.check(survey, name)
        raise undecodable(name, number + 1, survey.encoding) from None


def undecodable(name: str, line: int, encoding: str) -> BadList:
    return BadList(
        f"{name}, line {line} or soon after, cannot be decoded as {encoding}; save it as UTF-8",
        ", or name its encoding with --encoding",
        "encoding",
    )
