"""`mailprobe mcp` as a process: the official client against the lab, signals, and wrong usage."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio._backends._trio  # noqa: F401  now: pytest rewrites it, which CPython 3.11 may fail at deep in a stack
import pytest
import trio
from click.testing import CliRunner

from mailprobe.api.cli import main
from mailprobe.api.cli.toolserver.lines import LINE_OCTETS_MAX
from mailprobe.bench.lab import Lab
from tests import warm_process
from tests.api.cli.test_clean import names_in, written
from tests.api.cli.test_serve import COMMAND, environment
from tests.api.warm_commands import folder_of_commands
from tests.warm_lab import start_lab
from tests.warm_process import WarmProcess

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'


MCP = ["mailprobe.api.cli", "mcp"]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    warm_process.preload("mailprobe.api.cli.toolserver.protocol")
    with start_lab() as lab:
        yield lab


@contextmanager
def started(place: Path, lab: Lab, **more: str) -> Iterator["subprocess.Popen[bytes]"]:
    with WarmProcess(
        MCP, cwd=place, env={**environment(place, lab), **more},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_verifies_and_cleans(tmp_path: Path, lab: Lab, mode: str):
    # 0.6 s, which every process would take to collect this file
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp_types import CallToolResult, TextContent

    good, bad = lab.addresses["deliverable"][0], lab.addresses["undeliverable"][0]
    path = written(tmp_path / "list.csv", f"email\n{good}\n{bad}\n")
    server = StdioServerParameters(
        command=str(folder_of_commands() / "mailprobe"), args=["mcp"], cwd=str(tmp_path),
        env=environment(tmp_path, lab),
    )  # fmt: skip
    assert sys.__stderr__ is not None
    with trio.fail_after(60):
        # Its default is what stderr was when it was imported: a runner's, in a test before.
        async with Client(stdio_client(server, errlog=sys.__stderr__), mode=mode) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["verify_email", "verify_batch", "clean_file"]
            one = await client.call_tool("verify_email", {"email": good, "evidence": True})
            assert isinstance(one, CallToolResult)
            assert one.structured_content is not None
            assert one.structured_content["status"] == "deliverable"
            done = await client.call_tool("clean_file", {"path": "list.csv"})
            assert isinstance(done, CallToolResult)
            assert done.structured_content is not None
            assert done.structured_content["lights"] == {"GREEN_LIGHT": 1, "RED_LIGHT": 1}
            again = await client.call_tool("clean_file", {"path": str(path)})
            assert isinstance(again, CallToolResult)
            assert again.is_error
            foreign = await client.call_tool("create_list", {"emails": [good]})
            assert isinstance(foreign, CallToolResult)
            assert foreign.is_error
            assert isinstance(foreign.content[0], TextContent)
            assert "needs a service" in foreign.content[0].text
    assert names_in(tmp_path) == ["list.csv", "list.verified.csv"]


def test_the_end_of_the_input_ends_it_and_nothing_else_is_on_the_output(tmp_path: Path, lab: Lab):
    long = b"x" * (LINE_OCTETS_MAX + 1)
    with started(tmp_path, lab) as process:
        lines = PING + b"\n{\n" + long + b"\r\n" + PING.rstrip()
        out, err = process.communicate(lines, timeout=60)
    replies = sorted(out.splitlines(keepends=True))
    assert replies[:2] == [PONG, PONG]
    assert [json.loads(each)["error"]["code"] for each in replies[2:]] == [-32600, -32700]
    assert (process.returncode, err) == (0, b"")


def test_the_streams_may_be_files(tmp_path: Path, lab: Lab):
    (tmp_path / "in").write_bytes(PING)
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
        done = warm_process.run(
            MCP, cwd=tmp_path, env=environment(tmp_path, lab),
            stdin=source, stdout=sink, stderr=subprocess.PIPE, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out").read_bytes() == PONG


def test_an_input_that_cannot_be_read_is_one_line(tmp_path: Path, lab: Lab):
    written = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    done = warm_process.run(
        MCP, cwd=tmp_path, env=environment(tmp_path, lab),
        stdin=written, capture_output=True, timeout=60,
    )  # fmt: skip
    os.close(written)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"mailprobe: standard input cannot be read: Bad file descriptor\n"


def test_the_input_may_be_a_terminal(tmp_path: Path, lab: Lab):
    ours, theirs = os.openpty()
    process = WarmProcess(
        MCP, cwd=tmp_path, env=environment(tmp_path, lab),
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout
            assert process.stderr
            assert b"Ctrl-C ends" in process.stderr.readline()
            os.write(ours, PING)
            assert process.stdout.readline() == PONG
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    os.close(ours)
    os.close(theirs)


def test_without_its_extra_it_says_what_to_install(tmp_path: Path):
    program = "import sys; sys.modules['mcp'] = None; from mailprobe.api.start import main; main()"
    done = subprocess.run(
        [COMMAND[0], "-c", program, "mcp"], cwd=tmp_path, env=environment(tmp_path),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "mailprobe: the tool server needs the extra mcp; install it in the checkout: "
        "pip install '.[mcp]'\n"
    )


def test_a_ctrl_c_ends_it_with_130(tmp_path: Path, lab: Lab):
    with started(tmp_path, lab) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(PING)
        process.stdin.flush()
        assert process.stdout.readline() == PONG
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_a_client_that_goes_away_ends_it(tmp_path: Path, lab: Lab):
    with started(tmp_path, lab) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write(PING)
        process.stdin.flush()
        assert process.wait(60) == 1
        assert b"Traceback" not in process.stderr.read()


WRONG: dict[str, tuple[Mapping[str, str], str]] = {
    "no key": ({"MAILPROBE_SERVER": "https://a.test"}, "needs an API key: set MAILPROBE_KEY"),
    "a wrong setting": ({"MAILPROBE_SMTP_PORT": "x"}, "MAILPROBE_SMTP_PORT"),
    "a wrong provisioning key": ({"MAILPROBE_PROVISIONING_KEY": "a b"}, "sk_mgmt_"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_one_line(tmp_path: Path, case: str, monkeypatch):
    more, words = WRONG[case]
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(main, ["mcp"], env=dict(more))
    assert (ended.exit_code, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert words in line
    assert "a b" not in line
    assert names_in(tmp_path) == []
