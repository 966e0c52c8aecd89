"""Work in the background: what of it fails ends alone, and all of it is started so."""

import ast
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from mailprobe.engine.background import PAUSE_S, contained, separate, supervised

ROOT = Path(__file__).parents[2]

# Tasks that are started without `contained` or `supervised`, and why that is right.
# Each ends with what is named: its nursery lasts no longer.
ENDS_WITH = {
    ("engine/dns/connection.py", "self._write"): "its connection, whose run() catches all",
    ("engine/engine_calls.py", "self._run"): "its call, to whose caller it passes every error",
    ("engine/stream/scheduler.py", "self._watch_backoffs"): "its list",
    ("engine/stream/scheduler.py", "self._look_up"): "its list",
    ("engine/stream/scheduler.py", "_fail"): "its list",
    ("engine/stream/scheduler.py", "self._answer_paused"): "its list",
    ("engine/stream/pipeline.py", "look_up"): "its call, in whose block it runs",
    ("engine/stream/scheduler.py", "scheduler.submit_all"): "its list",
    ("api/quota/self_probe.py", "greet"): "the probe, in whose block it runs",
    ("api/sandbox/stream.py", "put_later"): "the stream of its request, in whose block it runs",
    ("api/http/connection.py", "self._work"): "its connection, whose run() catches all",
    (
        "api/quota/background_writes.py",
        "self._run",
    ): "itself: it runs `contained` in a scope of its own",
    ("api/jobs/worker.py", "self._wake_once_it_hangs"): "its call, whose attempt is contained",
    ("api/asgi/requests.py", "below.feed"): "its request, whose server logs what it raises",
    ("api/asgi/live_socket.py", "handshake.read"): "its socket, whose server logs what it raises",
    ("api/asgi/app.py", "socket.read"): "the same",
    ("api/live/connection.py", "self._until_gone"): "its socket, whose serve() catches all",
    ("api/live/connection.py", "self._end_at"): "its socket, whose serve() catches all",
    ("api/live/connection.py", "self._answer"): "its socket, whose serve() catches all",
    ("storage/postgres/store.py", "getattr"): "the check of the store, in whose block it runs",
    ("storage/postgres/driver/database_thread.py", "self._check_one"): "the same",
    ("api/alerts/smtp_relay.py", "self._cut_in_time"): "its mail",
    ("api/sign_in/mails.py", "self._enqueue_later"): "the loop of mails, which is supervised",
    ("api/serve.py", "examine_provider"): "the checks, in whose block it runs",
    ("api/doctor/at_once.py", "answer"): "the check, in whose block it runs",
    ("api/doctor/machine.py", "check_urls"): "the check, in whose block it runs",
    # The process ends with these, and should: nothing of a request runs in them.
    ("api/serve.py", "drain_on_signals"): "it sets an event",
    ("api/serve.py", "_stop_jobs"): "it sets an event",
    ("api/serve.py", "_log_stop"): "it logs a line, once",
    ("api/serve.py", "_beating"): "it writes a time; without it, the worker is replaced",
    ("api/serve.py", "watchdog.watch"): "it sets a timer; without it, a process that hangs goes on",
    ("api/serve.py", "watchdog.limit_stop"): "it sets a timer, once",
    ("api/serve.py", "serve_metrics"): "a door, which contains what comes in by it",
    ("api/serve.py", "serve_tools"): "a door, which contains what comes in by it",
    ("api/serve.py", "serve_service"): "a door, which contains what comes in by it",
}
SAFE = ("contained", "contained_until", "supervised")


