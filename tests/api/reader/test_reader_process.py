"""The reader process: its bounds, its end, and what its starter makes of them."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import trio

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.errors import Misuse
from mailprobe.api.listfile.opening import ReadOptions
from mailprobe.api.reader import client, forks, starting
from mailprobe.api.reader.bounds import UPLOAD, Bounds
from mailprobe.api.reader.client import ReaderOrder, open_reader
from mailprobe.api.reader.forks import Fork, Forks, ReaderEnd, is_short_text
from mailprobe.api.reader.frames import Chunk, Loaded, ReadUpload, Report, RowAddresses
from mailprobe.api.results.list_reading import ListReading
from tests.api.fake_source import FakeSource

WITHIN_S = 300.0  # only a failing test waits so long
IMPORTS = (
    "import os, sys, time\n"
    "from mailprobe.api.reader import fork_server, process\n"
    "from mailprobe.api.reader.bounds import *\n"
    "from mailprobe.api.reader.frames import *\n"
    "from mailprobe.api.reader.reporting import reporting\n"
)


def program_of(deed: str, started: str = "fork_server") -> str:
    """A program whose readers do this in place of reading."""
    return f"{IMPORTS}def serve(*_):\n {deed}\nprocess.serve = serve\n{started}.main()\n"


def work_on(file: int, bounds: Bounds = UPLOAD, ending: str = ".csv") -> ReaderOrder:
    return ReaderOrder("people", bounds, file, ReadUpload("people", ending, ReadOptions(), 10))


async def reports_on(path: Path, bounds: Bounds = UPLOAD) -> list[Report]:
    reports: list[Report] = []
    with path.open("rb") as file, trio.fail_after(WITHIN_S):
        work, is_short = work_on(file.fileno(), bounds, path.suffix), is_short_text(file.fileno())
        async with open_reader(work, is_short_text=is_short) as reader:
            while not reports or not isinstance(reports[-1], Loaded):
                reports.append(await reader.receive())
    return reports


async def test_a_list_is_read_by_a_process_of_its_own(tmp_path: Path, real_readers: None) -> None:
    path = tmp_path / "list.csv"
    path.write_text("name,email,note\nAnn,ann@shop.test,\n,,\nBob,ann@shop.test,x\n")
    assert await reports_on(path) == [
        Chunk(
            0,
            1,
            '{"p":0,"n":0,"a":"ann@shop.test","c":["Ann","ann@shop.test"]}\n'
            '{"c":[]}\n'
            '{"p":0,"n":0,"c":["Bob","ann@shop.test","x"]}\n',
        ),
        Loaded(
            ["name", "email", "note"],
            3,
            1,
            1,
            ListReading(["email"], [1], encoding="utf-8", delimiter=","),
        ),
    ]


# What a file makes of its reader -> what its owner reads.
HOSTILE = {
    "while True: pass": "people takes more computing time than a list may",
    "time.sleep(99)": "people takes longer to read than a list may",
    "os.abort()": "people cannot be read; save it anew, or as CSV",
    "os._exit(0)": "people cannot be read; save it anew, or as CSV",
    "os.write(0, b'\\xff' * 100)": "people cannot be read; save it anew, or as CSV",
    "os.write(0, HEAD.pack(3) + b'abc')": "people cannot be read; save it anew, or as CSV",
    "with reporting(Channel(0, 1), 'people'): 1 / 0": (
        "people cannot be read; save it anew, or as CSV"
    ),
    "with reporting(Channel(0, 1), 'people'): bytearray(600 << 20)": (
        "people takes more than 512 MiB of memory to read"
    ),
}


@pytest.mark.parametrize("deed", HOSTILE)
async def test_a_hostile_file_costs_its_owner_one_line(
    deed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(deed))
    monkeypatch.setattr(client, "AT_WORK_SHARE", 0.0)  # it sleeps in place of working
    path = tmp_path / "list.csv"
    path.write_text("email\nann@shop.test\n")
    with pytest.raises(Misuse) as refused:
        await reports_on(path, Bounds(cpu_s=60, wall_s=1) if "sleep" in deed else Bounds(cpu_s=0))
    assert refused.value.message == HOSTILE[deed]


def test_a_hostile_file_ends_clean_with_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setattr(starting, "PROGRAM", program_of("os.abort()", "process"))
    path = tmp_path / "list.csv"
    path.write_text("email\nann@shop.test\n")
    order = Order(path, tmp_path / "out.csv")
    with pytest.raises(Misuse, match="cannot be read") as refused:
        clean_list(order, FakeSource().open, standard_output=sys.stdout.buffer)
    assert (refused.value.exit_code, refused.value.message.count("\n")) == (2, 0)
    assert [each.name for each in tmp_path.iterdir()] == ["list.csv"]


def test_a_list_is_cleaned_by_a_process_of_its_own(tmp_path: Path, real_readers: None) -> None:
    path = tmp_path / "list.csv"
    path.write_text("name,email\nAnn,ann@shop.test\n,\nAgain,ann@shop.test\n")
    order = Order(path, tmp_path / "out.csv", split=True)
    summary = clean_list(order, FakeSource().open, standard_output=sys.stdout.buffer)
    assert (summary.rows, summary.written, summary.counts.done) == (3, 3, 2)
    assert (tmp_path / "out.keep.csv").read_text().splitlines()[1].startswith("Ann,ann@shop.test,")


# How a reader is started with `file`, for its octets to come from `connection`.
STARTS = {
    "spawned": "connection = starting.spawn(Bounds(60), file).connection\n",
    "forked": (
        "ours = Forks()\n"
        "fork = ours.fork()\n"
        "trio.run(partial(fork.begin, Bounds(60), file, b'', is_last=True))\n"
        "connection = fork._connection\n"
        "connection.setblocking(True)\n"
    ),
}


def starter_of(start: str, deed: str) -> str:
    """A program that starts a reader which does this, prints what it sends, and stays."""
    return (
        "import time, trio\n"
        "from functools import partial\n"
        "from mailprobe.api.reader import forks, starting\n"
        "from mailprobe.api.reader.bounds import Bounds\n"
        "from mailprobe.api.reader.forks import Forks\n"
        f"starting.PROGRAM = {program_of(deed, 'process')!r}\n"
        f"forks.FORK_SERVER = {program_of(deed)!r}\n"
        "file = open('/dev/null').fileno()\n"
        f"{start}"
        "print(connection.recv(4096).decode(), flush=True)\n"
        "time.sleep(600)\n"
    )


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_reader_ends_with_its_starter(start: str) -> None:
    starter = starter_of(start, "os.write(0, b'%d' % os.getpid()); time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        reader = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    ends_at = time.monotonic() + WITHIN_S
    while _is_running(reader):
        assert time.monotonic() < ends_at
        time.sleep(0.01)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_reader_has_no_network_no_settings_and_no_secrets(start: str) -> None:
    """No network where it has a namespace of its own: it then has not even a loopback that is up."""
    deed = (
        "import socket\n"
        " listening = socket.socket()\n"
        " listening.bind(('127.0.0.1', 0)); listening.listen()\n"
        " error = socket.socket().connect_ex(listening.getsockname())\n"
        " os.write(0, f'{error} {\" \".join(os.environ)}'.encode())\n"
    )
    environment = {**os.environ, "MAILPROBE_SECRET_KEY": "secret"}
    with subprocess.Popen(
        [sys.executable, "-c", starter_of(start, deed)], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        error, *names = process.stdout.readline().decode().split()
        process.kill()
    assert names
    assert set(names) <= {*starting.ENVIRONMENT, "LC_ALL"}
    if _may_have_namespaces():
        assert int(error) == errno.ENETUNREACH


def _may_have_namespaces() -> bool:
    """Whether the kernel gives this user a network of its own."""
    program = "import os; from mailprobe.api.reader.bounds import leave_network as leave\n"
    program += "before = os.readlink('/proc/self/ns/net'); leave()\n"
    program += "assert os.readlink('/proc/self/ns/net') != before"
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def _is_running(pid: int) -> bool:
    """A process that has ended may still wait for its new parent."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_a_client_that_leaves_ends_its_reader(
    monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    ends: list[int] = []

    class Watched(Fork):
        async def ended(self) -> ReaderEnd | None:
            found = await super().ended()
            assert found is not None
            ends.append(found.code)
            return found

    monkeypatch.setattr(forks, "FORK_SERVER", program_of("time.sleep(600)"))
    monkeypatch.setattr(forks, "Fork", Watched)
    with tempfile.TemporaryFile() as file, trio.move_on_after(0.2):
        async with open_reader(work_on(file.fileno())) as reader:
            await reader.receive()
    assert ends == [-signal.SIGKILL]


