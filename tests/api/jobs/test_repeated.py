"""A webhook request that is repeated with its Idempotency-Key: one job as long as the key is kept.

The key is kept for a day. A repeat after that is a new request: it makes a second job,
which is verified, billed and delivered once, and whose own repeats get its answer.
"""

import random
from collections import Counter
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.jobs.worker import JobQueue
from mailprobe.api.settings import WEBHOOK_RETRY_S
from tests.api.jobs.test_worker import Receiver, working
from tests.api.quota.test_abuse_money import KEYED, LEASE_S, wait_for_one
from tests.api.service_fixture import (
    VERIFY,
    HttpAnswer,
    KilledProcess,
    LazyApp,
    RunningService,
    open_shop,
)

A_DAY_LATER = timedelta(hours=24, minutes=1)
ALMOST_A_DAY = timedelta(hours=23, minutes=58)


async def submit(shop: RunningService) -> HttpAnswer:
    body = {"email": "known@friendly.test", "webhook": "https://hooks.test/"}
    return await shop.request("POST", VERIFY, body, headers=KEYED)


def idle_board(shop: RunningService) -> JobQueue:
    """Make a job service that accepts jobs and runs none."""
    return JobQueue(
        shop.service.quota, Receiver(),  # type: ignore[arg-type]
        retry_s=WEBHOOK_RETRY_S, rng=random.Random(0),
    )  # fmt: skip


async def jobs_and_units(shop: RunningService) -> tuple[int, int, int]:
    """Return the numbers of jobs, of reserved units and of billed verifications."""
    ledger = await shop.store.ledger(await shop.caller())
    return len(await shop.store.jobs(limit=100)), ledger.reserved, ledger.month_billable


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_repeat_within_a_day_is_the_same_job_and_a_later_one_another(autojump_clock, kind):
    async with open_shop(kind=kind) as shop:
        receiver, began = Receiver(), shop.clock()
        async with working(shop, receiver):
            first = await submit(shop)
            await trio.sleep(5)
            shop.clock.set(began + ALMOST_A_DAY)
            again = await submit(shop)
            assert (again.status, again.octets) == (202, first.octets)
            assert await jobs_and_units(shop) == (1, 0, 1)
            shop.clock.set(began + A_DAY_LATER)
            second = await submit(shop)
            assert second.status == 202
            assert second.body["job_id"] != first.body["job_id"]
            await trio.sleep(5)
            again = await submit(shop)
            assert (again.octets, again.headers["idempotency-replayed"]) == (second.octets, "true")
            assert await jobs_and_units(shop) == (2, 0, 2)
            reported = Counter(body["job_id"] for body in receiver.bodies())
            assert reported == {got.body["job_id"]: 1 for got in (first, second)}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_kill_between_any_two_writes_of_a_later_repeat_makes_one_job(autojump_clock, kind):
    """The process dies before or after each store call; the client repeats the request twice."""
    for moment in count():
        killed_process = KilledProcess(moment)
        async with trio.open_nursery() as the_dead, open_shop(kind=kind) as shop:
            shop.service = replace(shop.service, jobs=idle_board(shop))
            shop.app = LazyApp(shop.service)
            first = await submit(shop)
            shop.clock.set(shop.clock() + A_DAY_LATER)
            ended = trio.Event()

            async def later(shop: RunningService = shop, ended: trio.Event = ended) -> None:
                await submit(shop)
                ended.set()

            the_dead.start_soon(killed_process.run, later)
            await wait_for_one(killed_process.killed, ended)
            if not killed_process.killed.is_set():
                assert moment > 4
                break
            await trio.sleep(LEASE_S)
            again = await submit(shop)
            assert again.status == 202, again.octets
            assert again.body["job_id"] != first.body["job_id"]
            assert await jobs_and_units(shop) == (2, 2, 0), moment
            last = await submit(shop)
            assert (last.octets, last.headers["idempotency-replayed"]) == (again.octets, "true")
            assert await jobs_and_units(shop) == (2, 2, 0), moment
            the_dead.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_of_requests_at_the_same_time_one_makes_the_job(autojump_clock, kind):
    async with open_shop(kind=kind) as shop:
        shop.service = replace(shop.service, jobs=idle_board(shop))
        shop.app = LazyApp(shop.service)
        answers: list[HttpAnswer] = []

        async def submit_at_once() -> None:
            answers.append(await submit(shop))

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(submit_at_once)
        assert {got.status for got in answers} <= {202, 409}
        assert len({got.octets for got in answers if got.status == 202}) == 1
        assert await jobs_and_units(shop) == (1, 1, 0)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_request_that_comes_back_to_life_makes_no_second_job(autojump_clock, kind):
    """The first request stalled until its lease ended, and a repeat has made the job."""
    async with open_shop(kind=kind) as shop:
        shop.service = replace(shop.service, jobs=idle_board(shop))
        shop.app = LazyApp(shop.service)
        create_job, held_up, go_on = shop.store.store.create_job, trio.Event(), trio.Event()

        async def late(*arguments: Any, **named: Any) -> Any:
            shop.store.store.create_job = create_job
            held_up.set()
            await go_on.wait()
            return await create_job(*arguments, **named)

        shop.store.store.create_job = late
        late_answers: list[HttpAnswer] = []

        async def submit_late() -> None:
            late_answers.append(await submit(shop))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit_late)
            await held_up.wait()
            await trio.sleep(LEASE_S)
            made = await submit(shop)
            assert made.status == 202
            go_on.set()
        assert (late_answers[0].status, late_answers[0].error) == (409, "idempotency_in_progress")
        assert (await submit(shop)).octets == made.octets
        assert await jobs_and_units(shop) == (1, 1, 0)
