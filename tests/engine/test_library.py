"""The library, without an event loop, on asyncio and on trio: one engine, the same verdicts.

The engine's thread runs on the real clock: nothing here waits for a deadline.
"""

import asyncio
import inspect
import threading
import time
import typing
from collections.abc import Awaitable, Callable, Iterator
from itertools import count

import msgspec
import pytest
import trio

import mailprobe
from mailprobe import EngineSettings, FullVerdict, Verifier, VerifierClosedError, averify, verify
from mailprobe.engine import HeloNameWarning, engine_calls
from mailprobe.engine.library import AsyncVerdictStream, AsyncVerifier, VerdictStream
from mailprobe.engine.stream import scheduler
from tests.engine.library_world import EngineFailure, LibraryWorld

HELO = "probe.example.org"
TEXTS = ["known1@shop.test", "no address", "gone@shop.test", "known1@shop.test", "ann@none.test"]
FOUND = [  # status, reason, blame, light
    ("deliverable", "accepted", None, "GREEN_LIGHT"),
    ("invalid", "syntax", "address", "RED_LIGHT"),
    ("undeliverable", "no_mailbox", "address", "RED_LIGHT"),
    ("deliverable", "accepted", None, "GREEN_LIGHT"),
    ("invalid", "no_mx", "address", "RED_LIGHT"),
]
SILENT = "known1@silent.test"
CLOSED_S = 1.0  # what the library promises for its thread
TIMES = 5  # as long on a busy machine
LOOPS: dict[str, Callable[[Callable[[], Awaitable[None]]], None]] = {
    "asyncio": lambda main: asyncio.run(main()),  # type: ignore[arg-type]
    "trio": trio.run,
}
in_each_loop = pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[LibraryWorld]:
    world = LibraryWorld()
    monkeypatch.setattr(engine_calls, "open_engine", world.open_engine)
    yield world
    for thread in threading.enumerate():
        if thread.name == "mailprobe-engine":
            thread.join(CLOSED_S * TIMES)
            assert not thread.is_alive()


def facts(verdict: FullVerdict) -> tuple[object, ...]:
    return verdict.status, verdict.reason, verdict.blame, verdict.light


# -- verdicts --------------------------------------------------------------------------------


def test_without_an_event_loop():
    with Verifier(helo_name=HELO) as verifier:
        assert facts(verifier.verify(TEXTS[0])) == FOUND[0]
        assert list(map(facts, verifier.batch(iter(TEXTS)))) == FOUND
        streamed = sorted((v.position, v.email, facts(v)) for v in verifier.stream(TEXTS))
        assert streamed == list(zip(count(), TEXTS, FOUND, strict=False))
        assert verifier.batch([]) == []


@in_each_loop
def test_in_an_event_loop(run):
    async def main() -> None:
        async with Verifier(helo_name=HELO) as verifier:
            assert facts(await verifier.verify(TEXTS[0])) == FOUND[0]
            assert list(map(facts, await verifier.batch(iter(TEXTS)))) == FOUND
            streamed = sorted([(v.position, facts(v)) async for v in verifier.stream(TEXTS)])
            assert streamed == list(zip(count(), FOUND, strict=False))
            assert await verifier.batch([]) == []

    run(main)


@in_each_loop
def test_one_address_needs_no_block(run, world):
    async def main() -> None:
        assert (
            facts(await averify(TEXTS[0], EngineSettings(helo_name=HELO), read_s=0.5)) == FOUND[0]
        )

    run(main)
    assert facts(verify(TEXTS[0], helo_name=HELO)) == FOUND[0]
    assert world.settings == [
        EngineSettings(helo_name=HELO, read_s=0.5),
        EngineSettings(helo_name=HELO),
    ]


def test_a_full_verdict_is_a_verdict_that_can_be_encoded():
    verdict = verify(TEXTS[1], helo_name=HELO)
    row = msgspec.json.decode(msgspec.json.encode(verdict))
    assert list(row)[-4:] == ["reason", "blame", "light", "position"]
    assert isinstance(verdict, mailprobe.Verdict)


