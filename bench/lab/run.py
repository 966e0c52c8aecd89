"""The lab's composition: a resolver and mail hosts, until somebody says stop.

Speaks JSON lines on standard output. The first says how to use the lab; after
that each line of standard input (`records`, `forget`) is answered by one.
"""

import json
import os
import signal
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from . import doh, records
from .listeners import CannotListen, LabListeners, allow_descriptors
from .scenario import Scenario
from .scenarios import build

RESOLVER_ADDRESS = "127.0.0.1"
HELO = "probe.lab.test"
INTERRUPTED = 130
WRONG_USAGE = 2
SIGNALLED = 128  # and the number of the signal that ended a command
COMMAND_OCTETS_MAX = 4_096


def run(name: str, seed: int, command: Sequence[str] = (), *, until_eof: bool = False) -> int:
    """Run the lab until SIGINT (130) or SIGTERM (0), or the end of standard input; exit code.

    With a command, run it in the lab's environment and return its exit code.
    """
    scenario = build(name, seed)
    try:
        allow_descriptors(len(scenario.hosts))
        with (
            tempfile.TemporaryDirectory(prefix="mailprobe-lab-") as folder,
            LabListeners(scenario.hosts) as listeners,
        ):
            return trio.run(_play, scenario, listeners, Path(folder), seed, command, until_eof)
    except CannotListen as wrong:
        print(f"mailprobe lab: {wrong}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever started us reads no more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


async def _play(
    scenario: Scenario,
    smtp_listeners: LabListeners,
    folder: Path,
    seed: int,
    command: Sequence[str],
    until_eof: bool,
) -> int:
    authority = doh.Authority(folder, RESOLVER_ADDRESS)
    resolver = doh.Resolver(
        scenario.zone,
        requests_max=scenario.doh_requests_max,
        goaway_after=scenario.zone.faults.goaway_after,
    )
    urls, listeners = {}, []
    for protocol in ("h2", "http/1.1"):
        [tcp] = await trio.open_tcp_listeners(0, host=RESOLVER_ADDRESS)
        urls[protocol] = f"https://{RESOLVER_ADDRESS}:{tcp.socket.getsockname()[1]}{doh.PATH}"
        tls = authority.context(protocol)
        listeners.append(trio.SSLListener(tcp, tls, https_compatible=True))
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        # Before the doors are served: the kernel lets callers wait, and a reader that
        # has gone is a plain BrokenPipeError here.
        introduction = _introduction(scenario, urls, authority.trusted, smtp_listeners.port)
        if not command:
            _report(introduction)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, resolver.serve, listeners)
            nursery.start_soon(smtp_listeners.serve, seed)
            if command:
                code = await _run_command(command, introduction["env"], signals)
                nursery.cancel_scope.cancel()
                return code
            nursery.start_soon(_listen, scenario, resolver, nursery.cancel_scope, until_eof)
            async for number in signals:
                nursery.cancel_scope.cancel()
                return INTERRUPTED if number == signal.SIGINT else 0
    return 0


async def _run_command(
    command: Sequence[str], settings: Mapping[str, str], signals: AsyncIterator[int]
) -> int:
    """Run the command, which gets our signals too; its exit code, as a shell gives it."""
    try:
        process = await trio.lowlevel.open_process([*command], env={**os.environ, **settings})
    except OSError as error:
        print(f"mailprobe lab: {command[0]}: {error.strerror}", file=sys.stderr)
        return WRONG_USAGE

    async def pass_on() -> None:
        async for number in signals:
            process.send_signal(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_on)
        code = await process.wait()
        nursery.cancel_scope.cancel()
    return code if code >= 0 else SIGNALLED - code


def _introduction(
    scenario: Scenario, urls: dict[str, str], authority: Path, smtp_port: int
) -> dict[str, Any]:
    """The first line: settings that reach the lab, and what there is to verify."""
    sender = {"MAILPROBE_SMTP_MAIL_FROM": scenario.mail_from} if scenario.mail_from else {}
    line = {
        "env": {
            "MAILPROBE_DOH_URLS": urls["h2"],
            "MAILPROBE_DOH_CA_FILE": str(authority),
            "MAILPROBE_SMTP_PORT": str(smtp_port),
            "MAILPROBE_SMTP_HELO": HELO,
            **sender,
            "MAILPROBE_ALLOW_PRIVATE": "1",
        },
        "addresses": {outcome.value: known for outcome, known in scenario.addresses.items()},
        "http1_url": urls["http/1.1"],
    }
    if scenario.groups:
        line["groups"] = scenario.groups
    if scenario.hidden:
        line["hidden"] = scenario.hidden
    if scenario.truth:
        line["truth"] = {truth.value: known for truth, known in scenario.truth.items()}
    return line


def _report(line: dict[str, Any]) -> None:
    """One whole line, in ASCII whatever the locale; a reader that is slow holds the lab up, for it is its only reader."""
    print(json.dumps(line), flush=True)


async def _listen(
    scenario: Scenario, resolver: doh.Resolver, stop: trio.CancelScope, until_eof: bool
) -> None:
    """Answer the lines of standard input.

    A terminal is left alone, for reading it would stop a lab in the background;
    so is what can't be waited for (a file, the null device). The descriptor is
    not made non-blocking: others may share it.
    """
    descriptor = sys.stdin.fileno()
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return
    buffer = b""
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        octets = os.read(descriptor, COMMAND_OCTETS_MAX)
        if not octets:
            break
        *lines, buffer = (buffer[-COMMAND_OCTETS_MAX:] + octets).split(b"\n")
        try:
            for line in lines:
                _obey(line.strip(), scenario, resolver)
        except BrokenPipeError:  # whoever asks reads no more
            return stop.cancel()
    if until_eof:
        stop.cancel()


def _obey(line: bytes, scenario: Scenario, resolver: doh.Resolver) -> None:
    match line:
        case b"records":
            _report(records.summary(scenario, resolver))
        case b"forget":
            records.forget(scenario, resolver)
            _report({})
        case _:
            _report({"error": "known commands: records, forget"})
