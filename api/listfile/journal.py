"""The journal: answers on disk, so that an interrupted run verifies nothing twice.

    {"mailprobe_journal":2,"octets":5120,"sha256":"9f86…"}
    {"email":"ann@shop.test","valid":true,…,"crc":3421780262}
    …

The first line has the format's version and the fingerprint of the list, then follows a
line for each answer in order of arrival. Each line is written at once and whole: kill -9
loses none and tears at most the last, which is cut off when the journal is reopened. A
line that does not match its checksum (CRC-32 of the text before it) is ignored, and its
address is verified again. A line {"ended_early":true} stands where a run ended because of
this machine or its network. What is sent to a service has a line before it is sent, so that
a later run gets the same answers again and pays for none twice:

    {"key":"9b1c…","emails":["ann@shop.test",…],"crc":…}
    {"list":"2f0e…","crc":…}

So has each output file that is written between two passes or at the end, before it has its
name: a later write replaces it only if it is still the same file.

    {"written":[2049,131,5120,1750000000000000000],"crc":…}

A line stands where a run begins that asks no mail host, and where one goes on that does:

    {"asks_hosts":false,"crc":…}

The file is locked while a run uses it.
"""

import errno
import fcntl
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from ..errors import CommandError, Misuse
from ..results.row_result import RowResult
from ..terminal import plain
from .opening import temporary_file
from .replacing import CannotWrite

VERSION = 2
HEADER_OCTETS_MAX = 1024
ANSWER_OCTETS = 1024  # most answers are shorter
LINE_OCTETS_MAX = 1 << 26  # an address as long as a list's cell, escaped
CHECKSUM = b',"crc":'
EARLY_END = b'{"ended_early":true}\n'
MODE = 0o600  # addresses are personal data: only the owner may read
# Neither a symbolic link nor a pipe under the journal's name is opened.
OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Header(msgspec.Struct, frozen=True):
    """Which list a journal belongs to."""

    mailprobe_journal: int
    octets: int
    sha256: str


class SentRequest(msgspec.Struct, frozen=True):
    """A request to a service, by its Idempotency-Key."""

    key: str
    emails: list[str]


class SentList(msgspec.Struct, frozen=True):
    """A list that a service verifies; `done` once all of its answers are here.

    Without `smtp` the service asks no mail host.
    """

    list: str
    done: bool = False
    smtp: bool = True


# Device, inode, size and time of change (ns): no other file has the same, nor this one once changed.
Stamp = tuple[int, int, int, int]


class WrittenFile(msgspec.Struct, frozen=True):
    """An output file as it was written."""

    written: Stamp


class HostsAsked(msgspec.Struct, frozen=True):
    """Whether mail hosts are asked for the answers that follow; they are without such a line."""

    asks_hosts: bool


Record = RowResult | SentRequest | SentList | WrittenFile | HostsAsked
# By the begin of its line; any other is an answer.
KINDS: dict[bytes, type[Record]] = {
    b'{"key"': SentRequest,
    b'{"list"': SentList,
    b'{"written"': WrittenFile,
    b'{"asks_hosts"': HostsAsked,
}


