"""A session of the protocol: versions, limits, cancellation, progress, and wrong lines."""

import json
from importlib import import_module
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Struct

from mailprobe.api.cli.toolserver.lines import LINE_OCTETS_MAX
from mailprobe.api.cli.toolserver.toolbox import CALLS_MAX, OfferedTool, Report, Toolbox
from mailprobe.api.errors import CommandError
from mailprobe.api.mcp.outcomes import FRESH_MS, SERVER
from mailprobe.engine.background import sole_exception
from tests.api.cli.toolserver.client import INITIALIZE, open_session

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.fixture(scope="module")
def protocol() -> Any:
    """The module of the protocol. It imports `mcp`, which would make the collection longer."""
    return import_module("mailprobe.api.cli.toolserver.protocol")


class Wait(Struct):
    """How long a call takes."""

    seconds: float = 0.0


class Tools:
    """A tool that waits and reports every second; one that fails; one with a bug."""

    def __init__(self) -> None:
        self.begun = self.ended = self.cancelled = 0

    async def wait(self, taken: Wait, octets: bytes, report: Report) -> bytes:
        self.begun += 1
        try:
            for second in range(int(taken.seconds)):
                await trio.sleep(1)
                await report(second + 1, taken.seconds, "seconds")
                await report(second, taken.seconds, "less than before")
        except trio.Cancelled:
            self.cancelled += 1
            raise
        self.ended += 1
        return b'{"waited":true}'

    async def fail(self, taken: Wait, octets: bytes, report: Report) -> bytes:
        raise CommandError("the disk is full; make room")

    async def crash(self, taken: Wait, octets: bytes, report: Report) -> bytes:
        raise ArithmeticError

    def box(self, **more: Any) -> Toolbox:
        tools = {
            name: OfferedTool(
                {"name": name, "inputSchema": {"type": "object"}}, Wait, getattr(self, name)
            )
            for name in ("wait", "fail", "crash")
        }
        return Toolbox(tools, "Wait.", "https://docs.test", **more)


def error_of(message: Any) -> tuple[Any, int]:
    assert message["error"]["message"]
    return message["id"], message["error"]["code"]


# asked for -> agreed on
VERSIONS = {
    "2025-11-25": "2025-11-25",
    "2024-11-05": "2024-11-05",
    "2019-01-01": "2025-11-25",
    "2026-07-28": "2025-11-25",  # has no handshake
}


@pytest.mark.parametrize("asked", VERSIONS)
async def test_a_version_is_negotiated(autojump_clock, asked: str):
    async with open_session(Tools().box(), begins=False) as client:
        await client.request("initialize", {**INITIALIZE, "protocolVersion": asked})
        result = (await client.next())["result"]
        assert (result["protocolVersion"], result["instructions"]) == (VERSIONS[asked], "Wait.")
        assert result["serverInfo"] == SERVER
        await client.notify("notifications/initialized", {})
        await client.request("ping", id_="p")
        assert await client.next() == {"jsonrpc": "2.0", "id": "p", "result": {}}
        await client.request("tools/list")
        assert len((await client.next())["result"]["tools"]) == 3


async def test_a_client_may_name_its_version_in_each_request(autojump_clock):
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    async with open_session(Tools().box(), begins=False) as client:
        await client.request("server/discover", {"_meta": meta})
        discovered = (await client.next())["result"]
        assert "2026-07-28" in discovered["supportedVersions"]
        await client.request("tools/list", {"_meta": meta})
        listed = (await client.next())["result"]
        for cached in (discovered, listed):
            assert (cached["ttlMs"], cached["cacheScope"]) == (FRESH_MS, "public")
        await client.request(
            "tools/call", {"name": "wait", "arguments": {"seconds": 1},
                           "_meta": {**meta, "progressToken": "t"}},
        )  # fmt: skip
        assert (await client.next())["params"]["progressToken"] == "t"
        assert (await client.next())["result"]["structuredContent"] == {"waited": True}
        await client.request("ping", {"_meta": meta})  # is gone in that revision
        assert error_of(await client.next()) == (1, -32601)
        meta["io.modelcontextprotocol/protocolVersion"] = "2019-01-01"
        await client.request("tools/list", {"_meta": meta})
        assert error_of(await client.next()) == (1, -32022)


