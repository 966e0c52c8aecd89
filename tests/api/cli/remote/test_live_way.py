"""`clean --server --live`: a service's live socket as a source, on real sockets."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio_websocket import WebSocketRequest, serve_websocket

from mailprobe.api.cli.remote import runs
from mailprobe.api.cli.remote.source import open_remote_source
from mailprobe.api.errors import CommandError
from mailprobe.api.live.connection import CREDIT
from tests.api.live.test_hostile_clients import serving_live

RESULT = {
    "valid": True, "status": "deliverable", "confidence": 1.0, "failed_check": None,
    "disposable": False, "role": False, "free_provider": False, "catch_all": False,
    "smtp_blocked": False, "mx_found": True, "mx_host": "mx.test", "suggestion": None,
    "latency_ms": 5,
}  # fmt: skip


async def verified(url: str, key: str, texts: list[str]) -> dict[int, str]:
    """The statuses by position; each position once."""
    statuses: dict[int, str] = {}
    with trio.fail_after(30):
        async with (
            open_remote_source(url, key, "live") as source,
            source.open_answers(texts) as answers,
        ):
            async for answer in answers:
                assert answer.position not in statuses
                assert answer.verdict.email == texts[answer.position]
                statuses[answer.position] = answer.verdict.status
    return statuses


async def test_all_addresses_are_answered_in_any_number():
    texts = [f"{'ann' if number % 2 else 'nobody'}@friendly.test" for number in range(30)]
    texts += [f"a{number}@friendly.test" for number in range(CREDIT + 50)]
    texts += ["", "no address", "a" * 5_001, 'a"\\@friendly.test', "{}@friendly.test"]
    async with serving_live() as (shop, port):
        statuses = await verified(f"http://127.0.0.1:{port}", shop.key, texts)
        assert len(statuses) == len(texts)
        assert {statuses[1], statuses[0]} == {"deliverable", "undeliverable"}
        assert statuses[len(texts) - 3] == "invalid"
        units = sum(row.units for row in await shop.rows())
        assert units == len(texts) - 1  # one was too long to send


@pytest.mark.parametrize("key", ["sk_live_unknown", "nothing"])
async def test_a_refusal_shows_the_services_code_and_text(key):
    async with serving_live() as (_, port):
        with pytest.raises(CommandError, match="401 invalid_api_key: "):
            await verified(f"http://127.0.0.1:{port}", key, ["ann@friendly.test"])


async def test_a_refusal_on_the_way_leaves_what_was_answered():
    async with serving_live() as (shop, port):
        await shop.change(tier="free")
        texts = [f"a{number}@friendly.test" for number in range(3)]
        statuses = await verified(f"http://127.0.0.1:{port}", shop.key, texts)
        assert len(statuses) == 3
        await shop.use_up(497)
        with pytest.raises(CommandError, match="429 monthly_quota_exceeded"):
            await verified(f"http://127.0.0.1:{port}", shop.key, ["ann@friendly.test"])


Serve = Callable[[Any, int], Awaitable[None]]


@asynccontextmanager
async def fake_service(serve: Serve) -> AsyncIterator[str]:
    """A service whose sockets are served by `serve(socket, number)`."""
    count = 0

    async def handle(request: WebSocketRequest) -> None:
        nonlocal count
        count += 1
        await serve(await request.accept(), count)

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, handle, "127.0.0.1", 0, None)
        yield f"http://127.0.0.1:{server.port}"
        nursery.cancel_scope.cancel()


def line(type: str, **fields: Any) -> str:
    return json.dumps({"type": type, **fields})


async def test_a_broken_connection_costs_no_result_and_repeats_none(monkeypatch):
    monkeypatch.setattr(runs, "PAUSE_S", 0.01)

    async def serve(socket: Any, number: int) -> None:
        await socket.send_message(line("credit", more=100))
        sent = [json.loads(each) for each in (await socket.get_message()).splitlines()]
        for each in sent[: 2 if number < 3 else None]:
            await socket.send_message(line("result", **each, **RESULT))
        if number < 3:
            await trio.aclose_forcefully(socket._stream)

    async with fake_service(serve) as url:
        assert len(await verified(url, "sk", [f"a{number}@x.test" for number in range(9)])) == 9


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("what?", "other lines"),
        (line("result", email="eve@x.test", ref=0, **RESULT), "was not sent"),
        (line("result", email="a0@x.test", ref=7, **RESULT), "was not sent"),
    ],
)
async def test_a_service_that_talks_nonsense_ends_the_run(answer, words):
    async def serve(socket: Any, _: int) -> None:
        await socket.send_message(line("credit", more=100))
        await socket.get_message()
        await socket.send_message(answer)

    async with fake_service(serve) as url:
        with pytest.raises(CommandError, match=words):
            await verified(url, "sk", ["a0@x.test"])


async def test_a_service_that_is_not_there_ends_the_run(monkeypatch):
    monkeypatch.setattr(runs, "FIRST_TIMEOUT_S", 0.2)
    with pytest.raises(CommandError, match="cannot be reached"):
        await verified("http://127.0.0.1:9", "sk", ["ann@x.test"])