class Journal:
    """An open journal: answers are appended, and read by their offset in bytes."""

    def __init__(self, descriptor: int, name: str, end: int, *, is_kept: bool = True) -> None:
        self.descriptor = descriptor
        self.name = name
        self.is_kept = is_kept  # a later run can continue it
        self._end = end  # of the last whole line
        self.damaged = 0
        self.early_ends = 0  # runs that ended because of this machine or its network
        # What an earlier run sent to a service that may still have answers to it, in order.
        self.sent: list[SentRequest | SentList] = []
        self.has_sent = False
        self.written: set[Stamp] = set()  # the output files, of this run and earlier ones
        # Of what is appended next, and in answers() of the answer that it yields.
        self.asks_hosts = True

    def append(self, result: RowResult) -> int:
        """Append an answer and return its offset. CannotWrite leaves no torn line."""
        offset = self._end
        self._write_checked(result)
        return offset

    def record_sent(self, sent: SentRequest | SentList) -> None:
        """Record what is about to be sent to a service."""
        self._write_checked(sent)
        self.has_sent = True

    def record_written(self, stamp: Stamp) -> None:
        """Record an output file that is about to get its name."""
        self._write_checked(WrittenFile(stamp))
        self.written.add(stamp)

    def record_hosts_asked(self, asks_hosts: bool) -> None:
        """Record whether mail hosts are asked from now on, where that changes."""
        if asks_hosts != self.asks_hosts:
            self._write_checked(HostsAsked(asks_hosts))
            self.asks_hosts = asks_hosts

    def _write_checked(self, record: Record) -> None:
        line = msgspec.json.encode(record)[:-1]
        self._write(b'%b,"crc":%d}\n' % (line, zlib.crc32(line)))

    def record_early_end(self) -> None:
        """Record that this run ends because of this machine or its network."""
        self._write(EARLY_END)
        self.early_ends += 1

    def _write(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                octets = line[written:]
                written += os.pwrite(self.descriptor, octets, self._end + written)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self.descriptor, self._end)
            reason = os.strerror(error.errno or 0)
            raise CannotWrite(f"{self.name} cannot be written: {reason}") from error
        self._end += len(line)

    def answers(self) -> Iterator[tuple[int, RowResult]]:
        """Every stored answer with its offset; reads all else that is recorded anew."""
        self.damaged = self.early_ends = 0
        self.asks_hosts = True
        open_sent = _OpenSent()
        with open(self.descriptor, "rb", closefd=False) as file:
            file.seek(0)
            offset = len(file.readline(LINE_OCTETS_MAX))
            for line in iter(partial(file.readline, LINE_OCTETS_MAX), b""):
                match _record_of(line):
                    case RowResult() as result:
                        open_sent.answered(result.email)
                        yield offset, result
                    case WrittenFile(written):
                        self.written.add(written)
                    case HostsAsked(asks_hosts):
                        self.asks_hosts = asks_hosts
                    case None if line == EARLY_END:
                        self.early_ends += 1
                    case None:
                        self.damaged += 1
                    case sent:
                        open_sent.add(sent)
                offset += len(line)
        self.sent = open_sent.left()
        self.has_sent = self.has_sent or bool(self.sent)

    def answer(self, offset: int) -> RowResult:
        """The answer at an offset. Raises CommandError if the file was changed."""
        line = os.pread(self.descriptor, ANSWER_OCTETS, offset)
        while b"\n" not in line and len(line) < LINE_OCTETS_MAX:
            more = os.pread(self.descriptor, LINE_OCTETS_MAX, offset + len(line))
            if not more:
                break
            line += more
        result = _record_of(line[: line.find(b"\n") + 1])
        if not isinstance(result, RowResult):
            raise CommandError(f"{self.name} was changed or damaged while it was used")
        return result

    def cut(self, offset: int) -> None:
        """Remove the answers from this offset on; 0 removes all of them, and the early ends."""
        header = os.pread(self.descriptor, HEADER_OCTETS_MAX, 0).find(b"\n") + 1
        if offset < header:
            self.early_ends = 0
        self._end = max(offset, header)
        os.ftruncate(self.descriptor, self._end)

    def sync(self) -> None:
        """Write the journal through to the disk, against a power failure."""
        with suppress(OSError):
            os.fsync(self.descriptor)


class _OpenSent:
    """Finds the requests without an answer to each of their addresses."""

    def __init__(self) -> None:
        self._sent: dict[str, SentRequest | SentList] = {}  # by key, or by the list's
        self._awaited: dict[str, str] = {}  # the key of the last request, by address
        self._counts: dict[str, int] = {}  # of awaited addresses, by key

    def add(self, sent: SentRequest | SentList) -> None:
        if isinstance(sent, SentList):
            self._sent.pop(sent.list, None)
            if not sent.done:
                self._sent[sent.list] = sent
            return
        self._sent[sent.key] = sent
        self._counts[sent.key] = 0
        for email in sent.emails:
            self.answered(email)
            self._awaited[email] = sent.key
            self._counts[sent.key] += 1

    def answered(self, email: str) -> None:
        key = self._awaited.pop(email, None)
        if key is not None:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key], self._sent[key]

    def left(self) -> list[SentRequest | SentList]:
        return list(self._sent.values())


