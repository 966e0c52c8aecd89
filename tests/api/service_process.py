"""`mailprobe serve` in its own processes: for tests that check, race and kill it from outside.

A place is a directory with everything of one service: its database, its plans and
its log. The service reaches nothing outside the lab.
"""

import base64
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trio

from mailprobe.api.cli.account import new_account
from mailprobe.bench.lab import Lab
from mailprobe.bench.load.private_postgres import free_port
from mailprobe.storage import StoreSize, open_store
from tests import warm_process
from tests.api.stores import store_settings
from tests.warm_process import WarmProcess

ROOT = Path(__file__).parents[2]
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from mailprobe.api.cli import main; main(sys.argv[1:])",
]
WARM_COMMAND = "mailprobe.api.cli"  # of a WarmProcess
PATIENCE_S = 60.0  # the longest wait; on a busy machine a start takes many seconds
POLL_S = 0.01


@dataclass(frozen=True)
class Credentials:
    """What `mailprobe account create` prints once."""

    account_id: str
    tier: str
    key: str
    provisioning_key: str


@dataclass(frozen=True)
class Place:
    """The directory and environment of one service, kept between its starts."""

    path: Path
    env: dict[str, str] = field(repr=False)

    @property
    def database(self) -> str:
        """The path or URL for `open_store`, used with `secret_key`."""
        return self.env.get("MAILPROBE_DATABASE") or str(self.path / "data/mailprobe.db")

    @property
    def secret_key(self) -> bytes | None:
        text = self.env.get("MAILPROBE_SECRET_KEY")
        return base64.b64decode(text) if text else None

    @property
    def log(self) -> Path:
        return self.path / "serve.log"

    def mailprobe(self, *words: str) -> str:
        """Run another command in this place; return its standard output."""
        pipe = subprocess.PIPE
        done = warm_process.run(
            [WARM_COMMAND, *words], cwd=self.path, env=self.env, stdout=pipe, stderr=pipe, text=True
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def make_account(self, tier: str) -> Credentials:
        """Do what `mailprobe account create` does, in a thread: it takes a tenth of the time."""
        return self.make_accounts(tier, 1)[0]

    def make_accounts(self, tier: str, count: int) -> list[Credentials]:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(trio.run, self._make_accounts, tier, count).result()

    async def _make_accounts(self, tier: Any, count: int) -> list[Credentials]:
        size = StoreSize(answer_s=PATIENCE_S)
        async with open_store(self.database, secret_key=self.secret_key, size=size) as store:
            return [
                Credentials(**await new_account(store, f"ann{number or ''}@example.org", tier))
                for number in range(count)
            ]


def make_place(path: Path, lab: Lab, plans: str, **settings: str) -> Place:
    """Make a place with `plans` as its TOML file; `settings` are named as in mailprobe.toml."""
    (path / "data").mkdir(parents=True, exist_ok=True)  # of the database: opened by its whole path
    (path / "plans.toml").write_text(plans)
    ours = {name: text for name, text in os.environ.items() if not name.startswith("MAILPROBE_")}
    said = {"plans_file": "plans.toml", "log": "warning", **settings}
    said = {"tools_bind": "127.0.0.1:0", **store_settings(), **said}
    env = {f"MAILPROBE_{name.upper()}": text for name, text in said.items()}
    return Place(path, {**ours, **lab.env, **env, "PYTHONPATH": str(ROOT), "HOME": str(path)})


@dataclass(frozen=True)
class Running:
    """A running service and its URL."""

    place: Place
    process: "subprocess.Popen[bytes]"
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def manage(self, who: Credentials, path: str) -> Any:
        """Return the answer of a management route for the account."""
        answer = httpx.get(
            f"{self.url}/v1/management{path}",
            headers={"Authorization": f"Bearer {who.provisioning_key}"},
            timeout=PATIENCE_S,
            trust_env=False,
            verify=False,  # otherwise httpx reads all the authorities, for 50 ms
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def kill(self) -> None:
        """Send SIGKILL to all its processes at once; return when none is left."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        """Send SIGTERM and expect exit code 0."""
        self.process.send_signal(signal.SIGTERM)
        self.wait()
        assert self.process.returncode == 0, self.place.log.read_text()

    def wait(self) -> None:
        """Wait until all its processes have ended: each of them holds its standard output."""
        self.process.communicate(timeout=PATIENCE_S)


@contextmanager
def running(
    place: Place,
    *,
    workers: int = 1,
    bind: str = "127.0.0.1:0",
    patience_s: float = PATIENCE_S,
    warm: bool = True,
) -> Iterator[Running]:
    """Start the service of this place; kill what is left of it at the end.

    Not `warm` it has its own interpreter, for a test of its memory.
    """
    start, command = (WarmProcess, [WARM_COMMAND]) if warm else (subprocess.Popen, COMMAND)
    began_at = place.log.stat().st_size if place.log.exists() else 0
    with place.log.open("ab") as log:
        process = start(
            [*command, "serve", "--bind", bind, "--workers", str(workers)],
            cwd=place.path,
            env=place.env,
            stdout=subprocess.PIPE,
            stderr=log,  # a file: an unread pipe would block the service
            start_new_session=True,
        )
    try:
        yield Running(place, process, _announced(process, place.log, began_at, patience_s))
    finally:
        if process.stdout and not process.stdout.closed:  # some process may still run
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE_S)


def _announced(
    process: "subprocess.Popen[bytes]", log: Path, began_at: int, patience_s: float
) -> str:
    """Wait for the line "serving on" and return its URL; the service then accepts connections."""
    deadline = time.monotonic() + patience_s
    while True:
        ended = process.poll() is not None
        said = log.read_bytes()[began_at:].decode()
        if found := re.search(r"serving on (http://\S+?),? ", said):
            return found[1]
        assert not ended, said
        assert time.monotonic() < deadline, said
        time.sleep(POLL_S)


def free_bind() -> str:
    """Return an address to serve on repeatedly; its port is never given to a client."""
    return f"127.0.0.1:{free_port()}"
