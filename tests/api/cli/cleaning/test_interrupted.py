"""A list that is interrupted again and again at a mail host that bans a client for its refusals."""

from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.cli.cleaning.addresses import DistinctAddresses
from mailprobe.api.cli.cleaning.earlier_refusals import EarlierRefusals
from mailprobe.api.cli.cleaning.passes import Passes, Recheck
from mailprobe.api.cli.source import ACCOUNT, OwnEngine
from mailprobe.api.listfile.journal import VERSION, Header, open_journal
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import Late
from mailprobe.bench.world.host_defences import Defence
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine.smtp.tolerance.host import Tolerance
from tests.api.fake_source import result_of
from tests.engine.engine_runs import open_test_engine

HEADER = Header(VERSION, 10, "ab" * 32)
LIVING = [f"known{number}@shop.test" for number in range(40)]
GONE = [f"gone{number}@shop.test" for number in range(40)]
MIXED = [address for pair in zip(LIVING, GONE, strict=True) for address in pair]
INTERRUPTIONS = 7
NOW = 10_000.0


async def interrupted(network: FakeNetwork, path: Path, every_s: float) -> Passes:
    """Clean the list in several runs, each with an engine of its own; return the last one."""
    number = 0
    while True:
        addresses = DistinctAddresses()
        for address in MIXED:
            addresses.add(address)
        with (
            open_journal(path, HEADER, resume=True) as journal,
            trio.move_on_after(every_s if number < INTERRUPTIONS else 86_400.0) as scope,
        ):
            recheck = Recheck(2, patience_s=4 * 3600.0)
            passes = Passes(addresses, journal, recheck, now=trio.current_time)
            passes.replay()
            earlier = passes.earlier
            attach = earlier.attach if earlier else None
            async with open_test_engine(network, refusals=attach) as engine:
                await passes.run(OwnEngine(engine))
        if not scope.cancelled_caught:
            return passes
        number += 1


@pytest.mark.parametrize("every_s", [3.0, 30.0, 200.0])
@pytest.mark.parametrize("refusals", [4, 10, 25])
async def test_a_ban_of_an_earlier_run_costs_a_list_time_and_no_answers(
    autojump_clock: trio.abc.Clock, tmp_path: Path, every_s: float, refusals: int
) -> None:
    """What a run has asked when it is killed it may ask again: that alone may be too much."""
    defence = Defence(
        jail_refusals_max=refusals if refusals == 4 else None, hour_refusals_max=refusals
    )
    async with open_fake_network() as network:
        mailboxes = frozenset(LIVING)
        faults = {"RCPT": Late(0.4)}
        network.add("shop.test", MailHost(mailboxes=mailboxes, defence=defence, faults=faults))
        passes = await interrupted(network, tmp_path / "j", every_s)
    assert passes.counts.done == len(MIXED)
    assert passes.counts.reasons["rate_limited"] <= 1


async def test_refusals_of_the_last_hour_are_counted_by_host(
    autojump_clock: trio.abc.Clock,
) -> None:
    earlier = EarlierRefusals(ACCOUNT, now=lambda: NOW)
    assert not earlier
    for text, age_s in {
        "nobody+1@shop.test": 10.0,
        "nobody+2@shop.test": 3_700.0,  # no guard counts it any more
        "ann@shop.test": 20.0,  # its domain's random name was refused
        "bob@shop.test": 15.0,
        "slow@shop.test": 5.0,
        "nobody+3@shop.test": -86_400.0,  # the clock was ahead
    }.items():
        earlier.add(replace(result_of(text), answered_at=NOW - age_s))
    assert earlier
    met, other = Tolerance(), Tolerance()
    earlier.attach("mx.shop.test", met)
    earlier.attach("mx.other.test", other)
    now = trio.current_time()
    assert met.budget.refusals.of_account(ACCOUNT, now) == 3
    assert (met.budget.refusals.in_hour(now), other.budget.refusals.in_hour(now)) == (3, 0)
    assert met.may_have_banned(now)
