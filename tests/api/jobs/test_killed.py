"""kill -9 at any moment between a 202 and its callback: nothing lost, billed once."""

import base64
import json
import os
import random
import signal
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
import trio
import trustme

from mailprobe.api.cli.account import new_account
from mailprobe.bench.lab import Lab
from mailprobe.engine import EngineSettings, open_engine
from mailprobe.storage import open_store
from tests.api.stores import KIND, asked, store_settings
from tests.seeds import seeds
from tests.warm_lab import start_lab
from tests.warm_process import WarmProcess

KILLS = seeds(100) if KIND != "postgres" else 15  # with PostgreSQL each start takes a second
ACCOUNTS = 12  # each with its own host: claims of a killed process delay only their own account
IN_PARALLEL = 4
DONE_S = 120.0  # the goal is half a minute, on a quiet machine


@dataclass
class Receiver:
    """Receives callbacks over TLS and counts them by job."""

    calls: Counter[str] = field(default_factory=Counter)
    bodies: dict[str, set[bytes]] = field(default_factory=dict)

    async def serve(self, stream: trio.abc.Stream) -> None:
        connection = h11.Connection(h11.SERVER)
        body = b""
        try:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(bytes(await stream.receive_some(65536)))
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
                elif isinstance(event, h11.ConnectionClosed):
                    return
            job_id = json.loads(body)["job_id"]
            self.calls[job_id] += 1
            self.bodies.setdefault(job_id, set()).add(body)
            await stream.send_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            pass  # the service that called was killed


@asynccontextmanager
async def open_receiver(
    lab: Lab, authority: trustme.CA
) -> AsyncIterator[tuple[Receiver, list[str]]]:
    """Open a receiver on the addresses of hosts in the lab's resolver; yield it and its URLs."""
    names = await host_names(lab)
    receiver, urls = Receiver(), []
    async with trio.open_nursery() as nursery:
        for name, ip in names.items():
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            authority.issue_cert(name).configure_cert(context)
            listeners = await trio.open_tcp_listeners(0, host=ip)
            port = listeners[0].socket.getsockname()[1]
            tls = [trio.SSLListener(each, context) for each in listeners]
            nursery.start_soon(trio.serve_listeners, receiver.serve, tls)
            urls.append(f"https://{name}:{port}/hook")
        yield receiver, urls
        nursery.cancel_scope.cancel()


async def host_names(lab: Lab) -> dict[str, str]:
    """Return mail hosts of the lab by name, with one address each."""
    settings = EngineSettings(
        doh_urls=(lab.env["MAILPROBE_DOH_URLS"],),
        doh_ca_file=lab.env["MAILPROBE_DOH_CA_FILE"],
        allow_private=True,
    )
    domains = {text.rpartition("@")[2] for texts in lab.addresses.values() for text in texts}
    found: dict[str, str] = {}
    async with open_engine(settings) as engine:
        for domain in sorted(domain for domain in domains if domain.endswith(".test")):
            route = await engine.routes.find(domain)
            for exchange in getattr(route, "exchanges", ()):
                addresses = await engine.routes.addresses(exchange.name)
                for ip in getattr(addresses, "ips", ()):
                    found.setdefault(exchange.name, ip)
            if len(found) >= ACCOUNTS:
                return found
    return found


@contextmanager
def forking(env: dict[str, str], *program: str) -> Iterator[subprocess.Popen[str]]:
    process = WarmProcess(
        program or ["tests.api.forking_service"],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # closes its standard input, which ends it
        yield process


async def started(process: subprocess.Popen[str]) -> int:
    """Fork a service; return its pid once it serves."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("go\n")
    process.stdin.flush()
    return int(await trio.to_thread.run_sync(process.stdout.readline))


async def make_accounts(
    database: str, secret_key: bytes | None, count: int = ACCOUNTS
) -> list[dict[str, str]]:
    async with open_store(database, secret_key=secret_key) as store:
        return [await new_account(store, "ops@shop.test", "scale") for _ in range(count)]


@pytest.fixture
def env(tmp_path: Path) -> Iterator[tuple[dict[str, str], Lab, trustme.CA]]:
    with start_lab() as lab:
        settings, authority = environment(tmp_path, lab)
        yield settings, lab, authority


def environment(tmp_path: Path, lab: Lab) -> tuple[dict[str, str], trustme.CA]:
    """Return the settings of a service in this lab, and the authority of its receivers."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    ours = {
        "MAILPROBE_DATABASE": str(tmp_path / "mailprobe.db"),
        **{f"MAILPROBE_{name.upper()}": text for name, text in store_settings().items()},
        "MAILPROBE_BIND": "127.0.0.1:0",
        "MAILPROBE_TOOLS_BIND": "",
        "MAILPROBE_WEBHOOK_CA_FILE": str(tmp_path / "authority.pem"),
        "MAILPROBE_WEBHOOK_RETRY_SECONDS": "1,1,1,1,1,1,1,1,1,1",
        "MAILPROBE_LOG": "critical",
    }
    return {**lab.env, **ours}, authority


