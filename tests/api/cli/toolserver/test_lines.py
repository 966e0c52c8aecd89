"""Lines of the standard streams."""

import os

import pytest

from mailprobe.api.cli.toolserver.lines import (
    LINE_OCTETS_MAX,
    LineReader,
    LineSplitter,
    LineWriter,
)
from mailprobe.api.errors import CommandError


def test_a_long_line_is_cut_off_and_the_next_one_is_whole():
    splitter = LineSplitter()
    lines = []
    for _ in range(4):
        lines += splitter.feed(b"x" * (LINE_OCTETS_MAX // 2))
    lines += splitter.feed(b"x\nnext\n\nlast")
    assert [len(line) for line in lines] == [LINE_OCTETS_MAX + 1, 4, 0]
    assert (lines[1], splitter.end()) == (b"next", b"last")


async def test_lines_are_read_to_the_end_of_the_input():
    source, end = os.pipe()
    os.write(end, b"one\ntwo\r\nthree")
    os.close(end)
    reader = LineReader(source)
    assert [await reader.receive() for _ in range(4)] == [b"one", b"two\r", b"three", None]
    os.close(source)
    with pytest.raises(CommandError, match="standard input cannot be read"):
        await LineReader(source).receive()


async def test_a_line_is_written_whole():
    source, end = os.pipe()
    await LineWriter(end).send(b"one")
    assert os.read(source, 100) == b"one\n"
    os.close(source)
    with pytest.raises(BrokenPipeError):
        await LineWriter(end).send(b"two")
    os.close(end)
