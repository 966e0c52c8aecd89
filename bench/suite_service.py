"""2,000 addresses through a service in a process of its own, as `clean --server` and the demo ask it.

The lab, the service and this client share the machine. The service's database lies
within this checkout, where `data/` would lie, so that its flushes cost what they do there.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import trio

from api.cli.http_source import PATH as STREAM
from api.cli.http_source import REQUEST_ADDRESSES_MAX, open_http_source
from bench.asking import wrong
from bench.figures import RESULTS, Figure
from bench.lab import start_lab
from engine import Verdict

ADDRESSES = 2_000
FIRST_LINES = 10  # requests whose first line is timed, one after the other
SINGLES = 2_000
CONNECTIONS = 16  # of the single verifications
SINGLE = "bob@mailinator.com"  # a throwaway: no resolver and no mail host is asked
PLANS = "[scale]\nrate_limit_per_min = 1000000\n"  # nobody should wait for a minute to pass
START_S = 30.0  # a start takes one; of a machine that does much else, more
STOP_S = 15.0  # a stop has ten
ANSWER_S = 180.0  # for a step of the suite; it takes some seconds where nothing else runs
ROOT = Path(__file__).parents[1]
MAILPROBE = (sys.executable, "-c", "from api.cli import main; main()")


class ServiceFailed(Exception):
    """The service did not start, or did not answer as it should; the message has its words."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running service with one account."""

    url: str
    tools_url: str
    pid: int
    folder: Path  # its working directory
    account: Mapping[str, str]  # as `account create` prints it

    @property
    def key(self) -> str:
        return self.account["key"]

    def cpu_s(self) -> float:
        """The processor time that it has used, all threads together (proc(5))."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """What so many took, and how much of the service's processor time."""

    count: int
    took_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.count / self.took_s

    @property
    def cpu_ms_each(self) -> float:
        return self.cpu_s * 1000 / self.count


def run() -> list[Figure]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="service-", dir=RESULTS) as folder,
        start_lab("many") as lab,
        start_service(lab.env, Path(folder), plans=PLANS) as service,
    ):
        return trio.run(measure, service, lab.addresses["deliverable"])


async def measure(
    service: Served, addresses: Sequence[str], count: int = ADDRESSES, singles: int = SINGLES
) -> list[Figure]:
    """All figures. The addresses are deliverable ones, of domains that the service has not met."""
    texts, others = addresses[:count], addresses[count:][: FIRST_LINES * REQUEST_ADDRESSES_MAX]
    cold, cold_cost = await ask_list(service, texts)
    warm, warm_cost = await ask_list(service, texts)
    first_cold, first_warm = await first_lines(service, others), await first_lines(service, others)
    single_ms, single_cost = await ask_singles(service, singles)
    mistaken = wrong([*cold, *warm], dict.fromkeys(texts, "deliverable/None"))
    for what, number in mistaken.items():
        print(f"# {number} × {what}")
    asked = 2 * len(texts)
    return [
        Figure("told right", asked - mistaken.total(), f"of {asked}", at_least=asked),
        Figure("cold: addresses", cold_cost.rate, "a second"),
        Figure("cold: processor time of the service", cold_cost.cpu_ms_each, "ms each"),
        Figure("cold: the latest result", _latest_ms(cold), "ms"),
        Figure("cold: a request's first line, median", median(first_cold), "ms"),
        Figure("warm: addresses", warm_cost.rate, "a second"),
        Figure("warm: processor time of the service", warm_cost.cpu_ms_each, "ms each"),
        Figure("warm: the latest result", _latest_ms(warm), "ms"),
        Figure("warm: a request's first line, median", median(first_warm), "ms"),
        Figure("single, no probe: requests", single_cost.rate, "a second"),
        Figure("single, no probe: processor time", single_cost.cpu_ms_each, "ms each"),
        Figure("single, no probe: median", median(single_ms), "ms"),
    ]


def _latest_ms(verdicts: Sequence[Verdict]) -> float:
    return max(verdict.latency_ms for verdict in verdicts)


# -- asking ----------------------------------------------------------------------------------


async def ask_list(service: Served, texts: Sequence[str]) -> tuple[list[Verdict], Cost]:
    """By the client of `clean --server`: in requests of 50, as many at once as it makes."""
    with trio.fail_after(ANSWER_S):
        cpu_s, began = service.cpu_s(), time.perf_counter()
        async with (
            open_http_source(service.url, service.key) as source,
            source.open_answers(texts) as answers,
        ):
            verdicts = [answer.verdict async for answer in answers]
        took_s = time.perf_counter() - began
    return verdicts, Cost(len(verdicts), took_s, service.cpu_s() - cpu_s)


