"""Bugs of our own in what serves all questions: those under way may fail, the next are answered."""

import importlib
from typing import Any

import pytest
import trio

from mailprobe.engine import EngineSettings, open_answers, open_engine
from mailprobe.engine.dns import connections, endpoint, http1, http2
from mailprobe.engine.dns.doh import open_transport
from mailprobe.engine.dns.response import TransportFailed
from mailprobe.engine.smtp.dispatcher import ProbeDispatcher
from mailprobe.engine.testing.fake_network import open_fake_network
from mailprobe.engine.testing.mail_host import MailHost
from tests.engine.dns.conftest import authority, ca_file
from tests.engine.dns.test_doh import (
    QUESTION,
    exchange_many,
    open_server,
    quick_clocks,
)
from tests.fault_places import Fault, failing

__all__ = ["authority", "ca_file", "quick_clocks"]  # fixtures


# What fails, for a connection of each protocol.
BOTH = [
    (endpoint.DohEndpoint, "_connect"),
    (endpoint.DohEndpoint, "_add_connection"),
    (endpoint.DohEndpoint, "check_capacity"),
    (endpoint.DohEndpoint, "connection_closed"),
    (connections.DohConnection, "run"),
    (connections, "_read_response"),
]
TWO = [
    (connections.DohHttp2Connection, "_carry"),
    (connections.DohHttp2Connection, "_read"),
    (connections.DohHttp2Connection, "_write"),
    (connections.DohHttp2Connection, "_receive"),
    (connections.DohHttp2Connection, "_release"),
    (connections.DohHttp2Connection, "tick"),
    (http2.Http2Connection, "receive_data"),
]
ONE = [
    (connections.DohHttp1Connection, "_carry"),
    (connections.DohHttp1Connection, "_send"),
    (connections.DohHttp1Connection, "_release"),
    (connections.DohHttp1Connection, "tick"),
    (http1, "request"),
    (http1.ResponseReader, "receive_data"),
]
CONNECTIONS = [("h2", *place) for place in BOTH + TWO] + [
    ("http/1.1", *place) for place in BOTH + ONE
]


@pytest.mark.parametrize(("protocol", "owner", "name"), CONNECTIONS)
async def test_a_fault_in_a_connection_fails_its_questions_alone(
    authority, ca_file, quick_clocks, faults, protocol, owner, name
):
    """They fail as when the resolver does; whoever asks next gets a connection and an answer."""
    outcomes: list[bytes | TransportFailed] = []

    async def exchange(transport, url: str) -> None:
        with trio.move_on_after(5) as patience:  # a look-up has a clock of its own
            try:
                outcomes.append(await transport.exchange(url, QUESTION))
            except TransportFailed as failed:
                outcomes.append(failed)
        assert not patience.cancelled_caught or name == "run"  # which knows its questions

    async with open_server(authority, protocol) as server, open_transport(ca_file) as transport:
        with failing(owner, name) as has_failed:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(exchange, transport, server.url)
            await _cut_connections(transport)
            with trio.fail_after(5):
                while not has_failed():
                    await exchange(transport, server.url)
                    await trio.sleep(0.02)
        with trio.fail_after(5):
            while not faults:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert await exchange_many(transport, server, 20) == 20
    assert len(faults) == 1
    assert f"Fault: {name}" in faults[0]
    assert "Traceback" in faults[0]


async def _cut_connections(transport: Any) -> None:
    """As a resolver does now and then: what ends a connection has its turn."""
    for resolver in set(transport._endpoints.values()):
        for connection in list(resolver._connections):
            connection._end("idle")
    await trio.sleep(0.05)


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_queries_of_a_faulty_connection_fail_at_once_and_are_not_repeated(
    authority, ca_file, faults, protocol
):
    """Asked again they might have every connection fail."""
    async with open_server(authority, protocol) as server, open_transport(ca_file) as transport:
        await transport.exchange(server.url, QUESTION)
        asked = server.questions
        carrier = (
            (http2.Http2Connection, "receive_data")
            if protocol == "h2"
            else (http1.ResponseReader, "receive_data")
        )
        with failing(*carrier), pytest.raises(TransportFailed, match="a fault of ours"):
            await transport.exchange(server.url, QUESTION)
        assert server.questions == asked + 1
        assert await transport.exchange(server.url, QUESTION) == QUESTION
        assert server.connections == 2


async def test_a_failing_callback_does_not_end_the_connection(authority, ca_file, faults):
    async with open_server(authority, "h2") as server, open_transport(ca_file) as transport:

        def settle(reported: Any) -> None:
            raise Fault

        transport.begin(server.url, QUESTION, settle)
        assert await exchange_many(transport, server, 20) == 20
        assert server.connections == 1
    assert len(faults) == 1


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
async def test_the_end_gets_through_a_connection(authority, ca_file, protocol, end):
    with pytest.RaisesGroup(end, flatten_subgroups=True, allow_unwrapped=True):
        async with open_server(authority, protocol) as server, open_transport(ca_file) as transport:
            carrier: tuple[Any, str] = (
                (http2.Http2Connection, "receive_data")
                if protocol == "h2"
                else (http1.ResponseReader, "receive_data")
            )
            with failing(*carrier, error=end()):
                await transport.exchange(server.url, QUESTION)


# == tasks that last as long as the engine ======================================================

ENGINE = [
    ("mailprobe.engine.dns.deadlines.DeadlineClock._tick", "deliverable"),
    ("mailprobe.engine.dns.deadlines.DeadlineClock.run", "deliverable"),
    ("mailprobe.engine.smtp.dispatcher.ProbeDispatcher.keep_time", "deliverable"),
    ("mailprobe.engine.smtp.dispatcher.ProbeDispatcher._remove", "deliverable"),
    ("mailprobe.engine.stream.engine._compile", "deliverable"),
    ("mailprobe.engine.smtp.replies.rules.Rules.compile_remaining", "deliverable"),
]


def _owner(path: str) -> tuple[Any, str]:
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:-1]:
            owner = getattr(owner, part)
        return owner, parts[-1]
    raise AssertionError(path)


@pytest.mark.parametrize(("path", "status"), ENGINE)
async def test_a_fault_in_a_task_of_the_engine_ends_no_question(
    autojump_clock, faults, path, status
):
    owner, name = _owner(path)
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        network.add("other.test", MailHost())
        with failing(owner, name) as has_failed:
            async with open_engine(
                EngineSettings(), transport=network.transport, dial=network.dial
            ) as engine:
                await trio.sleep(1)
                for text in ("known@shop.test", "known@other.test"):
                    async with open_answers(engine, [text], account="a") as answers:
                        with trio.fail_after(5):
                            assert (await anext(answers)).verdict.status == status
                assert has_failed()
    assert len(faults) == 1


async def test_a_fault_at_a_questions_deadline_is_its_own(autojump_clock, faults):
    """The clock of all questions goes on, and even that one has its answer in time."""
    async with open_fake_network() as network:
        network.add("silent.test", MailHost(latency_s=60))
        async with open_engine(
            EngineSettings(), transport=network.transport, dial=network.dial
        ) as engine:
            with failing(ProbeDispatcher, "_expire") as has_failed:
                texts = [f"known{n}@silent.test" for n in range(5)]
                began = trio.current_time()
                async with open_answers(engine, texts, account="a") as answers:
                    statuses = [answer.verdict.failed_check async for answer in answers]
                assert trio.current_time() - began < 3.2
            assert statuses == ["smtp_timeout"] * 5
            assert has_failed() == bool(faults)