def test_several_threads_may_use_one_verifier():
    found: list[object] = []
    with Verifier(helo_name=HELO) as verifier:
        threads = [
            threading.Thread(target=lambda: found.append(list(map(facts, verifier.batch(TEXTS)))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [FOUND] * 8


# -- back-pressure ---------------------------------------------------------------------------

# in the reader's hand, waiting for it, ready in the engine, and one step of submission
AHEAD_MAX = 2 * (engine_calls.UNREAD_MAX + scheduler.UNREAD_MAX) + scheduler.HUNGRY_SUBMIT_STEP


def test_an_endless_stream_is_read_only_as_fast_as_its_verdicts(world):
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "no address"

    with Verifier(helo_name=HELO) as verifier:
        stream = verifier.stream(texts())
        for read in (1, 5_000):
            for _ in range(read):
                next(stream)
            world.probes_in_thread()  # all tasks wait
            assert taken <= read + 1 + AHEAD_MAX
        stream.close()
        assert list(stream) == []


@in_each_loop
def test_a_reader_leaves_others_their_turn(run):
    """Answers that are always ready do not keep the event loop."""

    async def main() -> None:
        async with Verifier(helo_name=HELO) as verifier:
            stream = verifier.stream("no address" for _ in count())
            neighbour = verifier.verify(TEXTS[0])
            if run is LOOPS["asyncio"]:
                task = asyncio.ensure_future(neighbour)
                while not task.done():
                    await anext(stream)
                return
            async with trio.open_nursery() as nursery:

                async def end_both() -> None:
                    await neighbour
                    nursery.cancel_scope.cancel()

                nursery.start_soon(end_both)
                async for _ in stream:
                    pass

    run(main)


# -- cancellation ----------------------------------------------------------------------------


def test_a_cancelled_task_of_asyncio_abandons_its_probes_and_never_blocks_the_loop(world):
    async def main() -> None:
        async with Verifier(helo_name=HELO) as verifier:
            waiting = asyncio.ensure_future(verifier.verify(SILENT))
            while not await asyncio.to_thread(world.probes_in_thread):
                pass
            assert facts(await verifier.verify(TEXTS[0])) == FOUND[0]
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await asyncio.to_thread(world.probes_in_thread) == 0
            assert facts(await verifier.verify(TEXTS[0])) == FOUND[0]

    asyncio.run(main())


async def test_a_cancelled_task_of_trio_abandons_its_probes(world):
    async with Verifier(helo_name=HELO) as verifier, trio.open_nursery() as nursery:
        nursery.start_soon(verifier.batch, [SILENT, TEXTS[0]])
        assert await world.probes() == 1
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            assert await world.probes() == 0
            assert facts(await verifier.verify(TEXTS[0])) == FOUND[0]


def read_one(stream: VerdictStream) -> None:
    for _ in stream:
        break


def test_a_stream_that_is_dropped_abandons_its_probes(world):
    with Verifier(helo_name=HELO) as verifier:
        read_one(verifier.stream([SILENT, "no address"]))
        assert world.probes_in_thread() == 0


@pytest.mark.parametrize("is_waiting", [True, False])
def test_leaving_the_block_ends_the_thread_and_its_readers(world, is_waiting):
    """A reader in another thread is not left waiting."""
    raised: list[BaseException] = []

    def read(stream: VerdictStream) -> None:
        try:
            list(stream)
        except VerifierClosedError as error:
            raised.append(error)

    with Verifier(helo_name=HELO) as verifier:
        stream = verifier.stream([SILENT, TEXTS[0]])
        reader = threading.Thread(target=read, args=(stream,))
        if is_waiting:
            reader.start()
        while not world.probes_in_thread():
            pass
        began = time.monotonic()
    assert time.monotonic() - began < CLOSED_S * TIMES
    if not is_waiting:
        reader.start()
    reader.join()
    assert len(raised) == 1
    with pytest.raises(VerifierClosedError):
        verifier.verify(TEXTS[0])


@in_each_loop
def test_after_its_block_a_verifier_is_closed_and_can_be_entered_again(run):
    async def main() -> None:
        verifier = Verifier(helo_name=HELO)
        async with verifier as opened:
            stream = opened.stream([SILENT])
            with pytest.raises(RuntimeError, match="open already"):
                await verifier.__aenter__()
        for late in (stream.__anext__(), opened.verify(TEXTS[0])):
            with pytest.raises(VerifierClosedError):
                await late
        async with verifier as opened:
            assert facts(await opened.verify(TEXTS[0])) == FOUND[0]

    run(main)


def test_a_task_that_is_cancelled_while_it_opens_leaves_no_thread():
    async def main() -> None:
        opening = asyncio.ensure_future(Verifier(helo_name=HELO).__aenter__())
        await asyncio.sleep(0)  # it has begun
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())  # the fixture looks for the thread


# -- failures --------------------------------------------------------------------------------


def broken_texts() -> Iterator[str]:
    yield TEXTS[0]
    raise KeyError("no more")


def test_an_error_of_the_texts_reaches_the_reader_and_no_other_call():
    with Verifier(helo_name=HELO) as verifier:
        with pytest.raises(KeyError, match="no more"):
            list(verifier.stream(broken_texts()))
        with pytest.raises(TypeError):
            verifier.stream("ann@example.org")
        assert facts(verifier.verify(TEXTS[0])) == FOUND[0]


@in_each_loop
def test_an_error_of_the_texts_reaches_the_task(run):
    async def main() -> None:
        async with Verifier(helo_name=HELO) as verifier:
            with pytest.raises(KeyError, match="no more"):
                async for _ in verifier.stream(broken_texts()):
                    pass
            assert facts(await verifier.verify(TEXTS[0])) == FOUND[0]

    run(main)


@in_each_loop
def test_an_engine_that_cannot_be_opened_is_an_exception_where_the_block_begins(run, world):
    world.open_error = OSError("no such CA file")

    async def main() -> None:
        with pytest.raises(OSError, match="no such CA file"):
            await averify(TEXTS[0], helo_name=HELO)

    run(main)
    with pytest.raises(OSError, match="no such CA file"):
        verify(TEXTS[0], helo_name=HELO)


def test_a_failure_of_the_engine_reaches_its_readers(monkeypatch):
    async def read(world: LibraryWorld) -> None:
        async with Verifier(helo_name=HELO) as verifier:
            stream = verifier.stream([SILENT])
            world.fail_in_thread()
            await anext(stream)

    def run_asyncio(world: LibraryWorld) -> None:
        asyncio.run(read(world))

    def run_trio(world: LibraryWorld) -> None:
        trio.run(read, world)

    def run_blocking(world: LibraryWorld) -> None:
        with Verifier(helo_name=HELO) as verifier:
            stream = verifier.stream([SILENT])
            world.fail_in_thread()
            next(stream)

    def run_idle(world: LibraryWorld) -> None:
        with Verifier(helo_name=HELO):
            world.fail_in_thread()

    for use in (run_asyncio, run_trio, run_blocking, run_idle):
        world = LibraryWorld()
        monkeypatch.setattr(engine_calls, "open_engine", world.open_engine)
        with pytest.raises(EngineFailure):
            use(world)


@in_each_loop
def test_an_exception_of_the_block_is_raised_unchanged(run):
    async def main() -> None:
        with pytest.raises(KeyError):
            async with Verifier(helo_name=HELO):
                raise KeyError

    run(main)


@in_each_loop
def test_blocking_calls_are_refused_in_an_event_loop(run):
    async def main() -> None:
        with pytest.raises(RuntimeError, match="averify"):
            verify(TEXTS[0], helo_name=HELO)

    run(main)


# -- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["localhost", "localhost.localdomain", "laptop", "laptop."])
def test_a_local_helo_name_is_warned_of(name):
    with pytest.warns(HeloNameWarning, match="full public name") as found:
        Verifier(helo_name=name)
    assert found[0].filename == __file__


def line_of_this_file() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.mark.parametrize("how", ["verify", "asyncio.run", "await", "trio.run", "trio await"])
def test_the_warning_points_at_the_line_of_the_caller(how: str) -> None:
    """A line of the library would be reported once for all callers, and would help none."""
    lines: list[int] = []

    async def main() -> None:
        lines.append(line_of_this_file() + 1)
        await averify(TEXTS[1])

    def call() -> None:
        if how == "verify":
            lines.append(line_of_this_file() + 1)
            verify(TEXTS[1])
        elif how == "asyncio.run":
            lines.append(line_of_this_file() + 1)
            asyncio.run(averify(TEXTS[1]))
        elif how == "trio.run":
            lines.append(line_of_this_file() + 1)
            trio.run(averify, TEXTS[1])
        else:
            (trio.run if how == "trio await" else LOOPS["asyncio"])(main)

    with pytest.warns(HeloNameWarning) as found:
        call()
    assert [(each.filename, each.lineno) for each in found] == [(__file__, lines[0])]


@in_each_loop
def test_an_address_is_taken_as_email(run) -> None:
    assert facts(verify(email=TEXTS[0], helo_name=HELO)) == FOUND[0]
    with Verifier(helo_name=HELO) as verifier:
        assert facts(verifier.verify(email=TEXTS[1])) == FOUND[1]

    async def main() -> None:
        assert facts(await averify(email=TEXTS[0], helo_name=HELO)) == FOUND[0]
        async with Verifier(helo_name=HELO) as verifier:
            assert facts(await verifier.verify(email=TEXTS[1])) == FOUND[1]

    run(main)


def test_settings_come_from_the_environment_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAILPROBE_SMTP_HELO", HELO)
    assert mailprobe.EngineSettings.from_environment().helo_name == HELO
    assert EngineSettings().helo_name != HELO


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError):
        Verifier(helo="probe.example.org")


def test_the_library_is_typed():
    hints = typing.get_type_hints(AsyncVerifier.stream)
    assert hints["return"] is AsyncVerdictStream
