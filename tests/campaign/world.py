"""The world of a campaign: a lab, a service on a small disk, a receiver of callbacks, and clients."""

import json
import os
import resource
import signal
import sqlite3
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Literal

import h11
import httpx
import trio
import trustme
from msgspec import Struct, field, structs

from mailprobe.bench.lab import Lab
from tests.api.jobs.test_killed import host_names
from tests.api.quota.test_killed import end_leases, kept, reserved_later
from tests.api.service_process import ROOT, Place, Running, free_bind, make_place, running
from tests.api.stores import asked
from tests.campaign.load import Draws, PlainClient, Pool, Repeater
from tests.campaign.witness import Book, Final, Stored, Units, Witness
from tests.warm_lab import start_lab

DISK_MIB = 64
RECEIVERS = 3
DELIVERABLE = 40  # addresses that need a mail host
WORKERS = 2
SETTLE_S = 240.0  # until all has ended that was promised; a quiet machine takes seconds
RESEND_S = 10.0  # a job whose callback has failed meanwhile is posted again
POLL_S = 0.2
FAKETIME = "/usr/lib/{}/faketime/libfaketimeMT.so.1"
SLEEP_BY_SELECT = """
import select
import time


def sleep(seconds):
    select.select((), (), (), seconds)


time.sleep = sleep
"""
DESCRIPTORS = 4096
# No limit is in the way.
PLANS = """
[builder]
rate_limit_per_min = 1_000_000
monthly_calls = 100_000_000
"""

Mode = Literal["ok", "hang", "fail"]


