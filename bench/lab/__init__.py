"""The lab: a resolver and mail servers on loopback, on real sockets, in a process of their own.

    with start_lab("default") as lab:
        environ.update(lab.env)
        ... lab.addresses["deliverable"] ...
        print(lab.records())

This file imports nothing heavy; the lab itself lives in the other process.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from ..processes import stop_process

SCENARIO_NAMES = (
    *("default", "hostile", "slow", "many", "strict", "greylisting", "particular", "restless"),
    *("waiting", "distant", "adverse", "internet", "sequences", "dead", "defences"),
)
STOP_S = 10.0


class LabFailed(Exception):
    """The lab did not start, or has gone; it has said why on standard error."""


class Lab(Struct, frozen=True):
    """A running lab: the settings that reach it, and addresses by outcome.

    Some scenarios sort their addresses in other ways too: in `groups` that are
    asked together, in `truth` by what they are, whatever can be known of it, and in
    `hidden` by the reason why a single request cannot know it.
    """

    env: dict[str, str]
    addresses: dict[str, list[str]]
    process: subprocess.Popen[str]
    groups: dict[str, list[str]] = field(default_factory=dict)
    truth: dict[str, list[str]] = field(default_factory=dict)
    hidden: dict[str, list[str]] = field(default_factory=dict)
    http1_url: str = ""  # of the same resolver, without HTTP/2

    def records(self) -> dict[str, Any]:
        """What its hosts and its resolver have seen (mailprobe.bench.lab.records)."""
        return self._command("records")

    def forget(self) -> None:
        """Let the records begin anew."""
        self._command("forget")

    def _command(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
        except BrokenPipeError as gone:
            raise LabFailed("the lab has gone") from gone
        return _read_line(self.process)


@contextmanager
def start_lab(
    scenario: str = "default",
    seed: int = 0,
    *,
    start: Callable[..., "subprocess.Popen[str]"] = subprocess.Popen,
    program: Sequence[str] = (),
) -> Iterator[Lab]:
    """Run a lab as long as the block lasts; it never outlives this process.

    Its standard input is a pipe from us: when we end, however that comes, the
    pipe ends and so does the lab. (Linux' PDEATHSIG would fire when the
    thread that started it ends, which need not be the process.)
    """
    process = start(
        [*(program or (sys.executable, "-m", "mailprobe.bench.lab")), scenario, str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # a Ctrl-C is for us alone: whoever uses the lab ends first
    )
    try:
        first = _read_line(process)
        yield Lab(
            first["env"],
            first["addresses"],
            process,
            first.get("groups", {}),
            first.get("truth", {}),
            first.get("hidden", {}),
            first["http1_url"],
        )
    finally:
        stop_process(process, STOP_S)


def _read_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith("\n"):
        raise LabFailed("the lab has gone")
    read: dict[str, Any] = json.loads(line)
    return read
