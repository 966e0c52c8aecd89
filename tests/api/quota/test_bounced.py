"""What an account fed back is answered to it alone, in requests, jobs and lists."""

import trio

from mailprobe.api.quota.bounced import EMPTY_S
from tests.api.service_fixture import RunningService

GONE = "known@friendly.test"


async def statuses(shop: RunningService) -> list[str]:
    got = await shop.batch(GONE, "known@catchall.test")
    return [result["status"] for result in got.body["results"]]


async def test_a_bounce_counts_at_the_next_request_and_is_a_verification(autojump_clock, shop):
    assert await statuses(shop) == ["deliverable", "catch_all"]
    caller = await shop.caller()
    other = await shop.store.create_account("bob@shop.test", "builder")
    await shop.store.record_bounces(other.id, [GONE], "ses")
    shop.service.quota.bounced.forget(caller.account.id)
    assert await statuses(shop) == ["deliverable", "catch_all"]
    await shop.store.record_bounces(caller.account.id, [GONE.upper()], "ses")
    assert await statuses(shop) == ["deliverable", "catch_all"]  # known to have none
    await trio.sleep(EMPTY_S + 1)
    assert await statuses(shop) == ["undeliverable", "catch_all"]
    assert [row.billable for row in await shop.rows()] == [True] * 8