async def first_lines(service: Served, texts: Sequence[str]) -> list[float]:
    """Milliseconds to the first line of each request of 50, one request after the other."""
    times_ms: list[float] = []
    headers = {"Authorization": f"Bearer {service.key}"}
    with trio.fail_after(ANSWER_S):
        async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
            await client.get(f"{service.url}/health")  # from here on the connection is open
            for start in range(0, len(texts), REQUEST_ADDRESSES_MAX):
                body = {"emails": texts[start : start + REQUEST_ADDRESSES_MAX]}
                began = time.perf_counter()
                async with client.stream("POST", service.url + STREAM, json=body) as response:
                    lines = response.raise_for_status().aiter_lines()
                    await anext(lines)
                    times_ms.append((time.perf_counter() - began) * 1000)
                    async for _ in lines:
                        pass
    return times_ms


async def ask_singles(service: Served, count: int) -> tuple[list[float], Cost]:
    """The same address over and over, by a client too small to be what is measured."""
    times_ms: list[float] = []
    left = iter(range(count))
    request = _request(service)
    at = httpx.URL(service.url)

    async def ask() -> None:
        async with await trio.open_tcp_stream(at.host, at.port or 80) as wire:
            for _ in left:
                began = time.perf_counter()
                await wire.send_all(request)
                await _read_answer(wire)
                times_ms.append((time.perf_counter() - began) * 1000)

    with trio.fail_after(ANSWER_S):
        cpu_s, began = service.cpu_s(), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(CONNECTIONS):
                nursery.start_soon(ask)
        took_s = time.perf_counter() - began
    return times_ms, Cost(count, took_s, service.cpu_s() - cpu_s)


def _request(service: Served) -> bytes:
    body = json.dumps({"email": SINGLE})
    lines = (
        "POST /v1/email/verify HTTP/1.1",
        f"Host: {httpx.URL(service.url).netloc.decode()}",
        f"Authorization: Bearer {service.key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join([*lines, "", body]).encode()


async def _read_answer(wire: trio.SocketStream) -> None:
    """One whole answer, which must be a 200 with a Content-Length."""
    answer = b""
    octets_max = None
    while octets_max is None or len(answer) < octets_max:
        octets = await wire.receive_some()
        answer += octets
        head, end, _ = answer.partition(b"\r\n\r\n")
        if end:
            length = re.search(rb"\r\ncontent-length: ([0-9]+)", head, re.IGNORECASE)
            if length is None or not head.startswith(b"HTTP/1.1 200"):
                raise ServiceFailed(head.decode("latin-1"))
            octets_max = len(head) + len(end) + int(length[1])
        if not octets:
            raise ServiceFailed("the service ended an answer early")


# -- the service -----------------------------------------------------------------------------


@contextmanager
def start_service(
    lab_env: Mapping[str, str], folder: Path, *, plans: str = "", tier: str = "scale"
) -> Iterator[Served]:
    """`mailprobe serve` on a free port, its database in `folder`, as long as the block lasts."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith("MAILPROBE_")}
    env = {
        **ours,
        **lab_env,
        "PYTHONPATH": str(ROOT),
        "MAILPROBE_BIND": "127.0.0.1:0",
        "MAILPROBE_TOOLS_BIND": "127.0.0.1:0",
    }
    if plans:
        (folder / "plans.toml").write_text(plans, "utf-8")
        env["MAILPROBE_PLANS_FILE"] = "plans.toml"
    account = _run(folder, env, "account", "create", "--email", "you@example.org", "--tier", tier)
    log = folder / "service.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*MAILPROBE, "serve"], cwd=folder, env=env, stdin=subprocess.DEVNULL, stderr=said
        )
    try:
        url, tools_url = _wait_until_served(process, log)
        yield Served(url, tools_url, process.pid, folder, json.loads(account))
    finally:
        _stop(process)


def _run(folder: Path, env: Mapping[str, str], *words: str) -> str:
    done = subprocess.run([*MAILPROBE, *words], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise ServiceFailed(done.stderr)
    return done.stdout


def _wait_until_served(process: "subprocess.Popen[bytes]", log: Path) -> tuple[str, str]:
    """The API's address and the tool server's, as it says them.

    By looking at its log, for a pipe that nobody reads fills up.
    """
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at and process.poll() is None:
        said = log.read_text("utf-8")
        if found := re.search(r"tools on (\S+)/mcp\n.*serving on (http://\S+?),? ", said, re.S):
            return found[2], found[1]
        time.sleep(0.02)
    raise ServiceFailed(f"the service did not start: {log.read_text('utf-8')}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
