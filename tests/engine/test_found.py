"""Found wrong, each with its reproduction; a test moves beside its like once it holds."""

from collections import Counter

import pytest
import trio

from engine import EngineSettings, in_order, open_answers, open_engine
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


async def test_a_pool_does_not_starve_another_at_the_same_address(autojump_clock):
    """Fails about every fourth run. Prober.give_seat_back tells the pool that wants the seat, and
    _work then staffs its own pool as well: both start a task, and whichever the scheduler runs
    first takes the seat in _try_addresses. The one that waited loses every second time, and waits
    for another round or two of the other's. The seat should be given to it in the same step."""
    seen: Counter[object] = Counter()
    async with open_world() as world:
        hosts = [MailHost(reply_s=0.05) for _ in range(2)]
        addresses = [world.add(f"d{number}.test", host) for number, host in enumerate(hosts)]
        world.zone.mx("both.test", "mx.both.test")
        world.zone.host("mx.both.test", *addresses)
        async with (
            open_engine(
                EngineSettings(host_connections=1), transport=world.transport, dial=world.dial
            ) as engine,
            trio.open_nursery() as nursery,
        ):

            async def clean(domain: str) -> None:
                texts = [f"known{number}@{domain}" for number in range(2000)]
                async with open_answers(engine, texts, asker=domain, patient=True) as answers:
                    await in_order(answers, len(texts))

            nursery.start_soon(clean, "d0.test")
            nursery.start_soon(clean, "d1.test")
            for number in range(20):
                await trio.sleep(1)
                text = f"known{number}@both.test"
                async with open_answers(engine, [text], asker="neighbour") as answers:
                    [verdict] = await in_order(answers, 1)
                seen[told(verdict)] += 1
            nursery.cancel_scope.cancel()
    assert seen == {DELIVERABLE: 20}
