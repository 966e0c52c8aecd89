"""Processes that share lists are killed and suspended, and the server is stopped: money counts once."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import psycopg
import trio

from mailprobe.bench.load.private_postgres import PrivatePostgres
from mailprobe.storage import open_store
from mailprobe.storage.store import Store
from tests.peers.postgres.database import assert_no_deadlock, query
from tests.peers.postgres.list_worker import LEASE_S, answers_in
from tests.storage.child_processes import ROOT
from tests.storage.contract.list_calls import running
from tests.storage.fixed_clock import SECRET, make_caller

LISTS, CHUNKS, UNITS = 3, 20, 5
ADDRESSES = CHUNKS * UNITS
ANSWERED = "SELECT coalesce(sum(answered), 0)::int FROM lists"
DONE = "SELECT count(*)::int FROM lists WHERE state = 'done'"
WAIT_S_MAX = 180.0  # on a busy machine


@contextmanager
def worker(url: str, seed: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "tests.peers.postgres.list_worker", url, f"{seed}"]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


async def reach(url: str, count: int, counted: str = ANSWERED) -> None:
    """Wait until so many addresses are answered, or what else is counted."""
    found = -1
    while found < count:
        with suppress(psycopg.Error):
            [(found,)] = query(url, counted)
        await trio.sleep(0.05)


async def test_results_charges_and_progress_agree_whatever_happens_to_the_processes(
    server: PrivatePostgres, url: str
) -> None:
    async with open_store(url, secret_key=SECRET) as store:
        caller = await make_caller(store)
        for number in range(LISTS):
            await running(store, caller, *[UNITS] * CHUNKS, id=f"list-{number}", rechecks=1)
        with ExitStack() as stack, trio.fail_after(WAIT_S_MAX):
            killed, suspended, _ = [stack.enter_context(worker(url, seed)) for seed in range(3)]
            await reach(url, ADDRESSES // 4)
            killed.kill()
            suspended.send_signal(signal.SIGSTOP)
            await trio.sleep(2 * LEASE_S)  # its claims end, and others take its chunks
            suspended.send_signal(signal.SIGCONT)
            for share, is_gentle in ((1.5, False), (2, True)):
                await reach(url, int(ADDRESSES * share))
                await trio.to_thread.run_sync(partial(server.stop, gently=is_gentle))
                await trio.to_thread.run_sync(server.start)
            suspended.send_signal(signal.SIGSTOP)
            await reach(url, LISTS * ADDRESSES)
            suspended.send_signal(signal.SIGCONT)
            await reach(url, LISTS, DONE)
    async with open_store(url, secret_key=SECRET) as store:
        for number in range(LISTS):
            await assert_complete(store, f"list-{number}")
        ledger = await store.ledger(caller)
        counted = "SELECT count(*)::int, sum(units)::int FROM usage"
        assert query(url, counted) == [(LISTS * ADDRESSES, LISTS * ADDRESSES)]
        assert ledger.month_billable == ledger.month_units - ledger.reserved == LISTS * ADDRESSES
    assert_no_deadlock(url)


async def assert_complete(store: Store, id: str) -> None:
    found = await store.stored_list(id)
    assert found is not None
    assert (found.state, found.answered, found.rechecks) == ("done", ADDRESSES, 0)
    assert dict(found.counts) == {"deliverable": ADDRESSES}
    for _, results in await store.list_results(id, range(CHUNKS)):
        assert len(answers_in(results)) == UNITS
