"""A list uses what nobody else needs, and gives it back at once."""

from functools import partial
from itertools import repeat

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Engine, open_answers
from mailprobe.engine.smtp.turn import KEPT, ListPlaces
from tests.engine.engine_runs import open_checked_engine, verify
from tests.engine.stream.streams import collect

PLACES = 60
HOSTS = 80  # a host that is slow has one address at a time in a patient pass
SLOW_S = 0.4  # from a command to its reply: an address takes seconds, a host has few at a time
ANSWERED_S = 3.2


def filled(places: ListPlaces, account: str, used: int = 0) -> int:
    """Let lists of the account take what they get, one by one; return how many that are."""
    count = 0
    while places.room(account, used + count) > 0:
        places.enter(account, 1)
        count += 1
    return count


@pytest.mark.parametrize("most", [20, 200, 2000])
def test_lists_of_one_account_alone_fill_nine_of_ten_places(most: int) -> None:
    taken = filled(ListPlaces(most), "a")
    assert 0.9 * most <= taken <= most - max(1, most // KEPT)


def test_the_smallest_engine_has_room_for_a_list() -> None:
    assert [ListPlaces(most).room("a", 0) for most in (1, 2, 3)] == [1, 1, 2]


def test_an_account_above_its_share_takes_no_place_again() -> None:
    places = ListPlaces(2000)
    a = filled(places, "a")
    b = filled(places, "b", used=a)
    assert b >= 50
    assert places.room("a", a + b - 60) < 0  # 60 places were given back
    assert places.room("b", a + b - 60) > 30


def test_a_patient_pass_leaves_what_others_may_use_at_once() -> None:
    room = ListPlaces(2000).patient_room
    assert room(0, 0) >= 1900
    assert room(0, 100) == room(0, 0) - 400
    assert room(0, 2000) == 1000
    assert room(1500, 2000) < 0


def add_slow_hosts(network: FakeNetwork) -> None:
    for number in range(HOSTS):
        network.add(f"slow{number}.test", MailHost(latency_s=SLOW_S))
    network.add("shop.test", MailHost(reply_s=0.02))


async def share_used(engine: Engine) -> float:
    """The share of the places that is in use, on average over a few seconds."""
    seen = []
    for _ in repeat(None, 30):
        await trio.sleep(0.1)
        seen.append(engine.probing.turn.under_way)
    return sum(seen) / len(seen) / PLACES


@pytest.mark.parametrize("patient", [False, True])
async def test_a_list_alone_uses_nine_of_ten_places_and_others_have_theirs_at_once(
    autojump_clock: trio.testing.MockClock, patient: bool
) -> None:
    texts = [f"known{n}@slow{n % HOSTS}.test" for n in range(12 * HOSTS)]
    async with open_fake_network() as network:
        add_slow_hosts(network)
        async with (
            open_checked_engine(network, probes_max=PLACES, host_connections=2) as engine,
            trio.open_nursery() as nursery,
        ):
            run = partial(collect, account="a", deferred_start=True, patient=patient)
            nursery.start_soon(run, engine, *texts)
            await trio.sleep(1.0)
            assert await share_used(engine) >= 0.9
            for number in range(5):
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert (verdict.status, verdict.latency_ms < 500) == ("deliverable", True)
            began = trio.current_time()
            other = [f"known{n}@slow{n % HOSTS}.test" for n in range(5_000, 5_000 + HOSTS)]
            async with open_answers(engine, other, account="b", deferred_start=True) as answers:
                assert (await anext(answers)).verdict.status == "deliverable"
            assert trio.current_time() - began < ANSWERED_S
            nursery.cancel_scope.cancel()
