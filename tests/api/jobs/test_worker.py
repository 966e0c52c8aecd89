"""Every job accepted with 202 is verified, counted and delivered once, whatever fails meanwhile."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.jobs import worker as jobs_module
from mailprobe.api.jobs.delivery import Delivered
from mailprobe.api.jobs.rules import WebhookTarget
from mailprobe.api.jobs.worker import INTERNAL_TRIES_MAX, LEASE_S, open_jobs
from mailprobe.api.settings import WEBHOOK_RETRY_S
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.engine import open_answers
from tests.api.service_fixture import VERIFY, LazyApp, RunningService, open_shop
from tests.api.stores import KIND
from tests.seeds import seeds

HOOK = "https://hooks.shop.test/mail"
DAY_S = 86_400


class Receiver:
    """A webhook receiver: records what came and when, and gives scripted answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str, Mapping[str, str], bytes]] = []
        self.answer: Callable[[str], Delivered] = lambda host: Delivered(200, None, None, 5)
        self.takes_s: Callable[[str], float] = lambda host: 0.05
        self.at_idempotency: Counter[str] = Counter()
        self.most_at_idempotency: Counter[str] = Counter()

    async def deliver(
        self, target: WebhookTarget, headers: Mapping[str, str], body: bytes
    ) -> Delivered:
        self.calls.append((trio.current_time(), target.host, headers, body))
        self.at_idempotency[target.host] += 1
        self.most_at_idempotency[target.host] = max(
            self.most_at_idempotency[target.host], self.at_idempotency[target.host]
        )
        try:
            await trio.sleep(self.takes_s(target.host))
        finally:
            self.at_idempotency[target.host] -= 1
        return self.answer(target.host)

    def bodies(self) -> list[Any]:
        return [json.loads(body) for *_, body in self.calls]


@asynccontextmanager
async def working(shop: RunningService, receiver: Receiver, seed: int = 0) -> AsyncIterator[Any]:
    """Run a job worker on the shop's store, which also accepts new jobs."""
    async with open_jobs(
        shop.service.quota, receiver,  # type: ignore[arg-type]
        retry_s=WEBHOOK_RETRY_S, rng=random.Random(seed),
    ) as board:  # fmt: skip
        shop.service = replace(shop.service, jobs=board)
        shop.app = LazyApp(shop.service)
        yield board


@asynccontextmanager
async def open_working_shop(tier: Any = "builder", **more: Any) -> AsyncIterator[Any]:
    receiver = Receiver()
    async with open_shop(tier, **more) as shop, working(shop, receiver):
        yield shop, receiver


async def promise(
    shop: RunningService, email: str = "known@friendly.test", hook: str = HOOK, **more: Any
):
    body = {"email": email, "webhook": hook, **more.pop("body", {})}
    return await shop.request("POST", VERIFY, body, **more)


async def state_of(shop: RunningService, job_id: str) -> str:
    state: str = (await shop.store.job(job_id)).state
    return state


# -- accepted jobs ----------------------------------------------------------------------------