class Receiver(Struct):
    """Takes callbacks, by job; in the mode `hang` it reads and never answers."""

    mode: Mode = "ok"
    failed: int = 0  # callbacks that came in another mode
    bodies: dict[str, list[bytes]] = field(default_factory=dict)

    async def serve(self, stream: trio.abc.Stream) -> None:
        connection, body = h11.Connection(h11.SERVER), b""
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    connection.receive_data(bytes(await stream.receive_some(65536)))
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.ConnectionClosed):
                    return
            self.failed += self.mode != "ok"
            if self.mode == "hang":
                await stream.receive_some(1)
                return
            if self.mode == "fail":
                await stream.send_all(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
                return
            self.bodies.setdefault(_job_of(body), []).append(body)
            await stream.send_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            pass  # the service was killed
        finally:
            await trio.aclose_forcefully(stream)


def _job_of(body: bytes) -> str:
    return str(json.loads(body).get("job_id"))


class World(Struct):
    """What the faults act upon. `service` is the one that runs now."""

    place: Place
    lab: Lab
    receiver: Receiver
    witness: Witness
    clients: list[Repeater | PlainClient]
    rng: Random
    disk: Path
    bind: str
    service: Running | None = None
    started: ExitStack = field(default_factory=ExitStack)
    lists_done: int = 0

    async def start(self, **env: str) -> None:
        """Start the service; `env` holds for this start alone."""
        place = replace(self.place, env={**self.place.env, **env})

        def start() -> Running:
            return self.started.enter_context(
                running(place, workers=WORKERS, bind=self.bind, warm="LD_PRELOAD" not in env)
            )

        self.service = await trio.to_thread.run_sync(start)

    async def stop(self) -> None:
        """Send SIGTERM, and wait for the end. How long it takes is for a quiet machine to test."""
        service, self.service = self.service, None
        if service is not None:
            service.process.send_signal(signal.SIGTERM)
            await trio.to_thread.run_sync(service.wait)
        await trio.to_thread.run_sync(self.started.close)

    async def kill(self) -> None:
        service, self.service = self.service, None
        if service is not None:
            await trio.to_thread.run_sync(service.kill)
        await trio.to_thread.run_sync(self.started.close)

    @property
    def port(self) -> int:
        return int(self.bind.rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"http://{self.bind}"

    def processes(self) -> list[int]:
        """The service's processes: its parent first, then workers and readers."""
        assert self.service is not None
        return descendants(self.service.process.pid)

    async def progress(self, acknowledgements: int, within_s: float = SETTLE_S) -> None:
        """Wait until clients had so many more acknowledgements. Raises trio.TooSlowError."""
        until = self.witness.acknowledgements + acknowledgements
        with trio.fail_after(within_s):
            while self.witness.acknowledgements < until:  # noqa: ASYNC110 - many tasks add to it
                await trio.sleep(POLL_S)

    async def settle(self) -> list[str]:
        """Wait until all that was promised has ended; return what differs from it."""
        resend_at = trio.current_time() + RESEND_S
        with trio.move_on_after(SETTLE_S):
            while not self._has_settled():
                await trio.sleep(POLL_S)
                if trio.current_time() > resend_at:
                    await trio.to_thread.run_sync(self._resend)
                    resend_at = trio.current_time() + 3 * RESEND_S
        final = await trio.to_thread.run_sync(self._final)
        found = self.witness.compare(structs.replace(final, reserved=await self._reserved()))
        await trio.to_thread.run_sync(self._delete_lists)
        return found

    def _delete_lists(self) -> None:
        """An account has room for a hundred lists."""
        who = self.witness.books[2].who
        headers = {"Authorization": f"Bearer {who.key}"}
        for id in sorted(self.witness.lists):
            url = f"{self.url}/v1/lists/{id}"
            httpx.delete(url, headers=headers, timeout=60, trust_env=False, verify=False)
        self.lists_done += len(self.witness.lists)
        self.witness.lists.clear()

    def _has_settled(self) -> bool:
        jobs, lists = self._jobs_and_lists()
        return all(
            jobs.get(job) == "done" and job in self.receiver.bodies for job in self.witness.jobs
        ) and all(id in lists and lists[id][0] == "done" for id in self.witness.lists)

    def _resend(self) -> None:
        """What failed while the receiver or the resolver was away waits for minutes."""
        jobs, _ = self._jobs_and_lists()
        for job in sorted(self.witness.jobs):
            if jobs.get(job) in ("delivering", "failed") and job not in self.receiver.bodies:
                self.place.mailprobe("job", "resend", job)

    def _jobs_and_lists(self) -> tuple[dict[str, str], dict[str, tuple[str, int, int]]]:
        jobs, lists = asked(
            self.place.database,
            "SELECT id, state FROM jobs",
            "SELECT id, state, answered, rows FROM lists",
        )
        return dict(jobs), {id: (state, answered, rows) for id, state, answered, rows in lists}

    def _final(self) -> Final:
        jobs, lists = self._jobs_and_lists()
        [[(damage,)]] = asked(self.place.database, "PRAGMA integrity_check(1)")
        return Final(
            {book.who.account_id: _stored(self.place, book) for book in self.witness.books},
            0,
            jobs,
            lists,
            dict(self.receiver.bodies),
            damage,
        )

    async def _reserved(self) -> int:
        return sum([await reserved_later(self.place, book.who) for book in self.witness.books])


def _stored(place: Place, book: Book) -> Stored:
    found = kept(place, book.who)
    return Stored(
        Units(found.rows.units, found.rows.billable),
        Units(found.months.units, found.months.billable),
        found.days_billable,
    )


def descendants(pid: int) -> list[int]:
    """A process and all below it, as /proc shows them."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += sorted(children.get(each, ()))
    return found


def set_clock(folder: Path, offset: str) -> dict[str, str]:
    """Set the clock of processes with these settings; durations stay true.

    libfaketime shifts the end of `time.sleep`, an instant of the monotonic clock, with the clock of the
    day. So a process sleeps by `select`, which takes a duration.
    """
    (folder / "sitecustomize.py").write_text(SLEEP_BY_SELECT)
    (folder / "clock.new").write_text(offset)
    (folder / "clock.new").replace(folder / "clock")
    return {
        "LD_PRELOAD": FAKETIME.format(f"{os.uname().machine}-linux-gnu"),
        "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
        "FAKETIME_CACHE_DURATION": "1",  # without a cache each look at a clock would read the file
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": f"{folder}:{ROOT}",
    }


@contextmanager
def small_disk() -> Iterator[Path]:
    """A folder on a disk of its own that is soon full."""
    with tempfile.TemporaryDirectory(prefix="mailprobe-campaign-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "tmpfs", folder]
        subprocess.run(mount, check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@asynccontextmanager
async def open_receiver(
    lab: Lab, authority: trustme.CA
) -> AsyncIterator[tuple[Receiver, list[str]]]:
    """Open a receiver at some names of the lab; yield it and its URLs."""
    names = dict(list((await host_names(lab)).items())[:RECEIVERS])
    receiver, urls = Receiver(), []
    async with trio.open_nursery() as nursery:
        for name, ip in names.items():
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            authority.issue_cert(name).configure_cert(context)
            listeners = await trio.open_tcp_listeners(0, host=ip)
            urls.append(f"https://{name}:{listeners[0].socket.getsockname()[1]}/hook")
            tls = [trio.SSLListener(each, context) for each in listeners]
            nursery.start_soon(trio.serve_listeners, receiver.serve, tls)
        yield receiver, urls
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_world(seed: int) -> AsyncIterator[World]:
    """Everything but the service, which each round starts."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    rng = Random(seed)
    authority = trustme.CA()
    with small_disk() as disk, start_lab(seed=seed) as lab:
        authority.cert_pem.write_to_path(str(disk / "ca.pem"))
        place = make_place(
            disk / "service", lab, PLANS, webhook_ca_file=str(disk / "ca.pem"), log="warning"
        )
        whos = await trio.to_thread.run_sync(place.make_accounts, "builder", 3)
        books = [Book(whos[0], True), Book(whos[1], False), Book(whos[2], True)]
        witness = Witness(books)
        pool = Pool(
            lab.addresses["syntax"],
            lab.addresses["disposable"] + lab.addresses["deliverable"][:DELIVERABLE],
        )
        async with open_receiver(lab, authority) as (receiver, urls):
            draws = Draws(pool, Random(rng.random()), witness, urls)
            clients: list[Repeater | PlainClient] = [
                Repeater(book, witness, draw, Random(rng.random()))
                for book, draw in (
                    *((books[0], draws.check),) * 3,
                    *((books[2], draws.job),) * 2,
                    (books[2], draws.list),
                )
            ]
            clients.append(PlainClient(books[1], witness, pool, Random(rng.random())))
            world = World(place, lab, receiver, witness, clients, rng, disk, free_bind())
            try:
                yield world
            finally:
                with trio.CancelScope(shield=True):
                    await world.kill()


def pass_a_minute(place: Place) -> None:
    """End the leases of all that was killed, while no service runs."""
    end_leases(place)
    with closing(sqlite3.connect(place.database)) as db, db:
        for table in ("jobs", "list_chunks", "reservations"):
            db.execute(f"UPDATE {table} SET lease_until = 0 WHERE lease_until IS NOT NULL")