# httpx leaves the body's generator behind where a request is cancelled
@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")
async def test_killed_between_202_and_callback_nothing_is_lost_and_each_job_is_billed_once(
    env: Any, tmp_path: Path
):
    settings, lab, authority = env
    rng = random.Random(0)
    emails = [*lab.addresses["deliverable"][:40], *lab.addresses["disposable"][:20]]
    promised: dict[str, str] = {}  # job -> account
    with forking(settings) as process:
        assert process.stdout
        port = int(await trio.to_thread.run_sync(process.stdout.readline))
        database = settings["MAILPROBE_DATABASE"]
        key = settings.get("MAILPROBE_SECRET_KEY")
        accounts = await make_accounts(database, base64.b64decode(key) if key else None)
        async with open_receiver(lab, authority) as (receiver, urls):
            for _ in range(KILLS):
                pid = await started(process)
                enough = len(promised) + rng.randrange(6)
                async with trio.open_nursery() as nursery:
                    for _ in range(IN_PARALLEL):
                        n = rng.randrange(ACCOUNTS)
                        nursery.start_soon(
                            submit_jobs,
                            port,
                            accounts[n],
                            rng.choice(emails),
                            urls[n % len(urls)],
                            promised,
                        )
                    with trio.move_on_after(5):
                        while len(promised) < enough:  # noqa: ASYNC110 - several tasks fill it
                            await trio.sleep(0.005)
                    await trio.sleep(rng.uniform(0, 0.05))
                    os.kill(pid, signal.SIGKILL)
                    nursery.cancel_scope.cancel()
            await started(process)
            with trio.fail_after(DONE_S):
                while not settled(database, promised, receiver):  # noqa: ASYNC110 - what another process writes
                    await trio.sleep(0.2)
    assert len(promised) > KILLS  # otherwise it was killed before it had accepted a job
    check_counts(database)
    assert set(promised) <= set(receiver.calls)
    assert all(len(bodies) == 1 for bodies in receiver.bodies.values())


async def submit_jobs(
    port: int, account: dict[str, str], email: str, url: str, promised: dict[str, str]
) -> None:
    """Send requests until the nursery ends; record each job that was accepted with 202."""
    service = f"http://127.0.0.1:{port}"
    # verify: otherwise httpx reads all the authorities, for 50 ms, four hundred times
    async with httpx.AsyncClient(base_url=service, trust_env=False, verify=False) as client:
        while True:
            try:
                got = await client.post(
                    "/v1/email/verify",
                    json={"email": email, "webhook": url, "webhook_secret": "a secret"},
                    headers={"Authorization": f"Bearer {account['key']}"},
                )
            except httpx.TransportError:
                await trio.lowlevel.checkpoint()
                continue
            assert got.status_code == 202, got.text
            promised[got.json()["job_id"]] = account["account_id"]
            await trio.sleep(0.05)


def settled(database: str, promised: dict[str, str], receiver: Receiver) -> bool:
    if not set(promised) <= set(receiver.calls):
        return False
    [[(open_,)]] = asked(
        database, "SELECT count(*) FROM jobs WHERE state NOT IN ('done', 'failed')"
    )
    return not open_


def check_counts(database: str) -> None:
    """Check for one row per job, one counted unit per row, and nothing reserved."""
    jobs, rows, units, reserved, failed = asked(
        database,
        "SELECT account, count(*) FROM jobs GROUP BY account",
        "SELECT account, count(*) FROM usage GROUP BY account",
        "SELECT account, sum(units) FROM months GROUP BY account",
        "SELECT count(*) FROM reservations",
        "SELECT count(*) FROM jobs WHERE state = 'failed'",
    )
    assert sorted(jobs) == sorted(rows) == sorted(units)
    assert reserved == failed == [(0,)]