async def test_a_fork_server_that_has_died_is_replaced(tmp_path: Path, real_readers: None) -> None:
    path = tmp_path / "list.csv"
    path.write_text("email\nann@shop.test\n")
    reports = await reports_on(path)
    assert await reports_on(path) == reports
    server = client.forks.server
    assert server is not None
    server.process.kill()
    server.process.wait()
    assert await reports_on(path) == reports
    assert client.forks.server is not server


@pytest.mark.parametrize("times", [1, 2])
async def test_a_file_is_read_again_once_after_the_fork_server_died(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    """Once; then it is the service's failure, and not the file's."""
    path = tmp_path / "list.csv"
    path.write_text("email\nann@shop.test\n")
    reports = await reports_on(path)
    client.forks.close()

    class Dying(Forks):
        def fork(self) -> Fork:
            nonlocal times
            reader = super().fork()
            if times:
                times -= 1
                assert self.server is not None
                self.server.process.kill()
                self.server.process.wait()
            return reader

    dying, is_lost = Dying(), times > 1
    monkeypatch.setattr(client, "forks", dying)
    try:
        if is_lost:
            with pytest.raises(client.ReaderLost):
                await reports_on(path)
        else:
            assert await reports_on(path) == reports
    finally:
        dying.close()


async def test_readers_of_two_files_have_no_descriptor_of_each_other(
    monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    listed = "[each for each in os.listdir('/proc/self/fd')]"
    deed = f"Channel(0, 1).send(RowAddresses({listed})); time.sleep(600)"
    monkeypatch.setattr(forks, "FORK_SERVER", program_of(deed))
    with tempfile.TemporaryFile() as file, trio.fail_after(WITHIN_S):
        work = work_on(file.fileno())
        async with open_reader(work) as first, open_reader(work) as second:
            for reader in (first, second):
                report = await reader.receive()
                assert isinstance(report, RowAddresses)
                listing = 1  # the folder that is listed
                assert len(report.texts) == len({"0", "1", "2", "the file"}) + listing
