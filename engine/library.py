"""The library: verifies addresses from a script, from asyncio and from trio.

    from mailprobe import Verifier, averify, verify

    verify("ann@example.org").light

    async with Verifier(helo_name="probe.example.org") as verifier:
        async for verdict in verifier.stream(emails):
            ...

On trio, the engine runs in the caller's event loop. Without one and on asyncio it runs on trio in a
thread of its own: see engine_calls.
"""

import asyncio
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import msgspec
import trio

from .engine_calls import (
    EngineCalls,
    EngineThread,
    open_calls_here,
)
from .settings import EngineSettings
from .stream.answers import Answer
from .verdict import Blame, Light, Reason, Verdict, light_of

PASSED_OVER = frozenset({"mailprobe", "asyncio", "trio", "outcome"})  # frames of no caller


class HeloNameWarning(UserWarning):
    """`helo_name` is a local name: some mail hosts refuse it, and answers become `unknown`."""


class FullVerdict(Verdict, frozen=True, gc=False):
    """A verdict with its reason, who is to blame, and what to do with the address.

    `blame` is None where nothing went wrong. `position` counts the texts of the call from 0.
    """

    reason: Reason
    blame: Blame | None
    light: Light
    position: int


def _full(answer: Answer) -> FullVerdict:
    verdict = answer.verdict
    fields = msgspec.structs.astuple(verdict)
    return FullVerdict(*fields, *answer.cause, light_of(verdict), answer.position)  # type: ignore[call-arg]


# -- without an event loop -------------------------------------------------------------------


class VerdictStream(Iterator[FullVerdict]):
    """Verdicts in completion order, for one reader. Closing or dropping it cancels the rest."""

    def __init__(self, calls: EngineCalls, texts: Iterable[str], *, is_list: bool) -> None:
        self._taken: Iterator[Answer] = iter(())
        self._arrived = threading.Event()
        self._call = calls.start(texts, self._arrived.set, is_list=is_list)

    def __next__(self) -> FullVerdict:
        """Wait for the next verdict. Raises what the texts raised, and VerifierClosedError."""
        for answer in self._taken:
            return _full(answer)
        while (taken := self._call.read_ready()) is None:
            self._arrived.wait()
            self._arrived.clear()
        self._taken = iter(taken)
        for answer in self._taken:
            return _full(answer)
        raise StopIteration

    def close(self) -> None:
        """Cancel what is unfinished."""
        self._taken = iter(())
        self._call.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):  # `start()` may have raised
            self.close()


class BlockingVerifier:
    """What `with Verifier()` gives. Its methods may be called from several threads."""

    def __init__(self, calls: EngineCalls) -> None:
        self._calls = calls

    def verify(self, email: str) -> FullVerdict:
        """Verify one address. Takes about 3 s at most once its mail host is known."""
        with VerdictStream(self._calls, (email,), is_list=False) as stream:
            return next(stream)

    def batch(self, emails: Iterable[str]) -> list[FullVerdict]:
        """Verify all texts; return the verdicts in their order."""
        with self.stream(list(emails)) as stream:
            return sorted(stream, key=_position)

    def stream(self, emails: Iterable[str]) -> VerdictStream:
        """Verify the texts; iterate over the verdicts in completion order.

        `emails` is read in the engine's thread, as fast as the verdicts are read, and must not
        wait for anything. An address of a list waits, without a limit, until its mail host has a
        connection free for it.
        """
        return VerdictStream(self._calls, emails, is_list=True)


# -- in an event loop ------------------------------------------------------------------------


class _Signal(Protocol):
    """Wakes the reader of a stream, in its own event loop."""

    def set(self) -> None: ...
    async def wait(self) -> None: ...
    async def checkpoint(self) -> None: ...


class _TrioSignal:
    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = trio.Event()

    async def checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()


class _AsyncioSignal:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with suppress(RuntimeError):  # the reader's loop is closed
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)


class AsyncVerdictStream(AsyncIterator[FullVerdict]):
    """Verdicts in completion order, for one reader.

    Closing or dropping it cancels the rest, and so does a reader that is cancelled while it waits.
    """

    def __init__(
        self, calls: EngineCalls, texts: Iterable[str], signal: _Signal, *, is_list: bool
    ) -> None:
        self._taken: Iterator[Answer] = iter(())
        self._signal = signal
        self._call = calls.start(texts, signal.set, is_list=is_list)

    async def __anext__(self) -> FullVerdict:
        """Wait for the next verdict. Raises what the texts raised, and VerifierClosedError."""
        for answer in self._taken:
            return _full(answer)
        try:
            if (taken := self._call.read_ready()) is not None:
                await self._signal.checkpoint()  # answers may come faster than they are read
            while taken is None:
                await self._signal.wait()
                taken = self._call.read_ready()
        except BaseException:
            self.close()
            raise
        self._taken = iter(taken)
        for answer in self._taken:
            return _full(answer)
        raise StopAsyncIteration

    def close(self) -> None:
        """Cancel what is unfinished. Does not wait for it."""
        self._taken = iter(())
        self._call.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):  # `start()` may have raised
            self.close()