async def test_it_is_answered_at_once_and_the_result_is_posted(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        began = trio.current_time()
        got = await promise(shop, "known@slow.test")
        assert (got.status, got.body["status"]) == (202, "pending")
        assert trio.current_time() == began
        assert await state_of(shop, got.body["job_id"]) == "pending"
        assert "ratelimit" in got.headers
        await trio.sleep(5)
        (body,) = receiver.bodies()
        sync = (await shop.verify("known@slow.test")).body
        assert body == {**sync, "latency_ms": body["latency_ms"], "job_id": got.body["job_id"]}
        assert await state_of(shop, got.body["job_id"]) == "done"


async def test_a_job_is_one_unit_from_its_promise_to_its_count(autojump_clock):
    async with open_working_shop("free") as (shop, _):
        await promise(shop, "known@slow.test")
        ledger = await shop.store.ledger(await shop.caller())
        assert (ledger.reserved, ledger.month_units, ledger.window_units) == (1, 1, 1)
        await trio.sleep(5)
        ledger = await shop.store.ledger(await shop.caller())
        assert (ledger.reserved, ledger.month_units, ledger.month_billable) == (0, 1, 1)
        (row,) = await shop.rows()
        assert (row.operation, row.status, row.billable) == ("verify", "deliverable", True)


@pytest.mark.parametrize("seen_after", [0, 1, 2, 3])
async def test_a_passing_result_is_verified_again_and_billed_once(
    autojump_clock: trio.testing.MockClock, seen_after: int
) -> None:
    """After 5 and 15 minutes; then the result is final, whatever it is."""
    async with open_working_shop() as (shop, receiver):
        greylist_s = (0.0, 200.0, 800.0, 9_999.0)[seen_after]
        shop.world.add("grey.test", new_host("friendly", greylist_s=greylist_s))
        await shop.verify("known@friendly.test")  # the service is warm
        began, before = trio.current_time(), await shop.store.ledger(await shop.caller())
        got = await promise(shop, "known@grey.test", body={"recheck": True})
        await trio.sleep(60)
        job = (await shop.request("GET", f"/v1/jobs/{got.body['job_id']}")).body
        assert (job["status"] == "pending") == (seen_after > 0)
        assert job["attempts"] == [] or seen_after == 0
        await trio.sleep(2_000)
        (body,) = receiver.bodies()
        assert body["status"] == ("unknown" if seen_after == 3 else "deliverable")
        at = receiver.calls[0][0] - began
        assert at == pytest.approx((0, 300, 900, 900)[seen_after], abs=10)
        ledger = await shop.store.ledger(await shop.caller())
        assert ledger.month_units == before.month_units + 1
        assert ledger.reserved == 0


async def test_without_smtp_a_job_asks_no_mail_host(autojump_clock: trio.testing.MockClock) -> None:
    async with open_working_shop() as (shop, receiver):
        got = await promise(shop, "known@friendly.test", body={"smtp": False, "recheck": True})
        assert got.status == 202
        await trio.sleep(10)
        (body,) = receiver.bodies()
        assert (body["status"], body["confidence"], body["mx_found"]) == ("unknown", 0.5, True)
        assert not shop.world.dialled


async def test_a_final_result_is_not_verified_again(autojump_clock: trio.testing.MockClock) -> None:
    async with open_working_shop() as (shop, receiver):
        for email in ("nobody@friendly.test", "known@friendly.test", "no address"):
            await promise(shop, email, body={"recheck": True})
        await trio.sleep(10)
        assert len(receiver.calls) == 3


async def test_without_recheck_a_first_result_is_final(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_working_shop() as (shop, receiver):
        shop.world.add("grey.test", new_host("friendly", greylist_s=200.0))
        await promise(shop, "known@grey.test")
        await trio.sleep(10)
        assert [body["status"] for body in receiver.bodies()] == ["unknown"]


async def test_the_limits_hold_for_jobs_too(autojump_clock):
    async with open_working_shop("free") as (shop, receiver):
        statuses = [(await promise(shop)).status for _ in range(12)]
        assert statuses == [202] * 10 + [429] * 2
        await trio.sleep(5)
        assert len(receiver.calls) == 10


async def test_a_hard_cap_counts_what_is_promised(autojump_clock):
    async with open_working_shop("builder") as (shop, _):
        await shop.use_up(5_000)
        await shop.change(hard_cap_micros=10_000)  # two calls of 0.004, rounded up
        statuses = [(await promise(shop, "known@slow.test")).status for _ in range(4)]
        assert statuses == [202, 202, 402, 402]


async def test_an_address_that_is_none_is_called_back_too_and_is_not_billed(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        await promise(shop, "no address")
        await trio.sleep(1)
        (body,) = receiver.bodies()
        assert body["failed_check"] == "syntax"
        assert (await shop.store.ledger(await shop.caller())).month_billable == 0


@pytest.mark.parametrize("secret", ["short", "x" * 257, 5])
async def test_a_secret_of_a_wrong_kind_is_400(autojump_clock, secret: Any):
    async with open_working_shop() as (shop, _):
        got = await promise(shop, body={"webhook_secret": secret})
        assert (got.status, got.error) == (400, "invalid_request")
        assert "webhook_secret" in got.body["message"]


async def test_evidence_and_a_webhook_do_not_go_together(autojump_clock):
    async with open_working_shop() as (shop, _):
        got = await shop.request(
            "POST", f"{VERIFY}?evidence=1", {"email": "a@b.test", "webhook": HOOK}
        )
        assert (got.status, got.error) == (400, "invalid_request")
        assert "evidence" in got.body["message"]


async def test_a_store_that_is_away_promises_nothing(autojump_clock):
    async with open_working_shop() as (shop, _):
        shop.store.away = {"create_job"}
        assert (await promise(shop)).error == "quota_check_failed"
        assert await shop.store.jobs(limit=10) == []


async def test_a_request_that_is_repeated_has_one_job(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        first = await promise(shop, headers={"idempotency-key": "k"})
        again = await promise(shop, headers={"idempotency-key": "k"})
        assert (first.status, first.octets) == (again.status, again.octets)
        await trio.sleep(5)
        assert len(receiver.calls) == 1


async def test_a_repeat_finds_the_job_of_a_process_that_died_before_it_kept_its_answer(
    autojump_clock,
):
    async with open_working_shop() as (shop, receiver):
        shop.store.away = {"finish_idempotent"}
        first = await promise(shop, headers={"idempotency-key": "k"})
        shop.store.away = False
        await trio.sleep(120)
        again = await promise(shop, headers={"idempotency-key": "k"})
        assert again.status == 202
        (job,) = await shop.store.jobs(limit=10)
        assert again.body["job_id"] == job.id
        assert first.status in (202, 503)
        await trio.sleep(5)
        assert len(receiver.calls) == 1
        assert (await shop.store.ledger(await shop.caller())).month_billable == 1


# -- the callback -----------------------------------------------------------------------------


async def test_it_is_tried_ten_times_over_three_days_with_the_same_bytes(
    autojump_clock, monkeypatch
):
    # 140,000 polls for abandoned jobs take ten seconds of CPU, and minutes with a database
    monkeypatch.setattr(jobs_module, "POLL_S", 900.0)
    async with open_working_shop() as (shop, receiver):
        receiver.answer = lambda host: Delivered(500, None, None, 5)
        job_id = (await promise(shop, body={"webhook_secret": "a secret"})).body["job_id"]
        await trio.sleep(4 * DAY_S)
        assert len(receiver.calls) == 10
        assert len({body for *_, body in receiver.calls}) == 1
        assert {headers["webhook-id"] for _, _, headers, _ in receiver.calls} == {job_id}
        times = [at for at, *_ in receiver.calls]
        for wait_s, planned_s in zip(
            (after - before for before, after in pairwise(times)),
            WEBHOOK_RETRY_S,
            strict=True,
        ):
            assert planned_s * 0.8 <= wait_s <= planned_s * 1.2 + 1.5
        assert await state_of(shop, job_id) == "failed"
        attempts = await shop.store.attempts(job_id)
        assert [attempt.number for attempt in attempts] == list(range(1, 11))
        assert {attempt.status for attempt in attempts} == {500}
        assert (await shop.store.ledger(await shop.caller())).month_billable == 1


async def test_a_retry_after_is_waited_out(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        receiver.answer = lambda host: Delivered(503, None, 1000.0, 5)
        await promise(shop)
        await trio.sleep(999)
        assert len(receiver.calls) == 1
        await trio.sleep(60)
        assert len(receiver.calls) == 2


async def test_410_ends_it_and_a_redirect_does_not(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        receiver.answer = lambda host: Delivered(410 if host == "gone.test" else 302, None, None, 5)
        gone = (await promise(shop, hook="https://gone.test/")).body["job_id"]
        moved = (await promise(shop, hook="https://moved.test/")).body["job_id"]
        await trio.sleep(20)
        assert await state_of(shop, gone) == "failed"
        assert await state_of(shop, moved) == "delivering"
        assert Counter(host for _, host, *_ in receiver.calls) == {"gone.test": 1, "moved.test": 2}


async def test_a_receiver_that_hangs_delays_no_other(autojump_clock):
    async with open_working_shop("scale") as (shop, receiver):
        receiver.takes_s = lambda host: 15.0 if host == "hung.test" else 0.05
        for n in range(100):
            await promise(shop, f"x{n}", hook="https://hung.test/")
        began = trio.current_time()
        await promise(shop, "other", hook="https://fine.test/")
        await trio.sleep(3)
        (at,) = [at for at, host, *_ in receiver.calls if host == "fine.test"]
        assert at - began < 1
        assert receiver.most_at_idempotency["hung.test"] == 4


async def test_a_customers_receiver_that_hangs_delays_no_other_customer(autojump_clock):
    """Their receivers may share a host, such as a service that collects webhooks."""
    async with open_working_shop("scale") as (shop, receiver):
        hung = [True]
        receiver.takes_s = lambda host: 15.0 if hung[0] else 0.05
        for n in range(40):
            await promise(shop, f"x{n}")
        await trio.sleep(1)
        hung[0] = False
        neighbour = await shop.store.create_account("bob@example.org", "scale")
        key = await shop.new_key("sk_live_", neighbour.id)
        began = trio.current_time()
        await promise(shop, "other", key=key)
        await trio.sleep(2)
        (at,) = [at for at, _, _, body in receiver.calls if json.loads(body)["email"] == "other"]
        assert at - began < 1


async def test_many_jobs_are_as_many_deliveries(autojump_clock):
    async with open_working_shop("scale") as (shop, receiver):
        ids = set()
        for n in range(250):
            host = f"{n % 50}.test"
            ids.add((await promise(shop, f"x{n}", hook=f"https://{host}/")).body["job_id"])
        await trio.sleep(60)
        assert Counter(body["job_id"] for body in receiver.bodies()) == dict.fromkeys(ids, 1)
        assert {job.state for job in await shop.store.jobs(limit=1_000)} == {"done"}
        assert (await shop.store.ledger(await shop.caller())).reserved == 0


async def test_a_job_that_is_sent_again_has_all_its_tries(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        receiver.answer = lambda host: Delivered(410, None, None, 5)
        job_id = (await promise(shop)).body["job_id"]
        await trio.sleep(5)
        receiver.answer = lambda host: Delivered(500, None, None, 5)
        await shop.store.resend_job(job_id)
        await trio.sleep(10)
        assert await state_of(shop, job_id) == "delivering"
        receiver.answer = lambda host: Delivered(204, None, None, 5)
        await trio.sleep(400)
        assert await state_of(shop, job_id) == "done"
        assert len({body for *_, body in receiver.calls}) == 1


# -- processes that die -------------------------------------------------------------------------


async def test_a_killed_ones_jobs_go_on_elsewhere_within_half_a_minute(autojump_clock):
    receiver = Receiver()
    async with open_shop() as shop:
        async with trio.open_nursery() as nursery:

            async def die(task_status: Any) -> None:
                with trio.CancelScope() as scope:
                    async with working(shop, receiver):
                        task_status.started(scope)
                        await trio.sleep_forever()

            first = await nursery.start(die)
            job_id = (await promise(shop, "known@slow.test")).body["job_id"]
            await trio.sleep(0.1)
            first.cancel()
        assert not receiver.calls
        async with working(shop, receiver):
            await trio.sleep(30)
            assert len(receiver.calls) == 1
            assert await state_of(shop, job_id) == "done"


@pytest.mark.parametrize("seed", range(seeds(20) if KIND == "memory" else 2))
async def test_two_processes_share_the_queue_and_deliver_each_job_once(autojump_clock, seed: int):
    receiver = Receiver()
    async with open_shop("scale") as shop:
        async with working(shop, receiver, seed), working(shop, receiver, seed + 100):
            for n in range(60):
                await promise(shop, f"known{n}@friendly.test", hook=f"https://h{n % 7}.test/")
            await trio.sleep(30)
        counted = Counter(body["job_id"] for body in receiver.bodies())
        assert set(counted.values()) == {1}
        assert len(counted) == 60
        assert max(receiver.most_at_idempotency.values()) <= 4
        assert (await shop.store.ledger(await shop.caller())).month_billable == 60


async def test_a_long_verification_keeps_its_claim(autojump_clock, monkeypatch):
    """No other worker begins a job while its verification waits."""
    receiver = Receiver()
    async with open_shop() as shop:
        async with working(shop, receiver):
            asked = []

            @asynccontextmanager
            async def open_slowly(engine: Any, texts: list[str], **more: Any) -> AsyncIterator[Any]:
                asked.extend(texts)
                await trio.sleep(LEASE_S * 3)
                async with open_answers(engine, texts, **more) as answers:
                    yield answers

            monkeypatch.setattr(jobs_module, "open_answers", open_slowly)
            await promise(shop)
            async with working(shop, receiver):
                await trio.sleep(LEASE_S * 4)
        assert len(asked) == 1
        assert len(receiver.calls) == 1


# -- an unavailable store, and bugs ---------------------------------------------------------------


async def test_a_store_that_is_away_in_the_middle_loses_nothing(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        job_id = (await promise(shop, "known@slow.test")).body["job_id"]
        await trio.sleep(0.5)
        shop.store.away = True
        await trio.sleep(LEASE_S * 2)
        assert not receiver.calls
        shop.store.away = False
        await trio.sleep(30)
        assert await state_of(shop, job_id) == "done"
        assert len(receiver.calls) == 1
        assert (await shop.store.ledger(await shop.caller())).month_billable == 1


async def test_a_bug_is_logged_and_tried_a_few_times_and_holds_up_nobody(
    autojump_clock, monkeypatch, faults
):
    async with open_shop() as shop:
        receiver = Receiver()
        async with working(shop, receiver):

            def open_or_fail(engine: Any, texts: list[str], **more: Any) -> Any:
                if texts == ["poison"]:
                    raise ZeroDivisionError
                return open_answers(engine, texts, **more)

            monkeypatch.setattr(jobs_module, "open_answers", open_or_fail)
            poison = (await promise(shop, "poison")).body["job_id"]
            await promise(shop, "fine")
            await trio.sleep(200)
            assert len(receiver.calls) == 1
            assert await state_of(shop, poison) == "failed"
            ledger = await shop.store.ledger(await shop.caller())
            assert (ledger.reserved, ledger.month_units) == (0, 1)
    assert ["ZeroDivisionError" in each for each in faults] == [True] * INTERNAL_TRIES_MAX


async def test_leaving_finishes_what_can_be_finished_soon(autojump_clock):
    receiver = Receiver()
    async with open_shop() as shop:
        async with working(shop, receiver):
            await promise(shop, "known@slow.test")
            await trio.sleep(0.1)
            began = trio.current_time()
        assert trio.current_time() - began < 5
        (job,) = await shop.store.jobs(limit=1)
        assert job.state == "delivering"
        receiver.takes_s = lambda host: 15.0
        async with working(shop, receiver):
            await trio.sleep(1)
            began = trio.current_time()
        assert trio.current_time() - began < 5
