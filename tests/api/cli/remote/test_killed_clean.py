"""`mailprobe clean --server`, ended at random and resumed: each row once, and each paid once.

MAILPROBE_KILLS=20 tries so many worlds of each kind.
"""

import csv
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
import trio

from mailprobe.api.http.listeners import open_sockets
from mailprobe.api.serve import serve_service
from mailprobe.bench.world.mail_host import MailHost
from tests.api.lists.test_lists import open_list_shop
from tests.warm_process import WarmProcess

WORLDS = int(os.environ.get("MAILPROBE_KILLS", "1"))
WITHIN_S = 120.0  # only a failing test waits so long
POLL_S = 0.005
ENDS = [signal.SIGKILL, signal.SIGINT, signal.SIGTERM]
PROGRAM = "tests.api.cli.remote.quick_clean"


def texts(rng: random.Random, count: int) -> list[str]:
    domains = [f"shop{number}.test" for number in range(20)]
    return [f"known{number}@{rng.choice(domains)}" for number in range(count)]


def octets_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def run_until(
    command: list[str], journal: Path, octets: int | None, end: signal.Signals
) -> int:
    """Run the command; send it a signal once its journal has so many octets."""
    nothing = subprocess.DEVNULL
    with (
        trio.fail_after(WITHIN_S),
        WarmProcess(command, stdin=nothing, stdout=nothing, stderr=nothing) as process,
    ):
        try:
            while process.poll() is None:
                if octets is not None and octets_of(journal) >= octets:
                    process.send_signal(end)
                    octets = None
                await trio.sleep(POLL_S)
        finally:
            process.kill()
    return process.returncode


@pytest.mark.parametrize("long", [10_000, 50], ids=["requests", "a list"])
@pytest.mark.parametrize("seed", range(WORLDS))
async def test_a_run_that_is_ended_and_resumed_pays_for_each_address_once(
    seed: int, long: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    addresses = texts(rng, 240)
    rows = [*addresses, *rng.choices(addresses, k=28)]
    (tmp_path / "list.csv").write_text("email\n" + "".join(f"{row}\n" for row in rows))
    async with open_list_shop() as shop, trio.open_nursery() as nursery:
        for number in range(20):
            shop.world.add(f"shop{number}.test", MailHost(latency_s=0.02))
        sockets, drain = open_sockets("127.0.0.1", 0), trio.Event()
        await nursery.start(serve_service, shop.service, sockets, drain)
        server = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        command = [PROGRAM, str(long), "clean", str(tmp_path / "list.csv"),
                   "--server", server, "--key", shop.key, "--resume", "--recheck", "0",
                   "-o", str(tmp_path / "out.csv")]  # fmt: skip
        journal = tmp_path / "out.csv.journal"
        kept, codes = 0, []
        for _ in range(2):
            more = rng.randint(300, 40_000)
            codes.append(await run_until(command, journal, kept + more, rng.choice(ENDS)))
            kept = octets_of(journal)
        if not (tmp_path / "out.csv").exists():
            assert await run_until(command, journal, None, signal.SIGKILL) == 0
        paid = [row for row in await shop.rows() if row.billable]
        drain.set()
        nursery.cancel_scope.cancel()
    with (tmp_path / "out.csv").open(newline="") as file:
        cleaned = list(csv.DictReader(file))
    assert [row["email"] for row in cleaned] == rows
    assert len(paid) == len(addresses)
    assert codes[0] in (130, -signal.SIGKILL)
