"""The body of a stream: each line is sent as soon as its verdict is there."""

import json

import pytest
import trio

from mailprobe.api.operations.operation import StreamedLines
from mailprobe.api.operations.verify import encoder_of_lines
from mailprobe.api.quota.charge import Verifications, charge
from mailprobe.api.rest.app import NdjsonBody
from mailprobe.bench.world.fake_network import FakeNetwork
from mailprobe.bench.world.mail_host import MailHost
from tests.api.service_fixture import RunningService


def add_hosts(network: FakeNetwork) -> None:
    for name, latency_s in (("one", 0.1), ("two", 0.2), ("three", 0.3)):
        network.add(f"{name}.test", MailHost(latency_s=latency_s))


async def test_a_line_goes_out_as_soon_as_its_verdict_is_there(
    autojump_clock, shop: RunningService
):
    add_hosts(shop.world)
    began = trio.current_time()
    got = await shop.stream("known@three.test", "known@one.test", "known@two.test", "bad")
    when = [(json.loads(line)["email"], at - began) for at, line in got.chunks]
    assert [email for email, _ in when] == [
        "bad", "known@one.test", "known@two.test", "known@three.test",
    ]  # fmt: skip
    assert [at for _, at in when] == pytest.approx([0, 0.3, 0.6, 0.9], abs=0.01)


async def test_lines_that_are_ready_together_are_sent_together(
    autojump_clock, shop: RunningService
):
    got = await shop.stream(*[f"bad {n}" for n in range(50)])
    assert len(got.lines) == 50
    assert len(got.chunks) == 1


async def test_lines_are_whole_objects_and_each_has_its_end(autojump_clock, shop: RunningService):
    got = await shop.stream("bücher@friendly.test", "a\n@x.test", "known@friendly.test")
    assert got.headers["content-type"] == "application/x-ndjson"
    assert "content-length" not in got.headers
    assert got.octets.endswith(b"\n")
    lines = got.octets.decode().split("\n")
    assert len(lines) == 4
    assert lines[-1] == ""
    assert all(len(json.loads(line)) == 14 for line in lines[:-1])


async def test_nothing_is_held_back_by_a_proxy(autojump_clock, shop: RunningService):
    assert (await shop.stream("bad")).headers["x-accel-buffering"] == "no"


async def test_a_long_stream_is_not_cut(autojump_clock, shop: RunningService):
    """The framework's own limit is a minute."""
    quota, caller = shop.service.quota, await shop.caller()
    lines = StreamedLines(
        charge(quota, caller, Verifications("stream", ["bad", "a b"], in_parts=True)),
        encoder_of_lines(),
    )
    async with NdjsonBody(lines) as body:
        assert (await anext(body)).count(b"\n") == 2
        await trio.sleep(120)
        with pytest.raises(StopAsyncIteration):
            await anext(body)
    got = await shop.stream("known@slow.test")
    assert len(got.lines) == 1


async def test_the_end_is_said_with_the_last_line(autojump_clock, shop: RunningService):
    """A separate end would cost one more packet per request."""
    add_hosts(shop.world)
    messages = []

    async def see(scope, receive, send):
        async def note(message):
            messages.append((bool(message.get("body")), message.get("more_body")))
            await send(message)

        await app(scope, receive, note)

    app, shop.app = shop.app, see
    await shop.stream("known@one.test", "known@two.test")
    assert messages == [(False, None), (True, True), (True, False)]


async def test_a_crash_of_the_sender_closes_the_stream(autojump_clock, shop: RunningService):
    quota, caller = shop.service.quota, await shop.caller()
    lines = StreamedLines(
        charge(quota, caller, Verifications("stream", ["bad", "known@slow.test"], in_parts=True)),
        encoder_of_lines(),
    )

    async def send():
        async with NdjsonBody(lines) as body:
            await anext(body)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await send()
    await trio.sleep(1)
    assert shop.service.capacity.addresses == 0
    assert (await shop.store.ledger(caller)).reserved == 0


async def test_an_outage_that_lasts_cuts_a_stream_and_is_no_crash(
    autojump_clock, shop: RunningService
):
    shop.store.away = {"settle"}
    got = await shop.stream("ann@friendly.test", "bob@friendly.test")
    assert (got.status, got.octets) == (200, b"")
