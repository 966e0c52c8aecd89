"""The calls of the library in an engine's event loop, and the thread that runs one for other callers.

Each call is a task of the engine, and its answers cross to the reader in batches, in whichever thread
or event loop that is. A call is cancelled when its reader is, when its stream is closed or dropped,
and when the engine is closed.
"""

import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from itertools import count

import trio

from .settings import EngineSettings
from .stream.answers import Answer
from .stream.engine import Engine, open_engine
from .stream.scheduler import open_answers

UNREAD_MAX = 1_000  # answers that wait for a reader; as many again are ready in the engine
CLOSE_S = 0.5  # for QUIT on each connection; mail hosts that are slower are not waited for
RunSoon = Callable[..., object]  # calls a function in the engine's event loop


class VerifierClosedError(RuntimeError):
    """The verifier's block was left, so it verifies nothing more."""


class EngineCall:
    """One stream of texts: its task in the engine's event loop, and answers for one reader.

    `read_ready()` and `abandon()` may be called in any thread. `wake` is called in the engine's loop, once
    after each `read_ready()` that found nothing.
    """

    def __init__(
        self, texts: Iterable[str], wake: Callable[[], object], run_soon: RunSoon, *, is_list: bool
    ) -> None:
        self._texts = texts
        self._wake = wake
        self._run_soon = run_soon
        self._is_list = is_list
        self._scope = trio.CancelScope()
        self._lock = threading.Lock()  # for what follows
        self._ready: list[Answer] = []
        self._awaited = False
        self._room: trio.Event | None = None  # the task waits for the reader
        self._ended = False
        self._error: BaseException | None = None

    async def run(self, engine: Engine, account: str) -> None:
        """Verify all texts. What they raise, or a bug, ends this call alone."""
        with self._scope:
            try:
                async with open_answers(
                    engine, self._texts, account=account, deferred_start=self._is_list
                ) as answers:
                    while ready := await answers.next_ready():
                        await self._put(ready)
            except Exception as error:  # raised where the answers are read
                self.end(error)
            else:
                self.end()

    async def _put(self, answers: list[Answer]) -> None:
        with self._lock:
            self._ready += answers
            awaited, self._awaited = self._awaited, False
            room = self._room = trio.Event() if len(self._ready) >= UNREAD_MAX else None
        if awaited:
            self._wake()
        if room is not None:
            await room.wait()

    def end(self, error: BaseException | None = None) -> None:
        """No more answers follow. The reader gets those that are ready, then the error."""
        with self._lock:
            if self._ended:
                return
            self._ended, self._error = True, error
            awaited, self._awaited = self._awaited, False
        if awaited:
            self._wake()

    def read_ready(self) -> list[Answer] | None:
        """Return the answers that are ready; none at the end. None means: wait for `wake`.

        Raises what ended the call.
        """
        with self._lock:
            taken, self._ready = self._ready, []
            room, self._room = self._room, None
            self._awaited = not taken and not self._ended
            if not taken and self._ended:
                if self._error is not None:
                    raise self._error
                return taken
        if room is not None:
            with suppress(trio.RunFinishedError):
                self._run_soon(room.set)
        return taken or None

    def abandon(self) -> None:
        """Cancel what is unfinished. Nothing more can be read."""
        with self._lock:
            self._ready = []
            if self._ended:
                return
            self._ended = True
        with suppress(trio.RunFinishedError):
            self._run_soon(self._scope.cancel)


class EngineCalls:
    """An open engine with its calls. `start()` may be called in any thread."""

    def __init__(self, engine: Engine, nursery: trio.Nursery, run_soon: RunSoon) -> None:
        self._engine = engine
        self._nursery = nursery
        self._run_soon = run_soon
        self._running: set[EngineCall] = set()
        self._numbers = count()
        self._closed = False

    def start(
        self, texts: Iterable[str], wake: Callable[[], object], *, is_list: bool
    ) -> EngineCall:
        if isinstance(texts, str):
            raise TypeError("texts must be several addresses, not one string")
        call = EngineCall(texts, wake, self._run_soon, is_list=is_list)
        try:
            self._run_soon(self._begin, call)
        except trio.RunFinishedError:
            raise VerifierClosedError("the verifier is closed") from None
        return call

    def _begin(self, call: EngineCall) -> None:
        if self._closed:
            call.end(VerifierClosedError("the verifier is closed"))
            return
        self._running.add(call)
        self._nursery.start_soon(self._run, call)

    async def _run(self, call: EngineCall) -> None:
        # Each call is an account, so that a long list does not delay a single address.
        await call.run(self._engine, f"call {next(self._numbers)}")
        self._running.discard(call)  # one that the nursery cancels stays, for `end()`

    def close(self) -> None:
        """Cancel all calls, and begin no more."""
        self._closed = True
        self._nursery.cancel_scope.cancel()

    def end(self, error: BaseException | None) -> None:
        """The engine is closed, or has failed: so have the calls that it cancelled."""
        for call in self._running:
            call.end(error or VerifierClosedError("the verifier is closed"))


@asynccontextmanager
async def open_calls(settings: EngineSettings, run_soon: RunSoon) -> AsyncIterator[EngineCalls]:
    async with open_engine(settings) as engine, trio.open_nursery() as nursery:
        calls = EngineCalls(engine, nursery, run_soon)
        try:
            yield calls
        finally:
            calls.close()


@asynccontextmanager
async def open_calls_here(settings: EngineSettings) -> AsyncIterator[EngineCalls]:
    """Open an engine in this event loop, which is trio's."""
    async with open_calls(settings, _run_now) as calls:
        try:
            yield calls
        finally:
            calls.end(None)


def _run_now(function: Callable[..., object], *args: object) -> None:
    function(*args)


class EngineThread:
    """Runs an engine on trio in a thread of its own, from the start until `stop()`.

    It is a daemon, so that a verifier that was never closed does not keep the program.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.opened: Future[EngineCalls] = Future()  # what open_engine() raises is raised there
        self.ended: Future[BaseException | None] = Future()
        for future in (self.opened, self.ended):
            future.set_running_or_notify_cancel()  # so a cancelled waiter does not cancel it
        self._thread = threading.Thread(target=self._run, name="mailprobe-engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._serve)
        except BaseException as raised:  # passed on to the callers
            error = raised
        if not self.opened.done():
            self.opened.set_exception(error or VerifierClosedError("the verifier is closed"))
        elif self.opened.exception() is None:
            self.opened.result().end(error)
        self.ended.set_result(error)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        with trio.CancelScope() as scope:
            async with open_calls(self._settings, self._token.run_sync_soon) as calls:
                self.opened.set_result(calls)
                await self._stop.wait()
                scope.deadline = trio.current_time() + CLOSE_S

    def stop(self) -> None:
        """Close the engine, once it is open. Returns at once; `ended` tells when it is closed."""
        self.opened.add_done_callback(self._stop_opened)

    def _stop_opened(self, opened: "Future[EngineCalls]") -> None:
        if opened.exception() is None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)
