"""Two services on one PostgreSQL: one is killed, or the database stops and restarts under load."""

import base64
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import trio
import trustme

from mailprobe.bench.lab import Lab
from mailprobe.bench.load.private_postgres import PrivatePostgres
from tests.api.jobs.test_killed import check_counts, open_receiver, settled, submit_jobs
from tests.api.quota.test_killed import (
    WIDE,
    Book,
    Gone,
    Load,
    Pool,
    Wire,
    assert_counted_idempotency,
)
from tests.api.service_fixture import VERIFY
from tests.api.service_process import Credentials, Running, make_place, running
from tests.api.stores import asked
from tests.storage.fixed_clock import SECRET

RESUMED_S = 30.0  # promised of jobs whose process was killed
# Promised while the database is away, and after its restart. The quickest of several counts: a busy
# machine delays some of them, a wait within the service delays all.
REFUSED_S = 1.0
HEALED_S = 2.0
WAIT_S_MAX = 60.0  # for what must happen, on a busy machine
ACCOUNTS = 4
STOPS = 3


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def pair(
    tmp_path: Path, lab: Lab, server: PrivatePostgres, authority: trustme.CA
) -> Iterator[tuple[Running, Running]]:
    """Two services, each with its own folder, as on two machines."""
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    settings = {
        "database": server.new_database(),
        "secret_key": base64.b64encode(SECRET).decode(),
        "webhook_ca_file": str(tmp_path / "authority.pem"),
        "webhook_retry_seconds": "1,1,1,1,1,1,1,1,1,1",
    }
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(running(make_place(tmp_path / name, lab, WIDE, **settings)))
            for name in ("one", "other")
        )
        yield one, other


# httpx leaves the body's generator behind where a request is cancelled
@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")
async def test_the_jobs_of_a_killed_service_go_on_in_the_other(
    pair: tuple[Running, Running], lab: Lab, authority: trustme.CA
):
    """Each callback is made once, each job billed once."""
    one, other = pair
    database = one.place.database
    accounts = [vars(one.place.make_account("scale")) for _ in range(ACCOUNTS)]
    slow = lab.addresses["timed_out"]  # so that many are under way
    accepted: dict[str, str] = {}
    async with open_receiver(lab, authority) as (receiver, urls):
        async with trio.open_nursery() as nursery:
            for n, account in enumerate(accounts):
                nursery.start_soon(submit_jobs, one.port, account, slow[n], urls[n], accepted)
            with trio.fail_after(WAIT_S_MAX):
                while not (claimed := under_way(database)) or len(accepted) < 4 * ACCOUNTS:  # noqa: ASYNC110 - as below
                    await trio.sleep(0.01)
            one.process.send_signal(signal.SIGKILL)
            began = time.monotonic()
            nursery.cancel_scope.cancel()
        with trio.fail_after(2 * WAIT_S_MAX):
            while not settled(database, accepted, receiver):  # noqa: ASYNC110 - of another process
                await trio.sleep(0.1)
        took_s = time.monotonic() - began
    check_counts(database)
    assert set(accepted) <= set(receiver.calls)
    assert all(len(bodies) == 1 for bodies in receiver.bodies.values())
    assert taken_over(database, claimed), "no job was taken over, so this proved nothing"
    assert took_s < RESUMED_S
    other.stop()


def under_way(database: str) -> dict[str, int]:
    """The jobs that are being verified, each with the fence of its claim."""
    [rows] = asked(
        database,
        "SELECT id, fence FROM jobs WHERE state = 'pending' AND lease_until IS NOT NULL",
    )
    return dict(rows)


def taken_over(database: str, claimed: dict[str, int]) -> list[str]:
    """The jobs that were claimed again: to be verified, and then for the callback."""
    [rows] = asked(database, "SELECT id, fence FROM jobs")
    return [id for id, fence in rows if id in claimed and fence >= claimed[id] + 2]


class Steady(Load):
    """Clients that reconnect after each break, until `ended`."""

    async def _repeat(
        self, act: Callable[[Wire, Book], Awaitable[None]], port: int, book: Book
    ) -> None:
        while not self.ended:
            with suppress(Gone, OSError):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    wire = Wire(stream, book.who.key)
                    while not self.ended:
                        await act(wire, book)
            await trio.sleep(0.01)

    ended = False


async def test_a_database_that_stops_under_load_is_reported_at_once_and_loses_nothing(
    pair: tuple[Running, Running], lab: Lab, server: PrivatePostgres
):
    """Clients of both services keep books; each stop is like a power cut."""
    refused_s, healed_s = list[float](), list[float]()
    one, other = pair
    books = [Book(one.place.make_account("builder")) for _ in range(2)]
    pool = Pool(lab.addresses["syntax"], lab.addresses["disposable"])
    loads = [Steady(pool, random.Random(n), [book]) for n, book in enumerate(books)]
    probe = one.place.make_account("builder")
    async with loads[0].on(one.port), loads[1].on(other.port):
        for _ in range(STOPS):
            await trio.sleep(0.5)  # of load
            await trio.to_thread.run_sync(server.stop)
            try:
                for service in (one, other, one):
                    began = time.monotonic()
                    assert await status_of(service, probe) == 503
                    refused_s.append(time.monotonic() - began)
            finally:
                await trio.to_thread.run_sync(server.start)
            healed_s.append(await seconds_until_healed((one, other), probe))
        for load in loads:
            load.ended = True
    for place in range(3):
        assert min(refused_s[place::3]) < REFUSED_S
    assert min(healed_s) < HEALED_S
    for book in books:
        assert book.received.units
        assert_counted_idempotency(one.place, book)
    for service in (one, other):
        service.stop()


async def status_of(service: Running, credentials: Credentials) -> int:
    """The status of a request."""
    async with httpx.AsyncClient(
        base_url=service.url, trust_env=False, verify=False, timeout=WAIT_S_MAX
    ) as client:
        response = await client.post(
            VERIFY,
            json={"email": "not an address"},
            headers={"Authorization": f"Bearer {credentials.key}"},
        )
    return response.status_code


async def seconds_until_healed(services: tuple[Running, ...], credentials: Credentials) -> float:
    """Wait until each serves again."""
    began = time.monotonic()
    with trio.fail_after(WAIT_S_MAX):
        for service in services:
            while await status_of(service, credentials) != 200:
                pass
    return time.monotonic() - began
