"""One account's list has twice as many addresses under way as there are places for probes."""

import trio
from msgspec.structs import replace

from mailprobe.api.quota.capacity import LISTED
from mailprobe.api.quota.plans import PLANS
from mailprobe.bench.world.mail_host import MailHost
from tests.api.lists.test_lists import open_list_shop, send, working_lists
from tests.api.service_fixture import open_shop

PLACES = 100
HOSTS = 20
PLAN = {**PLANS, "scale": replace(PLANS["scale"], rate_limit_per_min=1_000_000)}


async def test_a_list_fills_the_places_and_takes_no_capacity_of_requests(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop(plans=PLAN, addresses_max=PLACES) as shop:
        for number in range(HOSTS):
            shop.world.add(f"slow{number}.test", MailHost(latency_s=0.9))
        texts = "".join(f"known{n}@slow{n % HOSTS}.test\n" for n in range(4 * PLACES))
        assert (await send(shop, f"email\n{texts}")).status == 202
        await trio.sleep(1)
        quota = shop.service.quota
        assert PLACES < quota.list_capacity.addresses <= LISTED * PLACES // 2
        assert quota.capacity.addresses == 0
        began = trio.current_time()
        got = await shop.batch(*[f"known{n}@friendly.test" for n in range(50)])
        assert (got.status, {each["status"] for each in got.body["results"]}) == (
            200,
            {"deliverable"},
        )
        assert trio.current_time() - began < 3.2


async def test_a_service_leaves_chunks_that_it_has_no_capacity_for_to_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        open_shop("scale", plans=PLAN, addresses_max=PLACES) as shop,
        working_lists(shop) as queue,
    ):
        for number in range(HOSTS):
            shop.world.add(f"slow{number}.test", MailHost(latency_s=0.9))
        for name in ("ann", "bob", "eve", "dan"):
            account = await shop.store.create_account(f"{name}@customer.test", "scale")
            key = await shop.new_key("sk_live_", account.id)
            text = "".join(f"known{n}.{name}@slow{n % HOSTS}.test\n" for n in range(4 * PLACES))
            assert (await send(shop, f"email\n{text}", key=key)).status == 202
        await trio.sleep(2)
        held = sum(claim.chunk.units for claim in queue.worker.held())
        assert PLACES < held <= 3 * LISTED * PLACES  # some were claimed before others began
