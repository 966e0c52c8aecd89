"""Reads and writes the list of `mailprobe clean`, in the reader process.

The list stays open between the two readings: what the first has learned, such as the
columns, is needed to write.
"""

import os
import socket
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct, field

from ..errors import CommandError, Misuse
from ..listfile.journal import Journal
from ..listfile.opening import List, ListFile, ListRow, OutputFormat, read_list
from ..listfile.results import ResultColumns, RowAnswer, answer_of, best_of
from ..listfile.selection import Selection, mailbox_of
from ..listfile.writer import Write, check_fits_sheet, check_header, open_writer, output_manner
from ..results.row_result import RowResult
from .bounds import allow_cpu, own_file_bounds
from .frames import (
    Channel,
    ListRead,
    OutputWritten,
    ReadAddresses,
    Ready,
    RowAddresses,
    WriteRows,
    decode_command,
)
from .reporting import reporting

TEXTS_MAX = 2_000  # of a frame
CHARACTERS_MAX = 1 << 17  # of a frame's texts, of which the last has at most a cell's 32,767
OFFSETS_OCTETS = 1 << 16
NO_ADDRESS = -1  # in the place of an offset


def serve_cleaning(channel: Channel, descriptor: int, order: ReadAddresses) -> None:
    """Send the list's addresses, then write it as often as the starter asks. Raises BadList."""
    with (
        os.fdopen(descriptor, "rb", closefd=False) as file,
        read_list(ListFile(file, order.name, order.ending), order.reading) as source,
    ):
        allow_cpu(own_file_bounds(source.survey.octets).cpu_s)
        path = Path(order.output) if order.output else None
        manner = output_manner(path, source.manner, order.ending)
        _send_addresses(channel, source, manner, each=order.each)
        while (body := channel.receive()) is not None:
            command = decode_command(body)
            assert isinstance(command, WriteRows)
            allow_cpu(own_file_bounds(source.survey.octets, command.rows).cpu_s)
            with reporting(channel, source.name):
                channel.send(OutputWritten(_write(channel, command, source, manner)))


def _send_addresses(channel: Channel, source: List, manner: OutputFormat, *, each: bool) -> None:
    is_workbook = manner.kind == "xlsx"
    if each and is_workbook and source.sheet is not None:
        raise Misuse(
            "--each writes further rows, for which a workbook has no place; name an output that ends in .csv"
        )
    texts: list[str] = []
    more: dict[int, list[str]] = {}
    characters = 0
    for number, row in enumerate(source.rows(), 1):
        if is_workbook:
            check_fits_sheet(row, number, source.name)
        for reading in row.readings:
            addresses = reading.addresses
            if len(addresses) > 1:
                more[len(texts)] = [*addresses[1:]]
                characters += sum(map(len, addresses[1:]))
            text = addresses[0] if addresses else ""
            texts.append(text)
            characters += len(text)
        if len(texts) >= TEXTS_MAX or characters > CHARACTERS_MAX:
            channel.send(RowAddresses(texts, more))
            texts, more, characters = [], {}, 0
    if texts:
        channel.send(RowAddresses(texts, more))
    if is_workbook:
        check_header(source)
    notes = source.content.notes
    channel.send(
        ListRead(
            source.survey.octets,
            source.survey.sha256,
            list(source.remarks()),
            source.verified_columns,
            notes.unwrapped.rows,
            notes.doubtful.rows,
        )
    )


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
        looks, content = command.looks, source.content
        columns = ResultColumns(
            looks.suggest,
            chosen=_chosen(looks.fields, source),
            has_others=bool(content.notes.several.rows) and not looks.each,
            sources=content.sources,
            come_first=looks.come_first,
        )
        with open_writer(output, manner, source, columns, formulas=looks.formulas) as write:
            writing = RowWriting(source, journal, selection, write, each=looks.each)
            writing.write_rows(_offsets(offsets))
        output.flush()
        return writing.written


def _chosen(fields: Sequence[str] | None, source: List) -> Sequence[str] | None:
    """The fields to write; of lines that are nothing but addresses, the address is always one."""
    if fields is None or "email" in fields or source.columns:
        return fields
    return [*fields, "email"]


class RowWriting(Struct):
    """The second reading: writes the rows with their answers. Raises if the list was changed."""

    source: List
    journal: Journal
    selection: Selection
    write: Write
    each: bool  # a row for each address of a cell
    written: int = 0
    _mailboxes: set[str] = field(default_factory=set)

    def write_rows(self, offsets: Iterator[int]) -> None:
        for row in _rows_again(self.source):
            readings = row.readings
            if len(readings) == 1 and len(readings[0].addresses) == 1:
                result = self._result(readings[0].addresses[0], offsets)
                self._write(row, result, (result,))
                continue
            found = [self._found(each.addresses, offsets) for each in readings]
            for cells in self._rows_of(found):
                answer = [answer_of(results) for results in cells]
                self._write(row, answer, [*chain.from_iterable(cells)])
        if next(offsets, None) is not None:
            raise _changed(self.source)

    def _found(self, addresses: Sequence[str], offsets: Iterator[int]) -> Sequence[RowResult]:
        """The results of a cell's addresses."""
        if not addresses:
            if next(offsets, 0) >= 0:
                raise _changed(self.source)
            return ()
        return [self._result(address, offsets) for address in addresses]

    def _result(self, address: str, offsets: Iterator[int]) -> RowResult:
        offset = next(offsets, NO_ADDRESS)
        if offset < 0:
            raise _changed(self.source)
        result = self.journal.answer(offset)
        if result.email != address:
            raise _changed(self.source)
        return result

    def _rows_of(
        self, found: Sequence[Sequence[RowResult]]
    ) -> Iterator[Sequence[Sequence[RowResult]]]:
        """The results of a row's cells, and with `each` those of its further rows."""
        if self.each:
            for place in range(max(1, *map(len, found))):
                yield [results[place : place + 1] for results in found]
        else:
            yield found

    def _write(self, row: ListRow, answer: RowAnswer, results: Sequence[RowResult]) -> None:
        """Write a row, unless it is not selected by its best result or brings no new mailbox."""
        if not self.selection.takes(best_of(results)):
            return
        if self.selection.dedupe and results:
            mailboxes = {mailbox_of(each.email) for each in results}
            if mailboxes <= self._mailboxes:
                return
            self._mailboxes |= mailboxes
        self.write(row, answer)
        self.written += 1


def _offsets(file: BinaryIO) -> Iterator[int]:
    """For each address the offset of its answer in the journal; negative for a cell without one."""
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
