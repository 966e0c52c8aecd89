"""Runs the workloads inside the namespaces: `python -m mailprobe.bench.peers.in_namespace`.

Reads the runners as one JSON array from standard input and writes one JSON line
for each round of each workload of each runner. The mail hosts and both resolvers are run
here, and this is where turn-arounds are counted; each runner is a process of
its own, new for each round, so that none finds anything in a cache.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from msgspec import Struct, field
from msgspec.structs import asdict

from ..lab import doh
from ..lab.listeners import LabListeners, allow_descriptors
from ..world.host_log import HostLog
from ..world.mail_host import MailHost
from . import fixture_domains, namespace, resolver
from .runner import HELO, WORDS

SMTP_PORT = 25
GOODBYE_S = 2.0  # for the hosts to see that a runner has gone
REMARK_LETTERS_MAX = 200


class Runner(Struct, frozen=True):
    """One verifier put to work: a program of runner.py's protocol."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 120.0  # for a workload
    rounds: int = 3  # of each workload: on a busy machine the times vary widely


class RunnerOutput(Struct, frozen=True):
    """What a runner printed."""

    answers: Mapping[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    cpu_s: float = 0.0
    raised: int = 0


class Task(Struct, frozen=True):
    """What became of it; `remark` says why there is nothing, where a runner gave no answer."""

    runner: str
    workload: str  # "list" or "one domain"
    answers: Mapping[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    cpu_s: float = 0.0
    raised: int = 0
    turnarounds: int = 0
    connections: int = 0
    connections_peak: int = 0  # at one host
    remark: str = ""


class NoAnswer(Exception):
    """A runner failed, fell silent or talked nonsense; the message says which."""


async def run(runners: Sequence[Runner]) -> None:
    here = fixture_domains.build()
    hosts = here.scenario.hosts
    tasks = {"list": list(here.a_list), "one domain": list(here.one_domain)}
    with tempfile.TemporaryDirectory(prefix="mailprobe-peers-") as folder:
        namespace.settle(Path(folder), HELO)
        async with _open_world(here, Path(folder)) as env:
            for runner in runners:
                for name, addresses in tasks.items():
                    for _ in range(runner.rounds):
                        for host in hosts.values():
                            host.record.clear()
                        done = await _send(runner, name, addresses, env, list(hosts.values()))
                        print(json.dumps(asdict(done)), flush=True)
                        if done.remark:
                            break


@asynccontextmanager
async def _open_world(
    here: fixture_domains.PeerDomains, folder: Path
) -> AsyncIterator[dict[str, str]]:
    """Mail hosts at port 25, the system's resolver, and one over HTTPS for us; with its settings."""
    zone, hosts = here.scenario.zone, here.scenario.hosts
    allow_descriptors(len(hosts))
    tls, authority = doh.make_authority(folder, namespace.RESOLVER_ADDRESS)
    listeners = await trio.open_tcp_listeners(0, host=namespace.RESOLVER_ADDRESS)
    port = listeners[0].socket.getsockname()[1]
    encrypted = [trio.SSLListener(listener, tls, https_compatible=True) for listener in listeners]
    with LabListeners(hosts, SMTP_PORT) as smtp_listeners:
        async with trio.open_nursery() as nursery:
            await nursery.start(resolver.serve, zone, namespace.RESOLVER_ADDRESS)
            nursery.start_soon(trio.serve_listeners, doh.Resolver(zone).serve, encrypted)
            nursery.start_soon(smtp_listeners.serve, 0)
            yield {
                "MAILPROBE_DOH_URLS": f"https://{namespace.RESOLVER_ADDRESS}:{port}{doh.PATH}",
                "MAILPROBE_DOH_CA_FILE": str(authority),
                "MAILPROBE_SMTP_PORT": str(SMTP_PORT),
                "MAILPROBE_SMTP_HELO": HELO,
                "MAILPROBE_ALLOW_PRIVATE": "1",
            }
            nursery.cancel_scope.cancel()


async def _send(
    runner: Runner,
    task: str,
    addresses: Sequence[str],
    env: Mapping[str, str],
    hosts: Sequence[MailHost],
) -> Task:
    """Run one workload with one runner; return the hosts' counts even if the runner fails."""
    answer, remark = RunnerOutput(), ""
    try:
        answer = await run_runner(runner, addresses, env)
    except NoAnswer as why:
        remark = str(why)
    await _see_them_off(hosts)
    records = [host.record for host in hosts]
    return Task(
        runner.name,
        task,
        answers=answer.answers,
        took_s=answer.took_s,
        cpu_s=answer.cpu_s,
        raised=answer.raised,
        turnarounds=sum(turnarounds(record) for record in records),
        connections=sum(record.sessions_seen for record in records),
        connections_peak=max(record.connections_peak for record in records),
        remark=remark,
    )


async def run_runner(
    runner: Runner, addresses: Sequence[str], env: Mapping[str, str]
) -> RunnerOutput:
    """Run a runner to its end and give its answer. NoAnswer where there is none."""
    whole_env = {**os.environ, **env, **runner.env}
    with trio.move_on_after(runner.limit_s) as limit:
        done = await trio.run_process(
            runner.command,
            stdin=json.dumps(addresses).encode(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=whole_env,
            start_new_session=True,  # its own processes end with it
            deliver_cancel=_kill,
        )
    if limit.cancelled_caught:
        raise NoAnswer(f"still at work after {runner.limit_s:g} s")
    last_words = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if done.returncode:
        raise NoAnswer(f"ended with {done.returncode}: {last_words[:REMARK_LETTERS_MAX]}")
    return _read(done.stdout, addresses)


async def _kill(process: "subprocess.Popen[bytes] | trio.Process") -> None:
    os.killpg(process.pid, signal.SIGKILL)


def _read(printed: bytes, addresses: Sequence[str]) -> RunnerOutput:
    """Its last line, if that says one of WORDS of each address and of no other."""
    try:
        answer = json.loads(printed.strip().rpartition(b"\n")[2])
        reported = {str(address): str(word) for address, word in answer["told"].items()}
        took_s, cpu_s, raised = (answer[name] for name in ("took_s", "cpu_s", "raised"))
        read = RunnerOutput(reported, float(took_s), float(cpu_s), int(raised))
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise NoAnswer(f"gave no answer: {printed[-REMARK_LETTERS_MAX:]!r}") from wrong
    if reported.keys() != set(addresses) or not set(reported.values()) <= set(WORDS):
        raise NoAnswer("answered for other addresses, or in other words")
    return read


async def _see_them_off(hosts: Sequence[MailHost]) -> None:
    """Let the hosts see that a runner has gone."""
    with trio.move_on_after(GOODBYE_S):
        while any(host.record.connections_now for host in hosts):  # noqa: ASYNC110 - nobody is told
            await trio.sleep(0.01)


def turnarounds(record: HostLog) -> int:
    """The banners, and every write of the client that was answered but QUIT (as suite_domain counts)."""
    return sum(1 + session.turnarounds - session.quit for session in record.sessions)


def main() -> None:
    if os.getpid() != 1:
        sys.exit(
            "mailprobe.bench.peers.in_namespace runs in namespaces of its own: see bench/peers/README.md"
        )
    runners = [Runner(**{**row, "command": tuple(row["command"])}) for row in json.load(sys.stdin)]
    trio.run(run, runners)


if __name__ == "__main__":
    main()
