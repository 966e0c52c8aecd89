"""Reads and writes the list of `mailprobe clean`, in the reader process.

The list stays open between the two readings: what the first has learned, such as the
columns, is needed to write.
"""

import os
import socket
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from mailprobe.api.errors import CommandError, Misuse
from mailprobe.api.listfile import (
    List,
    ListFile,
    ListRow,
    OutputFormat,
    ResultColumns,
    check_fits_sheet,
    check_header,
    open_writer,
    output_manner,
    read_list,
)
from mailprobe.api.listfile.journal import Journal
from mailprobe.api.listfile.selection import Selection, mailbox_of
from mailprobe.api.reader.bounds import allow_cpu, own_file_bounds
from mailprobe.api.reader.frames import (
    Channel,
    ListRead,
    OutputWritten,
    ReadAddresses,
    Ready,
    RowAddresses,
    WriteRows,
    decode_command,
)
from mailprobe.api.reader.reporting import reporting

TEXTS_MAX = 2_000  # of a frame
CHARACTERS_MAX = 1 << 17  # of a frame's texts, of which the last has at most a cell's 32,767
OFFSETS_OCTETS = 1 << 16


def serve_cleaning(channel: Channel, descriptor: int, order: ReadAddresses) -> None:
    """Send the list's addresses, then write it as often as the starter asks. Raises BadList."""
    with (
        os.fdopen(descriptor, "rb", closefd=False) as file,
        read_list(ListFile(file, order.name, order.ending), order.reading) as source,
    ):
        allow_cpu(own_file_bounds(source.survey.octets).cpu_s)
        manner = output_manner(Path(order.output) if order.output else None, source.manner)
        _send_addresses(channel, source, manner)
        while (body := channel.receive()) is not None:
            command = decode_command(body)
            assert isinstance(command, WriteRows)
            allow_cpu(own_file_bounds(source.survey.octets, command.rows).cpu_s)
            with reporting(channel, source.name):
                channel.send(OutputWritten(_write(channel, command, source, manner)))


def _send_addresses(channel: Channel, source: List, manner: OutputFormat) -> None:
    texts: list[str] = []
    characters = 0
    for number, row in enumerate(source.rows(), 1):
        if manner.kind == "xlsx":
            check_fits_sheet(row, number, source.name)
        texts.append(row.address)
        characters += len(row.address)
        if len(texts) == TEXTS_MAX or characters > CHARACTERS_MAX:
            channel.send(RowAddresses(texts))
            texts, characters = [], 0
    if texts:
        channel.send(RowAddresses(texts))
    if manner.kind == "xlsx":
        check_header(source)
    channel.send(ListRead(source.survey.octets, source.survey.sha256, list(source.remarks())))


def _write(channel: Channel, command: WriteRows, source: List, manner: OutputFormat) -> int:
    """Write the rows into the file that comes along. Raises CommandError, OSError."""
    output_at, journal_at, offsets_at = _received_files(channel)
    with (
        os.fdopen(output_at, "wb") as output,
        os.fdopen(journal_at, "rb"),
        os.fdopen(offsets_at, "rb") as offsets,
    ):
        journal = Journal(journal_at, command.journal, 0)
        lights = None if command.lights is None else frozenset(command.lights)
        selection = Selection(lights, command.has_blank, command.dedupe)  # type: ignore[arg-type]
        columns = ResultColumns(command.suggest)
        return _write_rows(output, source, manner, columns, selection, journal, _offsets(offsets))


def _write_rows(
    file: BinaryIO,
    source: List,
    manner: OutputFormat,
    columns: ResultColumns,
    selection: Selection,
    journal: Journal,
    offsets: Iterator[int],
) -> int:
    """The second reading: write the rows with their answers. Raises if the list was changed."""
    written = 0
    mailboxes: set[str] = set()
    with journal.reading() as answers, open_writer(file, manner, source, columns) as write:
        for row in _rows_again(source):
            offset = next(offsets, None)
            if offset is None or bool(row.address) != (offset >= 0):
                raise _changed(source)
            result = answers.answer(offset) if offset >= 0 else None
            if result is not None:
                if result.email != row.address:
                    raise _changed(source)
                if selection.dedupe:
                    mailbox = mailbox_of(row.address)
                    if mailbox in mailboxes:
                        continue
                    mailboxes.add(mailbox)
            if selection.takes(result):
                write(row, result)
                written += 1
        if next(offsets, None) is not None:
            raise _changed(source)
    file.flush()
    return written


def _offsets(file: BinaryIO) -> Iterator[int]:
    """For each row the offset of its answer in the journal; negative without an address."""
    file.seek(0)
    while octets := file.read(OFFSETS_OCTETS):
        yield from array("q", octets)


def _received_files(channel: Channel) -> Sequence[int]:
    """The open files that belong to a command."""
    channel.send(Ready())
    with socket.socket(fileno=os.dup(channel.descriptor)) as connection:
        _, files, _, _ = socket.recv_fds(connection, 1, 3)
    return files


def _rows_again(source: List) -> Iterator[ListRow]:
    """The rows of a list that was read before: any error means that it was changed.

    A complete reading that differs in size or fingerprint raises Changed.
    """
    try:
        yield from source.rows()
    except (Misuse, UnicodeError, ValueError, EOFError, StopIteration, OSError) as error:
        raise _changed(source) from error


def _changed(source: List) -> CommandError:
    return CommandError(f"{source.name} was changed while it was cleaned; clean it again")
