"""A session of the protocol: versions, batches, cancellation, progress, and wrong lines."""

from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Struct

from mailprobe.api.cli.toolserver import session
from mailprobe.api.cli.toolserver.lines import LINE_OCTETS_MAX
from mailprobe.api.cli.toolserver.session import GRACE_S, Report, SessionTool, Toolbox
from mailprobe.api.errors import CommandError
from tests.api.cli.toolserver.client import open_session


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
                report(second + 1, taken.seconds, "seconds")
                report(second, taken.seconds, "less than before")
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
            name: SessionTool({"name": name}, Wait, getattr(self, name))
            for name in ("wait", "fail", "crash")
        }
        return Toolbox(tools, "Wait.", "https://docs.test", **more)


def error_of(message: Any) -> tuple[Any, int]:
    assert {"reason", "action", "docs"} <= set(message["error"]["data"])
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
    async with open_session(Tools().box()) as client:
        await client.request("initialize", {"protocolVersion": asked})
        result = (await client.next())["result"]
        assert (result["protocolVersion"], result["instructions"]) == (VERSIONS[asked], "Wait.")
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
    async with open_session(Tools().box()) as client:
        await client.request("server/discover", {"_meta": meta})
        assert "2026-07-28" in (await client.next())["result"]["supportedVersions"]
        await client.request("ping", {"_meta": meta})  # is gone in that revision
        assert error_of(await client.next()) == (1, -32601)
        meta["io.modelcontextprotocol/protocolVersion"] = "2019-01-01"
        await client.request("tools/list", {"_meta": meta})
        assert error_of(await client.next()) == (1, -32022)


WRONG: dict[bytes, tuple[Any, int]] = {
    b"{": (None, -32700),
    b"\xff": (None, -32700),
    b'{"jsonrpc":"2.0","id":7}': (7, -32600),
    b'{"jsonrpc":"1.0","id":7,"method":"ping"}': (7, -32600),
    b'{"jsonrpc":"2.0","id":[],"method":"ping"}': (None, -32600),
    b'{"jsonrpc":"2.0","id":7,"method":"resources/list"}': (7, -32601),
    b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":5}}': (7, -32602),
    b"5": (None, -32600),
    b"[" * 100_000: (None, -32600),
    b'{"jsonrpc":"2.0","id":7,"method":"' + b"x" * LINE_OCTETS_MAX: (None, -32600),
}


@pytest.mark.parametrize("line", WRONG, ids=lambda line: repr(line[:50]))
async def test_a_wrong_line_is_an_error_and_the_session_goes_on(autojump_clock, line: bytes):
    async with open_session(Tools().box()) as client:
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
        ):  # fmt: skip
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


async def test_an_id_is_used_once_at_a_time_and_calls_are_limited(autojump_clock, monkeypatch):
    monkeypatch.setattr(session, "CALLS_MAX", 2)
    async with open_session(Tools().box()) as client:
        await client.call("wait", {"seconds": 5}, id_=1)
        await client.call("wait", {}, id_=1)
        assert error_of(await client.next()) == (1, -32600)
        await client.call("wait", {"seconds": 5}, id_=2)
        await client.call("wait", {}, id_=3)
        assert error_of(await client.next()) == (3, -32600)


async def test_an_array_is_taken_in_the_revision_that_has_them(autojump_clock):
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "wait", "arguments": {"seconds": 2}}}  # fmt: skip
    notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    async with open_session(Tools().box()) as client:
        await client.send([ping])
        assert error_of(await client.next()) == (None, -32600)
        await client.request("initialize", {"protocolVersion": "2025-03-26"})
        await client.next()
        await client.send([call, notice, ping, 5])
        replies = await client.next()
        assert [each["id"] for each in replies] == [1, None, 2]
        await client.send([notice])
        await client.nothing()
        for wrong, code in ((b"[]", -32600), (b"[{]", -32700), ([ping] * 101, -32600)):
            await client.send(wrong)
            assert error_of(await client.next()) == (None, code)


async def test_at_the_end_of_the_input_calls_have_a_moment(autojump_clock):
    tools = Tools()
    async with open_session(tools.box()) as client:
        for number, seconds in enumerate((GRACE_S - 2, 1000)):
            await client.call("wait", {"seconds": seconds}, id_=number)
        await client.nothing()
        began = trio.current_time()
    assert (tools.ended, tools.cancelled) == (1, 1)
    assert trio.current_time() - began == pytest.approx(GRACE_S)


async def test_a_client_that_reads_nothing_does_not_keep_the_session(autojump_clock):
    lines = [b'{"jsonrpc":"2.0","id":1,"method":"ping"}'] * 3

    class Source:
        async def receive(self) -> bytes | None:
            return lines.pop() if lines else None

    async def sink(line: bytes) -> None:
        await trio.sleep_forever()

    await session.ToolSession(Tools().box(), Source(), sink).run()
    assert trio.current_time() == pytest.approx(GRACE_S)
