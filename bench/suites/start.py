"""Measures cold starts: a new process each time, compiled, with its files in the page cache.

`verify` and `clean` are timed to their first packet, the connection to a resolver that
only listens; `serve` to its log line that it serves; `--help` to its end. The resolver's
URL is https, and the certificate authorities are the system's, as in production.
"""

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from msgspec import Struct

from ..harness.figures import Figure

MAILPROBE = (sys.executable, "-c", "from mailprobe.api.cli import main; main()")
NOT_OURS = ("MAILPROBE_", "PYTHONDONTWRITEBYTECODE")  # these variables would change the start
ROUNDS = 9
PATIENCE_S = 30.0  # for a start on a machine that is busy with other things
LOOK_S = 0.2  # between two checks that the process still runs
SERVING = "serving on"

Reached = Callable[["subprocess.Popen[str]"], object]


class NeverStarted(RuntimeError):
    """A command ended or timed out before it reached the point that is timed."""


class Start(Struct, frozen=True):
    """The time since the fork, and the processor time of the whole process."""

    wall_s: float
    cpu_s: float


def run() -> list[Figure]:
    return measure(ROUNDS)


def measure(rounds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            _figure("verify, to its first packet", to_question, ["verify", "ann@example.org"],
                    folder, rounds),
            _figure("clean, to its first packet", to_question, ["clean", "list.csv"],
                    folder, rounds),
            _figure("serve, to its word that it serves", to_word, ["serve"], folder, rounds),
            _figure("--help, to its end", to_end, ["--help"], folder, rounds),
        ]  # fmt: skip


def _figure(
    what: str,
    start: Callable[[Sequence[str], Path], Start],
    words: Sequence[str],
    folder: Path,
    rounds: int,
) -> Figure:
    start(words, folder)  # the first one brings the files into the page cache
    starts = [start(words, folder) for _ in range(rounds)]
    walls = [each.wall_s for each in starts]
    return Figure(
        what,
        median(walls) * 1000,
        "ms",
        spread=(max(walls) - min(walls)) / median(walls),
        cpu_us=median(each.cpu_s for each in starts) * 1e6,
    )


def to_question(words: Sequence[str], folder: Path) -> Start:
    """Time a command until it connects to the resolver, which never answers.

    Raises NeverStarted, as `to_word` and `to_end` do.
    """
    with socket.create_server(("127.0.0.1", 0)) as resolver:
        resolver.settimeout(LOOK_S)
        url = f"https://127.0.0.1:{resolver.getsockname()[1]}/dns-query"

        def connected(process: "subprocess.Popen[str]") -> None:
            patience_ends_at = time.monotonic() + PATIENCE_S
            while process.poll() is None and time.monotonic() < patience_ends_at:
                with suppress(TimeoutError):
                    account, _ = resolver.accept()
                    account.close()
                    return
            process.kill()
            raise NeverStarted(f"{words} asked nothing, and said: {process.communicate()[1]}")

        return _timed(words, folder, connected, MAILPROBE_DOH_URLS=url)


def to_word(words: Sequence[str], folder: Path) -> Start:
    """Time a command until it logs that it serves; its first start creates the database."""

    def serving(process: "subprocess.Popen[str]") -> None:
        assert process.stderr
        said = []
        for line in process.stderr:
            said.append(line)
            if SERVING in line:
                return
        raise NeverStarted(f"{words} ended: {''.join(said)}")

    return _timed(
        words,
        folder,
        serving,
        MAILPROBE_DATABASE=str(folder / "mailprobe.db"),
        MAILPROBE_BIND="127.0.0.1:0",
        MAILPROBE_TOOLS_BIND="127.0.0.1:0",
    )


def to_end(words: Sequence[str], folder: Path) -> Start:
    """Time a command until it ends with exit code 0."""

    def ended(process: "subprocess.Popen[str]") -> None:
        if process.wait(PATIENCE_S):
            raise NeverStarted(f"{words} ended with {process.returncode}")

    return _timed(words, folder, ended)


def _timed(words: Sequence[str], folder: Path, reached: Reached, **settings: str) -> Start:
    before = _children_cpu_s()
    began = time.perf_counter()
    with _process(words, folder, settings) as process:
        reached(process)
        wall_s = time.perf_counter() - began
    return Start(wall_s, _children_cpu_s() - before)


@contextmanager
def _process(
    words: Sequence[str], folder: Path, settings: dict[str, str]
) -> "Iterator[subprocess.Popen[str]]":
    """Run a command in a folder with a list, without the settings of the bench's own process.

    It is killed at the end of the block, so that the next one has the folder to itself.
    """
    own = Path(tempfile.mkdtemp(dir=folder))
    (own / "list.csv").write_text("email\nann@example.org\n", "ascii")
    ours = {name: text for name, text in os.environ.items() if not name.startswith(NOT_OURS)}
    process = subprocess.Popen(
        [*MAILPROBE, *words],
        cwd=own,
        env=ours | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _children_cpu_s() -> float:
    """Return the processor time of all children that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
