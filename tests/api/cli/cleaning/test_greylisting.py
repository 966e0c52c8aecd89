"""Greylisting and slow hosts: the second pass learns what the first could not, on virtual time
and on sockets."""

import csv
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import trio

from mailprobe.api.cli.cleaning.addresses import DistinctAddresses
from mailprobe.api.cli.cleaning.passes import Passes, Recheck
from mailprobe.api.cli.source import OwnEngine
from mailprobe.api.listfile.journal import VERSION, Header, open_journal
from mailprobe.bench.lab.scenarios import GREYLIST_S, GREYLISTING
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Late
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from tests import warm_process
from tests.engine.engine_runs import open_test_engine
from tests.storage.child_processes import ROOT
from tests.warm_lab import start_lab

MINUTES_5 = 300.0
HOSTS, EACH = 40, 25


async def test_five_minutes_later_the_greylisted_are_known(
    autojump_clock: trio.testing.MockClock,
) -> None:
    addresses = DistinctAddresses()
    async with open_fake_network() as network:
        for number in range(HOSTS):
            profile = GREYLISTING[number % len(GREYLISTING)]
            network.add(f"grey{number}.test", new_host(profile, greylist_s=MINUTES_5))
            for person in range(EACH):
                addresses.add(f"{'known' if person % 2 else 'gone'}{person}@grey{number}.test")
        with open_journal(None, Header(VERSION, 1, "ab" * 32), resume=False) as journal:
            async with open_test_engine(network) as engine:
                recheck = Recheck(2, after_s=(MINUTES_5,), patience_s=0)
                passes = Passes(addresses, journal, recheck, now=trio.current_time)
                await passes.run(OwnEngine(engine))
    assert passes.counts.done == HOSTS * EACH
    known = passes.counts.statuses["deliverable"] + passes.counts.statuses["undeliverable"]
    assert known >= 0.99 * HOSTS * EACH
    assert passes.counts.statuses["undeliverable"] >= 0.99 * HOSTS * 13
    assert trio.current_time() < 3 * MINUTES_5
    # Each twice; a third time where the second pass was the first to ask a random address.
    assert 2 * HOSTS * EACH <= passes.asked <= 2 * HOSTS * EACH + HOSTS * (EACH - 13)


@pytest.mark.parametrize("is_patient", [True, False])
async def test_a_patient_recheck_gives_slow_hosts_more_time(
    autojump_clock: trio.testing.MockClock, is_patient: bool
) -> None:
    addresses = DistinctAddresses()
    addresses.add("known@slow.test")
    async with open_fake_network() as network:
        network.add("slow.test", MailHost(faults={"CONNECT": Late(6.0)}))  # postscreen
        with open_journal(None, Header(VERSION, 1, "ab" * 32), resume=False) as journal:
            async with open_test_engine(network) as engine:
                recheck = Recheck(1, is_patient=is_patient)
                passes = Passes(addresses, journal, recheck, now=trio.current_time)
                await passes.run(OwnEngine(engine))
    assert passes.counts.statuses["deliverable"] == is_patient


def test_seconds_later_the_greylisted_are_known_on_sockets(tmp_path: Path) -> None:
    with start_lab("greylisting") as lab:
        emails = lab.addresses["temporary"]
        (tmp_path / "list.csv").write_text("email\n" + "".join(f"{email}\n" for email in emails))
        done = warm_process.run(
            [
                *("mailprobe.api.cli", "clean", "list.csv"),
                *("--recheck-after", f"{GREYLIST_S + 0.5}s"),
            ],
            cwd=tmp_path,
            env={**os.environ, **lab.env, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "list.verified.csv").open() as file:
        rows = list(csv.DictReader(file))
    statuses = Counter(row["status"] for row in rows)
    assert statuses["deliverable"] >= 0.99 * len(emails), statuses
    # The third time because the second pass was the first to ask a random address.
    attempts = Counter(row["attempts"] for row in rows)
    assert attempts["2"] + attempts["3"] >= 0.99 * len(emails)
    assert "greylist" in done.stderr or "come back later" in done.stderr
