"""What was answered so far, on disk, so that an interrupted run asks nothing twice.

    {"mailprobe_journal":1,"octets":5120,"sha256":"9f86…"}
    {"email":"ann@shop.test","valid":true,…,"crc":3421780262}
    …

A first line with the format's version and the fingerprint of the list, then a line
for each answer in the order of arrival. Each line is handed to the system at once,
whole: kill -9 loses none of them and tears at most the last, which is cut off when
the journal is opened again. A line that is damaged otherwise does not agree with its
checksum (CRC-32 of what stands before it) and is left out: its address is asked again.
Locked while a run uses it.
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

from mailprobe.api.cli.errors import CommandError, Misuse
from mailprobe.api.cli.listfile import CannotWrite, temporary_file
from mailprobe.api.cli.output.terminal import plain
from mailprobe.engine.verdict import Verdict

VERSION = 1
HEADER_OCTETS_MAX = 1024
ANSWER_OCTETS = 1024  # most answers are shorter
LINE_OCTETS_MAX = 1 << 26  # an address as long as a list's cell may be, escaped
CHECKSUM = b',"crc":'
MODE = 0o600  # addresses are personal: the list's owner alone
# A link under the journal's name may lead to any file, and a pipe to nowhere: neither is opened.
OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Header(msgspec.Struct, frozen=True):
    """Which list a journal belongs to."""

    mailprobe_journal: int
    octets: int
    sha256: str


class Journal:
    """An open journal: answers are appended, and read again by their offset."""

    def __init__(self, descriptor: int, name: str, end: int) -> None:
        self._descriptor = descriptor
        self.name = name
        self._end = end  # of the last whole line
        self.damaged = 0
        self._decoder = msgspec.json.Decoder(Verdict)

    def append(self, verdict: Verdict) -> int:
        """Keep an answer; give the offset of its line. CannotWrite leaves no torn line."""
        offset = self._end
        line = msgspec.json.encode(verdict)[:-1]
        self._write(b'%b,"crc":%d}\n' % (line, zlib.crc32(line)))
        return offset

    def _write(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                octets = line[written:]
                written += os.pwrite(self._descriptor, octets, self._end + written)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            reason = os.strerror(error.errno or 0)
            raise CannotWrite(f"{self.name} cannot be written: {reason}") from error
        self._end += len(line)

    def answers(self) -> Iterator[tuple[int, Verdict]]:
        """Every answer kept, with its offset; `damaged` counts the lines that are left out."""
        self.damaged = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            offset = len(file.readline(LINE_OCTETS_MAX))
            for line in iter(partial(file.readline, LINE_OCTETS_MAX), b""):
                verdict = self._read(line)
                if verdict is None:
                    self.damaged += 1
                else:
                    yield offset, verdict
                offset += len(line)

    def _read(self, line: bytes) -> Verdict | None:
        """The answer of a line; None where it is damaged."""
        said, _, checksum = line.rpartition(CHECKSUM)
        try:
            # An earlier mailprobe wrote no checksums.
            if said and int(checksum.rstrip(b"}\n")) != zlib.crc32(said):
                return None
            return self._decoder.decode(line)
        except (msgspec.DecodeError, ValueError):  # UnicodeDecodeError is one
            return None

    @contextmanager
    def reading(self) -> Iterator["Journal"]:
        """To look answers up in, while nothing more is appended."""
        yield self

    def answer(self, offset: int) -> Verdict:
        """The answer at an offset; Trouble where the file was changed since."""
        line = os.pread(self._descriptor, ANSWER_OCTETS, offset)
        while b"\n" not in line and len(line) < LINE_OCTETS_MAX:
            more = os.pread(self._descriptor, LINE_OCTETS_MAX, offset + len(line))
            if not more:
                break
            line += more
        verdict = self._read(line[: line.find(b"\n") + 1])
        if verdict is None:
            raise CommandError(f"{self.name} was changed or damaged while it was used")
        return verdict

    def sync(self) -> None:
        """Have the disk take what the system holds; it may be a power cut next."""
        with suppress(OSError):
            os.fsync(self._descriptor)


@contextmanager
def open_journal(path: Path | None, header: Header, *, resume: bool) -> Iterator[Journal]:
    """A journal for this list: a new one, or the one that an earlier run left.

    Raises Misuse where another run uses it, where it belongs to another list, and
    where it holds answers although `resume` was not asked for. Without a path the
    journal has no name and goes with the block. Whether it is kept is the caller's
    to say, by `path.unlink`.
    """
    if path is None:
        with temporary_file() as nameless:
            yield _begun(nameless.fileno(), header, "the temporary file")
        return
    name = plain(str(path))
    descriptor = _locked(path, name)
    try:
        yield _resumed(descriptor, path, header, resume)
    finally:
        os.close(descriptor)


def _locked(path: Path, name: str) -> int:
    """Open and lock the file of that name; made anew where another run just ended with it."""
    while True:
        try:
            descriptor = os.open(path, OPEN_FLAGS, MODE)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _no_journal(name) from None
            reason = os.strerror(error.errno or 0)
            raise Misuse(f"{name} cannot be made: {reason}; name another output with -o") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _no_journal(name)
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
            return _begun(descriptor, header, plain(str(path)))
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
            "go on with --resume, or delete that file to start anew"
        )
    return journal


def _no_journal(name: str) -> Misuse:
    return Misuse(f"{name} is no journal of an unfinished run; move it away")


def _begun(descriptor: int, header: Header, name: str) -> Journal:
    journal = Journal(descriptor, name, 0)
    journal._write(msgspec.json.encode(header) + b"\n")
    return journal


def _check_header(begin: bytes, ours: Header, name: str) -> None:
    line, newline, _ = begin.partition(b"\n")
    try:
        theirs = msgspec.json.decode(line if newline else b"", type=Header)
    except msgspec.DecodeError:
        raise _no_journal(name) from None
    if theirs.mailprobe_journal != VERSION:
        raise Misuse(
            f"{name} was written by another version of mailprobe; finish with that one, "
            "or delete the file to start anew"
        )
    if theirs != ours:
        raise Misuse(
            f"{name} belongs to another list, or to this one before it was changed; "
            "delete it, or name another output with -o"
        )


def _cut_torn_line(descriptor: int) -> int:
    """Cut off what follows the last line end; give the offset of the new end."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    whole = end
    while whole > 0:
        start = max(0, whole - 4096)
        newline = os.pread(descriptor, whole - start, start).rfind(b"\n")
        if newline >= 0:
            whole = start + newline + 1
            break
        whole = start
    os.ftruncate(descriptor, whole)
    return whole
