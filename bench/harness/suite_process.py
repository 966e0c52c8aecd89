"""Runs a suite in a process of its own, reads its result, and ends it with this process."""

import json
import signal
import subprocess
import sys

from msgspec import Struct

from ..processes import stop_process
from .figures import MissingRequirement, Result, read_results
from .suites import LACKING

PROCESS = (sys.executable, "-m", "mailprobe.bench.harness.suites")
STOP_S = 15.0  # an interrupted suite stops its lab and its service, which may take 10


class SuiteFailed(Exception):
    """The suite ended without a result; it printed the reason to standard error."""


class SuiteResult(Struct, frozen=True):
    """The output of a suite's process: remarks for the user, and the result."""

    remarks: list[str]
    result: Result


def run_suite(name: str) -> SuiteResult:
    """Run a suite in a process of its own and wait for its end.

    Raises MissingRequirement and SuiteFailed. A KeyboardInterrupt here ends the
    suite and everything it started, and then propagates.
    """
    process = subprocess.Popen(
        [*PROCESS, name],
        stdin=subprocess.PIPE,  # the suite ends when it closes: see suites.end_with_parent
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # a Ctrl-C reaches only us; _stop sends the suite one SIGINT
    )
    try:
        assert process.stdout is not None
        said = process.stdout.read()
        code = process.wait()
    finally:
        stop_process(process, STOP_S, signal.SIGINT)
    return _read(name, said, code)


def _read(name: str, said: str, code: int) -> SuiteResult:
    *remarks, last = said.splitlines() or [""]
    try:
        if code == LACKING:
            raise MissingRequirement(json.loads(last)["lacking"])
        if code == 0:
            return SuiteResult(remarks, read_results(last))
    except (KeyError, TypeError, ValueError) as strange:
        raise SuiteFailed(f"suite {name} ended with what is no result") from strange
    raise SuiteFailed(f"suite {name} failed{_by(code)}")


def _by(code: int) -> str:
    return f": killed by {signal.Signals(-code).name}" if code < 0 else ""