def starts() -> dict[tuple[str, str], int]:
    """Each task that is started in a nursery outside the command line, and its line."""
    found = {}
    for path in sorted(path for part in ("engine", "api", "storage") for path in _files(part)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                words = [ast.unparse(part) for part in (node.func, *node.args)]
                if words[0] == "Context().run":  # of a task without its starter's context
                    del words[0]
                if words[0].endswith((".start_soon", "nursery.start", "serving.start")):
                    found[path.relative_to(ROOT).as_posix(), words[1].partition("(")[0]] = (
                        node.lineno
                    )
    return found


def _files(part: str) -> list[Path]:
    ours = (ROOT / part).rglob("*.py")
    return [path for path in ours if not {"cli", "testing"} & set(path.parts)]


def test_every_task_that_outlives_a_request_is_contained_or_supervised():
    """A new one has to be decided: its fault would end the process."""
    bare = {start for start in starts() if start[1] not in SAFE}
    assert bare - {*ENDS_WITH} == set()
    assert {*ENDS_WITH} - bare == set(), "these are gone, or are safe now"


class Fault(Exception):
    """A bug of ours."""


class Loop:
    """Fails as often as it is told, then runs for ever; it says when it began."""

    def __init__(self, faults: int, lasts_s: float = 0.0) -> None:
        self.faults = faults
        self.lasts_s = lasts_s
        self.began_at: list[float] = []

    async def run(self) -> None:
        self.began_at.append(trio.current_time())
        if len(self.began_at) > self.faults:
            await trio.sleep_forever()
        await trio.sleep(self.lasts_s)
        raise Fault


async def run_for(loop: Loop, seconds: float) -> list[float]:
    """When it began, from the first time on."""
    with trio.move_on_after(seconds) as scope:
        await supervised(loop.run)
    assert scope.cancelled_caught
    return [at - loop.began_at[0] for at in loop.began_at]


async def test_a_loop_that_fails_begins_anew_at_once(autojump_clock, faults):
    assert await run_for(Loop(1), 60) == pytest.approx([0, PAUSE_S])
    assert len(faults) == 1
    assert "Fault" in faults[0]
    assert "Traceback" in faults[0]
    assert "Loop.run" in faults[0]


async def test_the_log_names_the_function_of_a_loop_with_arguments(autojump_clock, faults):
    loop = Loop(1)
    with trio.move_on_after(60):
        await supervised(partial(Loop.run, loop))
    assert "Loop.run" in faults[0].partition("Traceback")[0]


async def test_a_loop_that_always_fails_does_not_fill_the_log(autojump_clock, faults):
    began = await run_for(Loop(1_000_000), 3600)
    assert began[:5] == pytest.approx([0, 0.1, 0.3, 0.7, 1.5])
    assert len(faults) < 400


async def test_a_loop_that_has_run_for_long_begins_anew_at_once_again(autojump_clock, faults):
    began = await run_for(Loop(5, lasts_s=100), 1000)
    assert [later - earlier - 100 for earlier, later in pairwise(began)] == (
        pytest.approx([PAUSE_S] * 5)
    )


async def test_a_loop_that_returns_is_over(autojump_clock):
    with trio.fail_after(1):
        await supervised(trio.lowlevel.checkpoint)


@pytest.mark.parametrize("run", [contained, supervised])
async def test_the_end_gets_through(autojump_clock, run):
    """Cancelled, KeyboardInterrupt and SystemExit end more than the work they meet."""

    async def interrupted(by: type[BaseException]) -> None:
        raise by

    async def interrupted_within(by: type[BaseException]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupted, by)
            await trio.sleep_forever()

    for end in (KeyboardInterrupt, SystemExit):
        with pytest.raises(end):
            await run(interrupted, end)
        with pytest.raises(BaseExceptionGroup) as caught:
            await run(interrupted_within, end)
        assert caught.group_contains(end)
    with trio.move_on_after(1) as scope:
        await run(trio.sleep_forever)
    assert scope.cancelled_caught


@pytest.mark.parametrize("run", [contained, supervised])
async def test_a_fault_while_it_is_cancelled_is_logged_and_does_not_travel(
    autojump_clock, faults, run
):
    async def fail_at_the_end() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise Fault

    with trio.move_on_after(1) as scope:
        await run(fail_at_the_end)
    assert scope.cancelled_caught
    assert len(faults) == 1


def test_a_group_is_taken_apart():
    fault, end = Fault(), KeyboardInterrupt()
    assert separate(fault) == (None, fault)
    assert separate(end) == (end, None)
    fatal, crash = separate(BaseExceptionGroup("", [fault, end, GeneratorExit()]))
    assert isinstance(fatal, BaseExceptionGroup)
    assert fatal.exceptions == (end,)
    assert isinstance(crash, BaseExceptionGroup)
    assert fault in crash.exceptions
    assert separate(ExceptionGroup("", [fault]))[0] is None