class AsyncVerifier:
    """What `async with Verifier()` gives. Its methods may be called by several tasks."""

    def __init__(self, calls: EngineCalls, signal: Callable[[], _Signal]) -> None:
        self._calls = calls
        self._signal = signal

    async def verify(self, email: str) -> FullVerdict:
        """Verify one address. Takes about 3 s at most once its mail host is known."""
        async with AsyncVerdictStream(
            self._calls, (email,), self._signal(), is_list=False
        ) as stream:
            return await anext(stream)

    async def batch(self, emails: Iterable[str]) -> list[FullVerdict]:
        """Verify all texts; return the verdicts in their order."""
        async with self.stream(list(emails)) as stream:
            return sorted([verdict async for verdict in stream], key=_position)

    def stream(self, emails: Iterable[str]) -> AsyncVerdictStream:
        """Verify the texts; iterate over the verdicts in completion order.

        `emails` is read in the engine's event loop, as fast as the verdicts are read, and must not
        wait for anything. An address of a list waits, without a limit, until its mail host has a
        connection free for it.
        """
        return AsyncVerdictStream(self._calls, emails, self._signal(), is_list=True)


def _position(verdict: FullVerdict) -> int:
    return verdict.position


# -- what users call -------------------------------------------------------------------------


class Verifier:
    """An engine as a block: `with` for code without an event loop, `async with` on asyncio or trio.

    `settings` are the engine's, and keywords change single fields: `Verifier(helo_name=...)`.
    The environment is not read. One block at a time; it can be entered again. Warns with
    HeloNameWarning if no mail host can resolve `helo_name`. Raises TypeError for an unknown field.
    """

    def __init__(self, settings: EngineSettings | None = None, **changes: Any) -> None:
        self.settings = replace(settings or EngineSettings(), **changes)
        if self.settings.helo_is_local:
            warning = (
                f"helo_name={self.settings.helo_name!r} is a local name, which some mail hosts "
                "refuse; set it to this machine's full public name"
            )
            warnings.warn(warning, HeloNameWarning, stacklevel=_level_of_caller())
        self._thread: EngineThread | None = None
        self._block: AbstractAsyncContextManager[EngineCalls] | None = None  # on trio

    def __enter__(self) -> BlockingVerifier:
        """Open the engine in its thread. Raises RuntimeError in an event loop, which it would block."""
        if _in_event_loop():
            raise RuntimeError("this would block the event loop: use `async with` or averify()")
        thread = self._start_thread()
        try:
            calls = thread.opened.result()
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        return BlockingVerifier(calls)

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, _: object
    ) -> None:
        """Cancel what is unfinished and close the engine, within a second."""
        error = self._stop_thread().ended.result()
        if error is not None and raised is None:
            raise error

    async def __aenter__(self) -> AsyncVerifier:
        if trio.lowlevel.in_trio_task():
            self._check_closed()
            block = open_calls_here(self.settings)
            calls = await block.__aenter__()
            self._block = block
            return AsyncVerifier(calls, _TrioSignal)
        thread = self._start_thread()
        try:
            calls = await asyncio.wrap_future(thread.opened)
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        return AsyncVerifier(calls, _AsyncioSignal)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel what is unfinished and close the engine; outside trio within a second."""
        if self._block is not None:
            block, self._block = self._block, None
            await block.__aexit__(kind, raised, traceback)
            return
        error = await asyncio.wrap_future(self._stop_thread().ended)
        if error is not None and raised is None:
            raise error

    def _check_closed(self) -> None:
        if self._thread is not None or self._block is not None:
            raise RuntimeError("the verifier is open already")

    def _start_thread(self) -> EngineThread:
        self._check_closed()
        return EngineThread(self.settings)

    def _stop_thread(self) -> EngineThread:
        thread, self._thread = self._thread, None
        assert thread is not None, "the verifier is not open"
        thread.stop()
        return thread


def _level_of_caller() -> int:
    """The `stacklevel` of the nearest frame that is neither ours nor an event loop's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package_of(frame) in PASSED_OVER:
        level, frame = level + 1, frame.f_back
    return level


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _in_event_loop() -> bool:
    if trio.lowlevel.in_trio_task():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def verify(email: str, settings: EngineSettings | None = None, **changes: Any) -> FullVerdict:
    """Verify one address with an engine of its own, outside event loops. For several, use Verifier.

    Raises RuntimeError in an event loop; settings are as for Verifier.
    """
    with Verifier(settings, **changes) as verifier:
        return verifier.verify(email)


async def averify(
    email: str, settings: EngineSettings | None = None, **changes: Any
) -> FullVerdict:
    """Verify one address with an engine of its own, on asyncio or trio. For several, use Verifier."""
    async with Verifier(settings, **changes) as verifier:
        return await verifier.verify(email)
