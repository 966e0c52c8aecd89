"""One dead host among healthy ones, or alone: every row is written, and the exit code is 0."""

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mailprobe.api.cli.cleaning.addresses import DistinctAddresses
from mailprobe.api.cli.cleaning.passes import Passes
from mailprobe.api.cli.source import OwnEngine
from mailprobe.api.listfile.journal import open_journal
from mailprobe.bench.lab import Lab
from mailprobe.bench.lab.dead_host import (
    DEAD_ADDRESSES,
    DEAD_DOMAIN,
    HEALTHY_EACH,
    HEALTHY_HOSTS,
)
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from tests import warm_process
from tests.api.cli.cleaning.test_passes import HEADER
from tests.api.cli.test_clean import ROOT, rows_of
from tests.api.service_process import make_place, running
from tests.engine.engine_runs import open_test_engine
from tests.seeds import pairs
from tests.warm_lab import start_lab

PLANS = """
[scale]
rate_limit_per_min = 1_000_000
"""
ORDERS = ("shuffled", "first", "last", "alone")
PROFILES = ("unanswered", "unreachable", "refused", "silent", "closing")


def in_order(order: str, dead: list[str], healthy: list[str]) -> list[str]:
    if order == "shuffled":
        mixed = [*dead, *healthy]
        random.Random(1).shuffle(mixed)
        return mixed
    return {"first": [*dead, *healthy], "last": [*healthy, *dead], "alone": dead}[order]


@pytest.mark.parametrize(("profile", "order"), pairs(PROFILES, ORDERS))
@pytest.mark.parametrize("interrupted", [False, True])
async def test_each_address_is_answered_whatever_the_host_does(
    autojump_clock: trio.abc.Clock, tmp_path: Path, profile: str, order: str, interrupted: bool
) -> None:
    async with open_fake_network() as network:
        network.add("dropped.test", new_host(profile))
        for place in range(10):
            network.add(f"healthy{place}.test", new_host("postfix"))
        dead = [f"known{number}@dropped.test" for number in range(250)]
        healthy = [f"known{n}@healthy{place}.test" for place in range(10) for n in range(20)]
        addresses = DistinctAddresses()
        for address in in_order(order, dead, healthy):
            addresses.add(address)
        if interrupted:
            with open_journal(tmp_path / "j", HEADER, resume=False) as journal:
                async with open_test_engine(network) as engine:
                    with trio.move_on_after(0.5):
                        passes = Passes(addresses, journal, now=trio.current_time)
                        await passes.run(OwnEngine(engine))
        with open_journal(tmp_path / "j", HEADER, resume=interrupted) as journal:
            async with open_test_engine(network) as engine:
                passes = Passes(addresses, journal, now=trio.current_time)
                passes.replay()
                await passes.run(OwnEngine(engine))
    assert addresses.answered == len(addresses.numbers)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab("dead") as lab:
        yield lab


def clean(
    place: Path, lab: Lab, order: str, *words: str, **env: str
) -> "subprocess.CompletedProcess[str]":
    addresses = in_order(order, lab.addresses["timed_out"], lab.addresses["deliverable"])
    (place / "list.csv").write_text("email\n" + "".join(f"{each}\n" for each in addresses))
    return warm_process.run(
        [
            *("mailprobe.api.cli", "clean", "list.csv"),
            *("--recheck", "0", "-o", "out.csv", *words),
        ],
        cwd=place,
        env={**os.environ, **lab.env, **env, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def check_every_row_is_written(
    done: "subprocess.CompletedProcess[str]", place: Path, order: str
) -> None:
    assert done.returncode == 0, done.stderr
    assert "no mail host answered" not in done.stderr
    rows = rows_of(place / "out.csv")
    healthy = 0 if order == "alone" else HEALTHY_HOSTS * HEALTHY_EACH
    assert len(rows) == healthy + DEAD_ADDRESSES
    dead = [row for row in rows if row["email"].endswith(DEAD_DOMAIN)]
    assert {(row["status"], row["reason"], row["blame"]) for row in dead} == {
        ("unknown", "timeout", "host")
    }
    assert all(row["status"] for row in rows)
    assert not (place / "out.csv.journal").exists()


@pytest.mark.parametrize("order", ["shuffled", "last", "alone"])
def test_a_host_that_drops_connects_ends_no_run_of_an_engine_here(
    tmp_path: Path, lab: Lab, order: str
) -> None:
    words = ["--resume"] if order == "last" else []
    check_every_row_is_written(clean(tmp_path, lab, order, *words), tmp_path, order)


@pytest.mark.parametrize(
    ("order", "words"), [("shuffled", ()), ("alone", ()), ("alone", ("--live",))]
)
def test_a_host_that_drops_connects_ends_no_run_through_a_service(
    tmp_path: Path, lab: Lab, order: str, words: tuple[str, ...]
) -> None:
    """A long list is a job of the service, a short one a few requests."""
    place = make_place(tmp_path / "service", lab, PLANS)
    with running(place) as service:
        key = place.make_account("scale").key
        done = clean(tmp_path, lab, order, "--server", service.url, "--key", key, *words)
        check_every_row_is_written(done, tmp_path, order)