WRONG: dict[bytes, tuple[Any, int]] = {
    b"{": (None, -32700),
    b"\xff": (None, -32700),
    b"[" * 100_000: (None, -32700),
    b'{"jsonrpc":"2.0","id":7}': (None, -32600),
    b'{"jsonrpc":"1.0","id":7,"method":"ping"}': (None, -32600),
    b'[{"jsonrpc":"2.0","id":7,"method":"ping"}]': (None, -32600),
    b"5": (None, -32600),
    b'{"jsonrpc":"2.0","id":7,"method":"resources/list"}': (7, -32601),
    b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":5}}': (7, -32602),
    b'{"jsonrpc":"2.0","id":7,"method":"' + b"x" * LINE_OCTETS_MAX: (None, -32600),
}


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("line", WRONG, ids=lambda line: repr(line[:50]))
async def test_a_wrong_line_is_an_error_and_the_session_goes_on(
    autojump_clock, line: bytes, begins: bool
):
    async with open_session(Tools().box(), begins=begins) as client:
        await client.send(line)
        assert error_of(await client.next()) == WRONG[line]
        await client.request("ping")
        assert (await client.next())["result"] == {}


async def test_a_notification_gets_no_answer(autojump_clock):
    async with open_session(Tools().box()) as client:
        for message in (
            b"", b" \r", {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}},
            {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "wait"}},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}},
        ) * CALLS_MAX:  # fmt: skip
            await client.send(message)
        await client.nothing()


async def test_a_failed_call_is_a_result_that_says_why(autojump_clock, caplog):
    async with open_session(Tools().box(elsewhere={"lists": "lists need a service"})) as client:
        assert await client.failure("fail", {}) == "the disk is full; make room"
        assert "The field seconds is a string" in await client.failure("wait", {"seconds": "x"})
        assert "Name one of wait, fail, crash" in await client.failure("verify", {})
        assert await client.failure("lists", {}) == "lists need a service"
        assert not caplog.records
        assert "bug in mailprobe" in await client.failure("crash", {})
        assert "ArithmeticError" in caplog.text


async def test_notes_are_said_with_each_result(autojump_clock):
    async with open_session(Tools().box(notes=["port 25 is closed"])) as client:
        await client.call("wait", {})
        content = (await client.next())["result"]["content"]
        assert [each["text"] for each in content] == ['{"waited":true}', "port 25 is closed"]


async def test_calls_run_side_by_side(autojump_clock):
    async with open_session(Tools().box()) as client:
        for seconds in (3, 1, 2):
            await client.call("wait", {"seconds": seconds}, id_=seconds)
        assert [(await client.next())["id"] for _ in range(3)] == [1, 2, 3]


async def test_a_cancelled_call_ends_and_gets_no_answer(autojump_clock):
    tools = Tools()
    async with open_session(tools.box()) as client:
        await client.call("wait", {"seconds": 1000}, id_="a")
        await client.call("wait", {"seconds": 2}, id_="b")
        await client.notify("notifications/cancelled", {"requestId": "a", "reason": "no more"})
        assert (await client.next())["id"] == "b"
        assert (tools.begun, tools.ended, tools.cancelled) == (2, 1, 1)
        await client.call("wait", {}, id_="a")  # its id is free again
        assert (await client.next())["id"] == "a"


async def test_progress_is_sent_on_request_and_increases(autojump_clock):
    async with open_session(Tools().box()) as client:
        await client.call("wait", {"seconds": 3}, token="t")
        for number in (1, 2, 3):
            reported = await client.next()
            assert reported["method"] == "notifications/progress"
            assert reported["params"] == {
                "progressToken": "t", "progress": number, "total": 3, "message": "seconds",
            }  # fmt: skip
        assert (await client.next())["id"] == 1