def _record_of(line: bytes) -> Record | None:
    """The record of a line; None if it has none, or is damaged."""
    content, _, checksum = line.rpartition(CHECKSUM)
    try:
        if not content or int(checksum.rstrip(b"}\n")) != zlib.crc32(content):
            return None
        kind = KINDS.get(line[: line.find(b":")], RowResult)
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, ValueError):  # UnicodeDecodeError is one
        return None


@contextmanager
def open_journal(path: Path | None, header: Header, *, resume: bool) -> Iterator[Journal]:
    """Open this list's journal: a new one, or that of an earlier run.

    Raises Misuse if another run uses it, if it belongs to another list, or if it has
    answers and `resume` is false. Without a path the journal is a temporary file, deleted
    with the block. Otherwise the caller deletes it, by `path.unlink`.
    """
    if path is None:
        with temporary_file() as nameless:
            yield _new_journal(nameless.fileno(), header, "the temporary file", is_kept=False)
        return
    descriptor = _locked(path, plain(str(path)))
    try:
        yield _resumed(descriptor, path, header, resume)
    finally:
        os.close(descriptor)


def _locked(path: Path, name: str) -> int:
    """Open and lock the file; create it again if another run just deleted it."""
    while True:
        try:
            descriptor = os.open(path, OPEN_FLAGS, MODE)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _not_a_journal(name) from None
            reason = os.strerror(error.errno or 0)
            raise Misuse(
                f"{name} cannot be created: {reason}; name another output with -o"
            ) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _not_a_journal(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise Misuse(f"{name} is in use: another run is cleaning into that output") from None
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _resumed(descriptor: int, path: Path, header: Header, resume: bool) -> Journal:
    begin = os.pread(descriptor, HEADER_OCTETS_MAX, 0)
    if not begin:
        try:
            return _new_journal(descriptor, header, plain(str(path)))
        except CannotWrite:
            path.unlink(missing_ok=True)
            raise
    _check_header(begin, header, plain(str(path)))
    os.fchmod(descriptor, MODE)
    journal = Journal(descriptor, plain(str(path)), _cut_torn_line(descriptor))
    if resume:
        return journal
    count = sum(1 for _ in journal.answers())
    if count:
        raise Misuse(
            f"an unfinished run left {count:,} answers in {plain(str(path))}; "
            "continue with --resume, or delete that file to start over"
        )
    if journal.early_ends:
        journal.cut(0)
    return journal


def _not_a_journal(name: str) -> Misuse:
    return Misuse(f"{name} is not a journal of an unfinished run; move it away")


def _new_journal(descriptor: int, header: Header, name: str, *, is_kept: bool = True) -> Journal:
    journal = Journal(descriptor, name, 0, is_kept=is_kept)
    journal._write(msgspec.json.encode(header) + b"\n")
    return journal


def _check_header(begin: bytes, ours: Header, name: str) -> None:
    line, newline, _ = begin.partition(b"\n")
    try:
        theirs = msgspec.json.decode(line if newline else b"", type=Header)
    except msgspec.DecodeError:
        raise _not_a_journal(name) from None
    if theirs.mailprobe_journal != VERSION:
        raise Misuse(
            f"{name} was written by another version of mailprobe; finish with that version, "
            "or delete the file to start over"
        )
    if theirs != ours:
        raise Misuse(
            f"{name} belongs to another list, or to this one before it was changed; "
            "delete it, or name another output with -o"
        )


def _cut_torn_line(descriptor: int) -> int:
    """Cut off what follows the last line end. Returns the offset of the new end."""
    whole = os.lseek(descriptor, 0, os.SEEK_END)
    while whole > 0:
        start = max(0, whole - 4096)
        newline = os.pread(descriptor, whole - start, start).rfind(b"\n")
        if newline >= 0:
            whole = start + newline + 1
            break
        whole = start
    os.ftruncate(descriptor, whole)
    return whole
