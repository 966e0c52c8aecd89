"""A file's text, line by line, read as often as is wanted."""

import io
from collections.abc import Iterator
from typing import BinaryIO

from api.cli.listfile.survey import BadList


def text_lines(file: BinaryIO, encoding: str) -> Iterator[str]:
    """The lines from the beginning, line ends as they are; the file stays open."""
    file.seek(0)
    text = io.TextIOWrapper(file, encoding, newline="")
    try:
        # `yield from` would close the text, and the file with it, when reading stops early.
        for line in text:  # noqa: UP028
            yield line
    finally:
        if not file.closed:  # as it is where an error keeps this reading alive
            text.detach()


def undecodable(name: str, line: int) -> BadList:
    return BadList(f"{name}, line {line} or soon after, cannot be decoded; save it as UTF-8")