async def test_calls_are_limited_and_each_that_ends_makes_room(autojump_clock):
    """However a call ends: with a result, a failure, an error, or because it was cancelled."""
    tools = Tools()
    async with open_session(tools.box()) as client:
        for _ in range(2):
            for number in range(CALLS_MAX - 3):
                await client.call("wait", {"seconds": 5}, id_=number)
            await client.call("wait", {"seconds": 1000}, id_="cancelled")
            await client.call("wait", {"seconds": "x"}, id_="fails")
            await client.request("resources/list", id_="unknown")
            assert {(await client.next())["id"] for _ in range(2)} == {"fails", "unknown"}
            for name in ("more", "most"):
                await client.call("wait", {"seconds": 5}, id_=name)
            await client.call("wait", {}, id_="one too many")
            assert error_of(await client.next()) == ("one too many", -32600)
            await client.notify("notifications/cancelled", {"requestId": "cancelled"})
            for _ in range(CALLS_MAX - 1):
                assert "result" in await client.next()
    assert (tools.ended, tools.cancelled) == (2 * (CALLS_MAX - 1), 2)


async def test_a_client_that_reads_nothing_is_read_no_further(autojump_clock, protocol):
    """What it has not read is bounded: the answers, and the refusals of what is too many."""
    lines, source = trio.open_memory_channel[bytes](0)
    reading = trio.Event()
    written: list[bytes] = []

    async def sink(line: bytes) -> None:
        await reading.wait()
        written.append(line)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(protocol.serve_tools, Tools().box(), source, sink)
        async with lines:
            taken = 0
            with trio.move_on_after(60):
                while True:
                    await lines.send(PING)
                    taken += 1
            assert CALLS_MAX + protocol.UNSENT_MAX <= taken < CALLS_MAX + protocol.UNSENT_MAX + 5
            reading.set()
        await trio.testing.wait_all_tasks_blocked()
    assert len(written) == taken
    assert sum(b'"result":{}' in line for line in written) >= CALLS_MAX


async def test_at_the_end_of_the_input_calls_have_a_moment(autojump_clock, protocol):
    tools = Tools()
    async with open_session(tools.box()) as client:
        for number, seconds in enumerate((protocol.GRACE_S - 2, 1000)):
            await client.call("wait", {"seconds": seconds}, id_=number)
        await client.nothing()
        began = trio.current_time()
    assert (await client.next())["id"] == 0
    assert (tools.ended, tools.cancelled) == (1, 1)
    assert trio.current_time() - began == pytest.approx(protocol.GRACE_S)


@pytest.mark.parametrize("seconds", [0, 1000])
async def test_a_client_that_reads_nothing_does_not_keep_the_session(
    autojump_clock, seconds: int, protocol
):
    tools = Tools()
    lines, source = trio.open_memory_channel[bytes](9)
    for line in ({"id": 0, "method": "initialize", "params": INITIALIZE},
                 {"id": 1, "method": "tools/call",
                  "params": {"name": "wait", "arguments": {"seconds": seconds}}},
                 {"id": 2, "method": "ping"}, 5):  # fmt: skip
        sent = {"jsonrpc": "2.0", **line} if isinstance(line, dict) else line
        lines.send_nowait(json.dumps(sent).encode())
    lines.close()

    async def sink(line: bytes) -> None:
        if b'"id":0' not in line:
            await trio.sleep_forever()

    await protocol.serve_tools(tools.box(), source, sink)
    assert trio.current_time() == pytest.approx(protocol.GRACE_S)
    assert (tools.begun, tools.cancelled) == (1, seconds > 0)


async def test_a_client_that_is_gone_ends_the_session(autojump_clock, protocol):
    tools = Tools()

    async def sink(line: bytes) -> None:
        if b'"id":0' not in line:
            raise BrokenPipeError

    lines, source = trio.open_memory_channel[bytes](9)
    for id_, method, params in ((0, "initialize", INITIALIZE),
                                (1, "tools/call", {"name": "wait", "arguments": {"seconds": 99}}),
                                (2, "ping", {})):  # fmt: skip
        message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
        lines.send_nowait(json.dumps(message).encode())
    with pytest.raises(ExceptionGroup) as raised:
        await protocol.serve_tools(tools.box(), source, sink)
    assert isinstance(sole_exception(raised.value), BrokenPipeError)
    assert (trio.current_time(), tools.cancelled) == (0, tools.begun)
