"""Bugs of our own in what serves all questions: those under way may fail, the next are answered."""

import importlib
import inspect
from functools import partial
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import EngineSettings, open_answers, open_engine
from mailprobe.engine.dns import connection, endpoint, http1, http2
from mailprobe.engine.dns.doh import open_transport
from mailprobe.engine.dns.response import TransportFailed
from mailprobe.engine.smtp.probing import Probing
from tests.engine.dns.conftest import authority, ca_file
from tests.engine.dns.test_doh import (
    QUESTION,
    Server,
    exchange_many,
    open_server,
    quick_clocks,
)
from tests.engine.fault_places import Fault, Place, failing, places_reached

__all__ = ["authority", "ca_file", "quick_clocks"]  # fixtures


PARTS = 8  # of the places: each is a test
REACHED_MIN = 25  # functions that the tasks of a connection call
COMMON = [endpoint.Endpoint, connection.DohConnection, connection.Target, connection]
OWNERS: dict[str, list[Any]] = {
    "h2": [*COMMON, http2.Http2Connection],
    "http/1.1": [*COMMON, http1, http1.Http1Connection, http1.ResponseReader],
}
# Called by a clock, so not always while places are looked for.
TICKS = [Place(connection.DohConnection, "check_deadlines")]
HOLDS_ALL = {"run"}  # knows its questions


def is_of_a_connection() -> bool:
    """Is this called by a task of the endpoint, that has begun its work, and by no test?"""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    assert frame.f_back.f_back is not None
    begins = frame.f_back.f_back.f_globals["__name__"] == "mailprobe.engine.background"
    return not begins and trio.lowlevel.current_task().name.startswith("mailprobe.")


async def exchange_and_cut(server: Server, transport: Any) -> list[bytes | Exception]:
    """Some questions at once, one after the server has cut their connections, and what came."""
    outcomes: list[bytes | Exception] = []

    async def exchange() -> None:
        with trio.move_on_after(3) as patience:  # a look-up has a clock of its own
            try:
                outcomes.append(await transport.exchange(server.url, QUESTION))
            except TransportFailed as failed:
                outcomes.append(failed)
        if patience.cancelled_caught:
            outcomes.append(TimeoutError())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(exchange)
    await server.cut()
    await trio.sleep(0.05)  # what ends a connection has its turn
    await exchange()
    return outcomes


_found: dict[str, list[Place]] = {}  # of this process, by protocol


async def found(protocol: str, authority: Any, ca_file: str) -> list[Place]:
    """The functions that a connection of this protocol calls."""
    if protocol not in _found:
        async with open_server(authority, protocol) as server, open_transport(ca_file) as transport:
            act = partial(exchange_and_cut, server, transport)
            reached = await places_reached(OWNERS[protocol], act, when=is_of_a_connection)
        reached.update({str(place): place for place in TICKS})
        _found[protocol] = [*reached.values()]
    assert len(_found[protocol]) >= REACHED_MIN
    return _found[protocol]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("protocol", OWNERS)
async def test_a_fault_in_a_connection_fails_its_questions_alone(
    authority, ca_file, quick_clocks, faults, protocol, part
):
    """They fail as when the resolver does; whoever asks next gets a connection and an answer."""
    for place in (await found(protocol, authority, ca_file))[part::PARTS]:
        faults.clear()
        outcomes: list[bytes | Exception] = []
        async with open_server(authority, protocol) as server, open_transport(ca_file) as transport:
            with failing(*place, when=is_of_a_connection) as has_failed, trio.fail_after(20):
                while not has_failed():
                    outcomes += await exchange_and_cut(server, transport)
            with trio.fail_after(5):
                while not faults:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                assert await exchange_many(transport, server, 20) == 20, place
        lost = sum(isinstance(each, TimeoutError) for each in outcomes)
        if place.name not in HOLDS_ALL:
            assert not lost, place
        [fault] = faults
        assert f"Fault: {place.name}" in fault, place
        assert "Traceback" in fault


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
    ("mailprobe.engine.dns.deadlines.DeadlineClock.tick", "deliverable"),
    ("mailprobe.engine.dns.deadlines.DeadlineClock.run", "deliverable"),
    ("mailprobe.engine.smtp.turn.Deadlines.keep", "deliverable"),
    ("mailprobe.engine.smtp.turn.Deadlines.end", "deliverable"),
    ("mailprobe.engine.stream.engine.compile_soon", "deliverable"),
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
            with failing(Probing, "expire") as has_failed:
                texts = [f"known{n}@silent.test" for n in range(5)]
                began = trio.current_time()
                async with open_answers(engine, texts, account="a") as answers:
                    statuses = [answer.verdict.failed_check async for answer in answers]
                assert trio.current_time() - began < 3.2
            assert statuses == ["smtp_timeout"] * 5
            assert has_failed() == bool(faults)
