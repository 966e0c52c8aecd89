"""The reader process: its bounds, its end, and what its starter makes of them."""

import signal
import socket
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
from mailprobe.api.listfile import ReadOptions
from mailprobe.api.reader import client
from mailprobe.api.reader.bounds import UPLOAD, Bounds
from mailprobe.api.reader.client import open_reader
from mailprobe.api.reader.frames import Chunk, Loaded, ReadUpload, Report, RowAddresses
from mailprobe.api.reader.turns import FairTurns
from tests.api.fake_source import FakeSource

WITHIN_S = 60.0  # only a failing test waits so long
IMPORTS = (
    "import os, sys, time\n"
    "from mailprobe.api.reader import fork_server, process\n"
    "from mailprobe.api.reader.bounds import *\n"
    "from mailprobe.api.reader.frames import *\n"
    "from mailprobe.api.reader.reporting import reporting\n"
)


def program_of(deed: str, started: str = "fork_server") -> str:
    """A program whose readers do this in place of reading."""
    return f"{IMPORTS}def serve(_):\n {deed}\n{started}.serve = serve\n{started}.main()\n"


async def reports_on(path: Path, bounds: Bounds = UPLOAD) -> list[Report]:
    reports: list[Report] = []
    with path.open("rb") as file, trio.fail_after(WITHIN_S):
        async with open_reader("people", bounds, file.fileno()) as reader:
            order = ReadUpload(file.fileno(), "people", path.suffix, ReadOptions(), 10)
            await reader.send(order)
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
            '[0,0,"ann@shop.test",["Ann","ann@shop.test"]]\n'
            "[null,null,null,[]]\n"
            '[0,0,null,["Bob","ann@shop.test","x"]]\n',
        ),
        Loaded(["name", "email", "note"], 3, 1),
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
    monkeypatch.setattr(client, "FORK_SERVER", program_of(deed))
    path = tmp_path / "list.csv"
    path.write_text("email\nann@shop.test\n")
    with pytest.raises(Misuse) as refused:
        await reports_on(path, Bounds(cpu_s=60, wall_s=1) if "sleep" in deed else Bounds(cpu_s=1))
    assert refused.value.message == HOSTILE[deed]


def test_a_hostile_file_ends_clean_with_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setattr(client, "PROGRAM", program_of("os.abort()", "process"))
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


@pytest.mark.parametrize("call", ["spawn(bounds, [])", "forks.fork(bounds, file.fileno())"])
def test_a_reader_ends_with_its_starter(call: str, real_readers: None) -> None:
    deed = "os.write(0, b'%d' % os.getpid()); time.sleep(600)"
    starter = (
        "import time\n"
        "from mailprobe.api.reader import client\n"
        f"client.PROGRAM = {program_of(deed, 'process')!r}\n"
        f"client.FORK_SERVER = {program_of(deed)!r}\n"
        "bounds, file = client.Bounds(60), open('/dev/null')\n"
        f"spawned = client.{call}\n"
        "print(spawned.connection.recv(100).decode(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        reader = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    ends_at = time.monotonic() + WITHIN_S
    while _is_running(reader):
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def test_a_reader_has_no_settings_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    monkeypatch.setenv("MAILPROBE_SECRET_KEY", "secret")
    deed = "os.write(0, ' '.join(os.environ).encode())"
    monkeypatch.setattr(client, "PROGRAM", program_of(deed, "process"))
    monkeypatch.setattr(client, "FORK_SERVER", program_of(deed))
    with open("/dev/null") as file:
        for spawned in (client.spawn(UPLOAD, []), client.forks.fork(UPLOAD, file.fileno())):
            with spawned.connection as connection:
                names = connection.recv(4096).decode().split()
            spawned.process.wait()
            assert names
            assert set(names) <= {*client.ENVIRONMENT, "LC_ALL"}


def _is_running(pid: int) -> bool:
    """A process that has ended may still wait for its new parent."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_a_client_that_leaves_ends_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    forked: list[client.Forked] = []

    class Forked(client.Forked):
        def __init__(self, end: socket.socket) -> None:
            super().__init__(end)
            forked.append(self)

    monkeypatch.setattr(client, "FORK_SERVER", program_of("time.sleep(600)"))
    monkeypatch.setattr(client, "Forked", Forked)
    with tempfile.TemporaryFile() as file, trio.move_on_after(0.2):
        async with open_reader("people", UPLOAD, file.fileno()) as reader:
            await reader.receive()
    assert forked[0].wait() == -signal.SIGKILL


async def test_a_fork_server_that_has_died_is_replaced(tmp_path: Path, real_readers: None) -> None:
    path = tmp_path / "list.csv"
    path.write_text("email\nann@shop.test\n")
    reports = await reports_on(path)
    assert await reports_on(path) == reports
    server = client.forks._server
    assert server is not None
    server.process.kill()
    server.process.wait()
    assert await reports_on(path) == reports
    assert client.forks._server is not server


async def test_readers_of_two_files_have_no_descriptor_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    listed = "[each for each in os.listdir('/proc/self/fd')]"
    deed = f"Channel(0, 1).send(RowAddresses({listed})); time.sleep(600)"
    monkeypatch.setattr(client, "FORK_SERVER", program_of(deed))
    with tempfile.TemporaryFile() as file, trio.fail_after(WITHIN_S):
        number = file.fileno()
        async with (
            open_reader("a", UPLOAD, number) as first,
            open_reader("b", UPLOAD, number) as second,
        ):
            for reader in (first, second):
                report = await reader.receive()
                assert isinstance(report, RowAddresses)
                listing = 1  # the folder that is listed
                assert len(report.texts) == len({"0", "1", "2", str(number)}) + listing


async def test_accounts_take_turns_and_one_that_leaves_holds_up_nobody(autojump_clock) -> None:
    turns = FairTurns(2)
    begun: list[str] = []

    async def read(account: str, within_s: float = 100) -> None:
        with trio.move_on_after(within_s):
            async with turns.turn(account):
                begun.append(account)
                await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for account in ("busy", "busy", "busy", "busy", "busy"):
            nursery.start_soon(read, account)
            await trio.lowlevel.checkpoint()
        nursery.start_soon(read, "leaving", 0.5)
        nursery.start_soon(read, "other")
    assert begun[:2] == ["busy", "busy"]
    assert set(begun[2:4]) == {"busy", "other"}  # in the same instant
    assert begun[4:] == ["busy", "busy"]
    async with turns.turn("a"), turns.turn("b"):
        pass  # both are free again
