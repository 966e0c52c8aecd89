"""Readers that somebody else ends or stops: a good file is read all the same, or is not blamed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.opening import ReadOptions
from mailprobe.api.reader import client, forks
from mailprobe.api.reader.bounds import UPLOAD, Bounds
from mailprobe.api.reader.client import ReaderLost, ReaderOrder, open_reader
from mailprobe.api.reader.frames import Loaded, ReadUpload, Report, RowAddresses
from tests.api.reader.test_reader_process import WITHIN_S, program_of

# A reader that names its process, reports three more times, and is loaded.
REPORTS = (
    "channel = Channel(0, COMMAND_OCTETS_MAX)\n"
    " channel.receive()\n"
    " channel.send(RowAddresses([str(os.getpid())]))\n"
    " for each in 'abc': channel.send(RowAddresses([each]))\n"
    " {deed}\n"
    " channel.send(Loaded([], 0, 0, 0))\n"
)
WAITS = "while os.pread(_[1], 9, 0) != b'goes on': time.sleep(0.01)"


async def reports_of(
    path: Path, on_process: Callable[[int], None], bounds: Bounds = UPLOAD
) -> list[Report]:
    """What is reported of a file; `on_process` gets each reader that is seen."""
    reports: list[Report] = []
    with path.open("rb") as file, trio.fail_after(WITHIN_S):
        order = ReadUpload("people", ".csv", ReadOptions(), 10)
        async with open_reader(ReaderOrder("people", bounds, file.fileno(), order)) as reader:
            while not reports or not isinstance(reports[-1], Loaded):
                reports.append(await reader.receive())
                if len(reports) == 1:
                    assert isinstance(reports[0], RowAddresses)
                    on_process(int(reports[0].texts[0]))
    return reports[1:]


def state(path: Path, text: str) -> None:
    """What the reader of the file does."""
    path.write_text(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "list.csv"
    path.write_text("waits")
    return path


ALL = [RowAddresses(["a"]), RowAddresses(["b"]), RowAddresses(["c"]), Loaded([], 0, 0, 0)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGQUIT])
async def test_a_reader_that_somebody_ends_is_begun_again_and_repeats_no_report(
    number: signal.Signals, path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(REPORTS.format(deed=WAITS)))

    def end(reader: int) -> None:
        os.kill(reader, number)
        path.write_text("goes on")

    assert await reports_of(path, end) == ALL


async def test_a_second_end_is_the_services_failure_and_not_the_files(
    path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    deed = "os.kill(os.getpid(), 9)"
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(REPORTS.format(deed=deed)))
    with pytest.raises(ReaderLost, match="signal 9"):
        await reports_of(path, lambda reader: None)


async def test_a_crash_by_the_file_is_the_files(
    path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    deed = "os.kill(os.getpid(), 11)"
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(REPORTS.format(deed=deed)))
    with pytest.raises(CommandError, match="cannot be read"):
        await reports_of(path, lambda reader: None)


async def test_a_reader_that_is_stopped_ends_at_its_deadline_and_its_file_is_not_blamed(
    path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(REPORTS.format(deed=WAITS)))
    state(path, "goes on")
    assert await reports_of(path, lambda reader: None) == ALL  # the fork server is there
    state(path, "waits")
    stopped: list[int] = []

    def stop(reader: int) -> None:
        stopped.append(reader)
        os.kill(reader, signal.SIGSTOP)

    with pytest.raises(ReaderLost, match="stood still"):
        await reports_of(path, stop, Bounds(cpu_s=60, wall_s=5))
    with pytest.raises(ProcessLookupError):  # it has ended, and was reaped
        os.kill(stopped[0], 0)


async def test_a_fork_server_that_is_stopped_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setattr(client, "END_S", 0.5)
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(REPORTS.format(deed="pass")))
    assert await reports_of(path, lambda reader: None) == ALL
    server = client.forks.server
    assert server is not None
    for ready in (client.forks.fresh, client.forks.kept):
        while ready:
            ready.pop().close()
    server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(ReaderLost, match="stood still"):
        await reports_of(path, lambda reader: None, Bounds(cpu_s=60, wall_s=1))
    assert await reports_of(path, lambda reader: None) == ALL
    assert client.forks.server is not server


class OneSlice:
    """A turn that makes way once, until the file says that it may go on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.paused = trio.Event()

    async def make_way(self, pause: Callable[[], None], go_on: Callable[[], None]) -> None:
        if self.paused.is_set():
            return
        pause()
        self.paused.set()
        await trio.testing.wait_all_tasks_blocked()
        self._path.write_text("goes on")
        go_on()


async def test_a_reader_is_paused_and_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(REPORTS.format(deed=WAITS)))
    order = ReadUpload("people", ".csv", ReadOptions(), 10)
    turn = OneSlice(path)
    with path.open("rb") as file, trio.fail_after(WITHIN_S):
        work = ReaderOrder("people", UPLOAD, file.fileno(), order)
        async with open_reader(work, turn) as reader:  # type: ignore[arg-type]  # of a turn, what is used
            reports = [await reader.receive() for _ in range(5)]
    assert reports[1:] == ALL
    assert turn.paused.is_set()
