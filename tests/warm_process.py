"""Processes that are forked from one with all modules loaded: 0.1 s of processor time each, not 1 s.

`WarmProcess` is a `subprocess.Popen` whose words are a module of PROGRAMS and its arguments. The process is a
child of the test's in all respects: its standard streams, folder, environment, session, exit code,
and SIGHUP, which it ignores if the test does. What only the start of an interpreter shows (PYTHON*
variables, closed standard streams, imports) needs a real start.
"""

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

from tests.compiled_once import share_compiled

ROOT = Path(__file__).parents[1]
# each has a `main` that takes the words
PROGRAMS = (
    *("mailprobe.api.cli", "tests.api.fake_source", "tests.api.forking_service"),
    *("tests.api.cli.cleaning.faulty_clean", "tests.api.quota.killable_service", "tests.warm_lab"),
    *("tests.api.cli.remote.quick_clean", "tests.storage.child_process"),
    *("tests.storage.other_process", "tests.api.billing.billing_child"),
)
PR_SET_CHILD_SUBREAPER = 36
ORDER_MAX = 1 << 17  # octets; its environment is most of it

libc = ctypes.CDLL(None)
one_at_a_time = threading.Lock()


class WarmProcess(subprocess.Popen[Any]):
    """See the module's docstring."""

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        """What Popen calls to start its process; the positions are those of its own method."""
        (
            _,
            preexec_fn,
            _,
            pass_fds,
            cwd,
            env,
            _,
            _,
            _,
            stdin,
            into,
            out_of,
            stdout,
            err_of,
            stderr,
        ) = others[:15]
        new_session = others[20]
        assert preexec_fn is None, "it would run in the test's process"
        order = {
            "words": [*map(str, args)],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "fds": [0, 1, 2, *pass_fds],
            "new_session": new_session,
            "ignores_hangup": signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
        }
        ours = [own if fd == -1 else fd for own, fd in enumerate((stdin, stdout, stderr))]
        try:
            self.pid = _fork(order, [*ours, *pass_fds])
            self._child_created = True
        finally:
            # What the replaced method does at its end.
            self._close_pipe_fds(stdin, into, out_of, stdout, err_of, stderr)  # type: ignore[attr-defined]


def preload(*modules: str) -> None:
    """Load modules that the programs of a few tests need, before they are forked."""
    with one_at_a_time:
        orders = _orders()
        orders.send(json.dumps({"modules": modules}).encode())
        orders.recv(16)


def _fork(order: dict[str, Any], fds: list[int]) -> int:
    """The process's parent ends at once, which makes it a child of ours."""
    with one_at_a_time:
        orders = _orders()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(orders, [json.dumps(order).encode()], fds)
            return int(orders.recv(16))
        finally:  # or orphans of other processes would stay as ours when they have ended
            libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


_open: dict[int, tuple[socket.socket, subprocess.Popen[bytes]]] = {}


def _orders() -> socket.socket:
    """The socket of this process's forking process, which ends with it."""
    if os.getpid() not in _open:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER_MAX)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        _open[os.getpid()] = ours, process
    return _open[os.getpid()][0]


@atexit.register
def _close() -> None:
    if os.getpid() in _open:
        orders, process = _open.pop(os.getpid())
        orders.close()
        process.wait()


def run(
    words: Sequence[str],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> "subprocess.CompletedProcess[Any]":
    """What `subprocess.run` does."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with WarmProcess(words, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)


# -- in the process that forks ------------------------------------------------------------------


def _load() -> None:
    import trio.testing  # noqa: F401 - fake_source

    from mailprobe.api.error_table import Links
    from mailprobe.api.mcp.tools import NEEDS_HEADER, tools, wide_tools
    from mailprobe.api.reader import starting
    from mailprobe.api.serve import create_app
    from mailprobe.engine import load_rules_and_lists
    from tests.api.reader.forked_reader import fork_reader

    load_rules_and_lists()
    setattr(starting, "spawn", fork_reader)  # noqa: B010 - mypy forbids to assign a function
    # What each service makes of constants, for half of the processor time of its start.
    share_compiled()
    service = Mock(links=Links("", "", ""))
    service.store.derived_key.return_value = b""
    create_app(service, Mock())
    tools(NEEDS_HEADER)
    wide_tools(NEEDS_HEADER)
    for name in PROGRAMS:
        import_module(name)


def _serve(orders: socket.socket) -> Callable[[], None]:
    """Fork for each order; in a new process, return what it does."""
    while True:
        octets, fds, *_ = socket.recv_fds(orders, ORDER_MAX, 32)
        if not octets:
            sys.exit()
        order = json.loads(octets)
        if "modules" in order:
            for name in order["modules"]:
                import_module(name)
            orders.send(b"0")
            continue
        ours, theirs = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(theirs, b"%d" % child)
                os._exit(0)
            _become(order, fds, [orders.fileno(), ours, theirs])
            orders.detach()
            program, *words = order["words"]
            return lambda: import_module(program).main(words)
        os.close(theirs)
        for fd in fds:
            os.close(fd)
        os.waitpid(between, 0)
        orders.send(os.read(ours, 16))
        os.close(ours)


def _become(order: dict[str, Any], fds: list[int], needless: list[int]) -> None:
    if order["new_session"]:
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN if order["ignores_hangup"] else signal.SIG_DFL)
    for fd in needless:
        os.close(fd)
    spare = [os.dup2(fd, 100 + number, inheritable=False) for number, fd in enumerate(fds)]
    for fd in fds:
        os.close(fd)
    for fd, wanted in zip(spare, order["fds"], strict=True):
        os.dup2(fd, wanted)
        os.close(fd)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", buffering=-1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115


def _end(run: Callable[[], None]) -> NoReturn:
    """Run it, and end as an interpreter does, but for taking all modules apart: 0.2 s."""
    code: Any = 0
    try:
        run()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    # What an interpreter calls at its end; os._exit() alone would leave threads and hooks out.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    _load()
    gc.freeze()
    run = _serve(orders)
    sys.argv = ["mailprobe"]
    sys.modules["__main__"].__package__ = ""  # or the help says `python -m tests.mailprobe`
    _end(run)


if __name__ == "__main__":
    main()
