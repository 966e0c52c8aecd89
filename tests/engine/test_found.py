"""Found wrong, each with its reproduction; a test moves beside its like once it holds."""

import pytest

from engine.testing.hosts import MailHost
from engine.testing.personalities import new_host
from engine.testing.troubles import Silence
from engine.testing.world import open_world
from tests.engine.test_outcomes import DELIVERABLE, TIMED_OUT, told, verify


async def test_an_accepted_address_is_not_left_untested_by_anothers_silence(autojump_clock):
    """The random address stands behind another's silent recipient in the same write: when that
    session fails, leave_untested() settles everyone who waits for the test with 0.90, though
    1.8 s are left to ask it on a fresh connection (it was never answered late itself)."""
    async with open_world() as world:
        world.add("shop.test", MailHost(latency_s=0.05, troubles={"nobody1": Silence()}))
        known, silent = await verify(world, "known@shop.test", "nobody1@shop.test")
        assert told(silent) == TIMED_OUT
        assert told(known) == DELIVERABLE


@pytest.mark.parametrize("first", ["unanswered", "silent", "late banner", "silent at ehlo"])
async def test_nine_who_wait_for_a_silent_exchange_are_sent_on_as_soon_as_eight(
    autojump_clock, first
):
    """Nine or more let a second connection be opened after 150 ms. Pool._try_addresses then takes
    both failures for crowding (`not alone`), though no session ever lived there; nobody is told.
    A third attempt is made at 1.15 s, fails at 2.15 s, and only that one sends the questions on:
    too late for a backup that needs a second. With eight they are sent on at 1.0 s.
    """
    async with open_world() as world:
        world.add("shop.test", new_host(first), mx="mx1.shop.test", preference=10)
        backup = MailHost(latency_s=0.3)
        world.add("shop.test", backup, mx="mx2.shop.test", preference=20)
        for count in (8, 9):
            verdicts = await verify(world, *(f"known{n}@shop.test" for n in range(count)))
            assert set(map(told, verdicts)) == {DELIVERABLE}
            assert max(verdict.latency_ms for verdict in verdicts) <= 2500
