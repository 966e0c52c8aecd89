"""Readers that are kept: which files they read, and that these leave no trace in the next report."""

import tempfile
from collections import Counter
from collections.abc import Sequence

import pytest

from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.opening import ReadOptions
from mailprobe.api.reader import client, forks
from mailprobe.api.reader.bounds import UPLOAD, Bounds
from mailprobe.api.reader.chunks import send_chunks
from mailprobe.api.reader.client import ReaderOrder, open_reader
from mailprobe.api.reader.forks import SHORT_OCTETS_MAX, is_short_text
from mailprobe.api.reader.frames import ReadUpload, RowAddresses, frame_of
from mailprobe.bench.lab.hostile_files import files
from tests.api.reader.test_reader_process import program_of

SHORT = b"name,email\nAnn,ann@shop.test\n"


def reports_on(octets: bytes, ending: str) -> list[bytes]:
    """What a reader reports of a file, or its refusal."""
    sent: list[bytes] = []

    class Sent:
        def send(self, report: object) -> None:
            sent.append(frame_of(report))  # type: ignore[arg-type]  # of any report

    with tempfile.TemporaryFile() as file:
        file.write(octets)
        file.flush()
        if not is_short_text(file.fileno()):
            return []
        try:
            send_chunks(Sent(), file.fileno(), ReadUpload("a", ending, ReadOptions(), 10_000))  # type: ignore[arg-type]
        except CommandError as error:
            sent.append(error.message.encode())
    return sent


HONEST = (
    (SHORT, ".csv"),
    (b'name\temail\n"Doe, \\ Ann"\tann@shop.test\nBob\tbob@shop.test\n', ".tsv"),
    (b'{"email": "ann@shop.test", "more": {"n": 1}}\n{"email": "bob@shop.test"}\n', ".ndjson"),
    ("Ärger;ann@shop.test\r\n".encode("cp1252") * 3, ".csv"),
    (b"Doe, Ann <ann@shop.test>\n", ".txt"),
)


def test_no_short_text_changes_what_is_reported_of_another() -> None:
    """So a reader may be kept: after each short text of the corpus."""
    expected = [reports_on(*each) for each in HONEST]
    read = 0
    for hostile in files():
        ending = f".{hostile.file.rpartition('.')[2]}"
        if ending in (".csv", ".ndjson") and reports_on(hostile.make(), ending):
            assert [reports_on(*each) for each in HONEST] == expected, hostile.name
            read += 1
    assert read >= 25


async def readers_of(contents: Sequence[bytes], bounds: Bounds = UPLOAD) -> list[str]:
    """The process that reads each of these files."""
    readers = []
    for octets in contents:
        with tempfile.TemporaryFile() as file:
            file.write(octets)
            file.flush()
            order = ReadUpload("people", ".csv", ReadOptions(), 10)
            work = ReaderOrder("people", bounds, file.fileno(), order)
            is_short = is_short_text(file.fileno())
            async with open_reader(work, is_short_text=is_short) as reader:
                report = await reader.receive()
                assert isinstance(report, RowAddresses)
                readers += report.texts
                if b"unread" not in octets:
                    await reader.receive()
    return readers


# A reader that tells its process, and what it does at the end.
TELLS = (
    "channel = Channel(0, COMMAND_OCTETS_MAX)\n"
    " channel.receive()\n"
    " channel.send(RowAddresses([str(os.getpid())]))\n"
)
LOADED = " channel.send(Loaded([], 0, 0, 0))\n"


async def test_only_a_reader_of_nothing_but_short_texts_reads_another(
    monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(TELLS + LOADED))
    long, archive, zipped = SHORT * (SHORT_OCTETS_MAX // len(SHORT) + 1), b"PK\x03\x04", b"\x1f\x8b"
    first, second, of_archive, third, of_zipped, of_long, fourth, unread, after = await readers_of(
        [SHORT, SHORT, archive, SHORT, zipped, long, SHORT, b"unread", SHORT]
    )
    assert first == second == third == fourth == unread
    assert len({first, of_archive, of_zipped, of_long, after}) == 5


ENDS = {
    "it has died": f"{TELLS}{LOADED} os._exit(0)\n",
    "it says more": f"{TELLS} os.write(0, frame_of(Loaded([], 0, 0, 0)) * 2)\n",
}


@pytest.mark.parametrize("deed", ENDS.values(), ids=ENDS)
async def test_a_reader_is_not_kept_if(
    deed: str, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    """Even one that dies later costs the next file nothing: it is read by another."""
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(deed))
    assert len(set(await readers_of([SHORT] * 3))) == 3


async def test_a_file_that_takes_all_time_of_a_kept_reader_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    waits = " while b'hang' in os.pread(_[1], 9, 0): time.sleep(99)\n"
    monkeypatch.setattr(client, "AT_WORK_SHARE", 0.0)  # it sleeps in place of working
    monkeypatch.setattr(
        forks, "FORK_SERVER", program_of(TELLS.replace("\n", f"\n{waits}", 1) + LOADED)
    )
    fork, forked = client.forks.fork, Counter[str]()

    def counted() -> forks.Fork:
        forked["all"] += 1
        return fork()

    monkeypatch.setattr(client.forks, "fork", counted)
    with pytest.raises(CommandError, match="takes longer to read"):
        await readers_of([SHORT, SHORT, b"hang"], Bounds(cpu_s=60, wall_s=2))
    assert forked["all"] == len({"kept", "fresh"})


async def test_a_kept_reader_is_replaced_in_the_end(
    monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setattr(forks, "READS_MAX", 2)
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(TELLS + LOADED))
    first, second, third = await readers_of([SHORT] * 3)
    assert first == second != third
