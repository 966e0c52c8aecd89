"""`mailprobe serve` in a process of its own, for the bench: started, asked for its state, stopped."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ..processes import stop_process

SINGLE = "bob@mailinator.com"  # a throwaway: no resolver and no mail host is asked
OWN = "own"  # as a tier: an account without limits
PLANS = "[scale]\nrate_limit_per_min = 1000000\n"  # high: no request may wait for the limit
START_S = 30.0  # a start takes one; of a machine that does much else, more
STOP_S = 15.0  # a stop has ten
ROOT = Path(__file__).parents[3]
MAILPROBE = (sys.executable, "-m", "mailprobe.bench.load.empty_route")


class ServiceFailed(Exception):
    """The service did not start, or did not answer as it should; the message has its words."""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """A running service with one account."""

    url: str
    tools_url: str
    pid: int
    folder: Path  # its working directory
    account: Mapping[str, str]  # as `account create` prints it
    env: Mapping[str, str] = field(repr=False)

    @property
    def key(self) -> str:
        return self.account["key"]

    @property
    def host(self) -> str:
        return httpx.URL(self.url).netloc.decode()

    @property
    def at(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    def another_key(self, tier: str = "scale") -> str:
        """A standard key of another account."""
        email = f"neighbour-{secrets.token_hex(8)}@example.org"  # an address has one account
        reported = _run(
            self.folder, self.env, "account", "create", "--email", email, "--tier", tier
        )
        key: str = json.loads(reported)["key"]
        return key

    def cpu_s(self) -> float:
        """The processor time that it has used, all threads and workers together."""
        return cpu_s_of(self.pid)

    def kill(self) -> None:
        """SIGKILL it and its children at once."""
        for pid in (self.pid, *children(self.pid)):
            with suppress(ProcessLookupError):  # a child may have ended meanwhile
                os.kill(pid, signal.SIGKILL)


def cpu_s_of(pid: int) -> float:
    """The processor time of a process and its children, all threads together, to the microsecond."""
    tasks = [*Path(f"/proc/{pid}/task").iterdir()]
    ns = 0
    for task in tasks:
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            ns += int((task / "schedstat").read_text("ascii").split()[0])
    return ns / 1e9 + sum(cpu_s_of(child) for child in children(pid))


def children(pid: int) -> list[int]:
    """The processes that this one has started and that live."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(child) for child in text.split()]


# -- the service -----------------------------------------------------------------------------


@contextmanager
def start_service(
    lab_env: Mapping[str, str],
    folder: Path,
    *,
    plans: str = "",
    tier: str = "scale",
    workers: int = 1,
    account: Mapping[str, str] | None = None,
) -> Iterator[ServiceProcess]:
    """`mailprobe serve` on a free port, its database in `folder`, as long as the block lasts.

    `account` is one of its database, as `account create` printed it; else one is made.
    """
    ours = {name: text for name, text in os.environ.items() if not name.startswith("MAILPROBE_")}
    env = {
        **ours,
        **lab_env,
        "PYTHONPATH": str(ROOT),
        "MAILPROBE_BIND": "127.0.0.1:0",
        "MAILPROBE_TOOLS_BIND": "127.0.0.1:0",
        "MAILPROBE_METRICS_BIND": "127.0.0.1:0",
    }
    if plans:
        (folder / "plans.toml").write_text(plans, "utf-8")
        env["MAILPROBE_PLANS_FILE"] = "plans.toml"
    if account is None:
        kind = ("--own",) if tier == OWN else ("--tier", tier)
        words = ("account", "create", "--email", "you@example.org", *kind)
        account = json.loads(_run(folder, env, *words))
    assert account is not None
    log = folder / "service.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*MAILPROBE, "serve", "--workers", str(workers)],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stderr=said,
        )
    try:
        url, tools_url = _wait_until_served(process, log)
        yield ServiceProcess(url, tools_url, process.pid, folder, account, env)
    finally:
        stop_process(process, STOP_S)


def _run(folder: Path, env: Mapping[str, str], *words: str) -> str:
    done = subprocess.run([*MAILPROBE, *words], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise ServiceFailed(done.stderr)
    return done.stdout


def _wait_until_served(process: "subprocess.Popen[bytes]", log: Path) -> tuple[str, str]:
    """Return the addresses of the API and the tool server, as the service logs them.

    It reads the log file, because an unread pipe would fill up.
    """
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at and process.poll() is None:
        said = log.read_text("utf-8")
        if found := re.search(r"tools on (\S+)/mcp\n.*serving on (http://\S+?),? ", said, re.S):
            return found[2], found[1]
        time.sleep(0.02)
    raise ServiceFailed(f"the service did not start: {log.read_text('utf-8')}")
