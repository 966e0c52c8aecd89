"""Charged answers: every delivered result is counted, and no other result is billed."""

import pytest
import trio

from mailprobe.api.quota import charge as charge_module
from mailprobe.api.quota.background_writes import DRAIN_S, open_background_writes
from mailprobe.api.quota.capacity import WAIT_S, Capacity
from mailprobe.api.quota.charge import Verifications, charge
from mailprobe.api.quota.service import LEASE_S
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.storage.contract import StoreUnavailable
from tests.api.service_fixture import RunningService, open_shop
from tests.api.stores import KIND
from tests.seeds import stride

SLOW = "known@slow.test"  # a reply every 0.4 s: its answer comes after 1.2 s
# Each opens its own store, which may be slow.
STEPS = range(0, 160, stride(2) if KIND == "memory" else 16)


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address goes through a reservation and the engine's stream."""
    monkeypatch.setattr(charge_module, "known_answers", lambda *args, **named: None)


async def ledger(shop: RunningService):
    return await shop.store.ledger(await shop.caller())


async def assert_settled(shop: RunningService, units: int, billable: int) -> None:
    """Nothing is reserved or pending, and the month has these units and billable units."""
    await trio.sleep(1)
    now = await ledger(shop)
    assert (now.reserved, now.month_units, now.month_billable) == (0, units, billable)
    assert shop.service.background_writes.pending == 0
    assert shop.service.capacity.addresses == 0


# -- rows -------------------------------------------------------------------------------------


async def test_each_result_is_a_row_and_what_passed_layer_1_is_billable(autojump_clock, shop):
    shop.world.add("refused.test", MailHost(mail_reply="550 no"))
    shop.world.add("mute.test", MailHost(latency_s=10))
    await shop.batch(
        "no address", "a@gmial.com", "a@nowhere.test", "no@friendly.test", "a@mute.test",
        "known@friendly.test", "a@catchall.test",
    )  # fmt: skip
    rows = {(row.failed_check, row.status): row for row in await shop.rows()}
    billable = {what: row.billable for what, row in rows.items()}
    assert billable == {
        ("syntax", "invalid"): False,
        ("disposable", "invalid"): True,
        ("no_mx", "invalid"): True,
        ("smtp", "undeliverable"): True,
        ("smtp_timeout", "unknown"): True,
        (None, "deliverable"): True,
        (None, "catch_all"): True,
    }
    assert {row.operation for row in rows.values()} == {"batch"}
    assert {row.units for row in rows.values()} == {1}
    await assert_settled(shop, 7, 6)


async def test_duplicates_are_one_probe_and_as_many_rows(autojump_clock, shop):
    got = await shop.batch("known@friendly.test", "known@friendly.test", "KNOWN@friendly.test")
    assert got.body["count"] == 3
    await assert_settled(shop, 3, 3)


async def test_a_malformed_single_verify_is_one_unit_and_not_billable(autojump_clock, free_shop):
    assert (await free_shop.verify(5)).status == 400
    await assert_settled(free_shop, 1, 0)
    assert (await free_shop.batch(5)).status == 400
    assert (await free_shop.stream()).status == 400
    await assert_settled(free_shop, 1, 0)


async def test_a_malformed_request_stays_malformed_beyond_the_limit(autojump_clock, free_shop):
    """400 comes before 429, and the limit still holds."""
    for _ in range(15):
        assert (await free_shop.verify(5)).status == 400
    assert (await ledger(free_shop)).month_units == 10
    assert (await free_shop.verify()).status == 429


async def test_a_refusal_takes_no_units_and_leaves_a_row(autojump_clock, free_shop):
    await free_shop.batch(*["x"] * 10)
    for _ in range(3):
        assert (await free_shop.verify()).error == "rate_limit_exceeded"
    await free_shop.use_up(490)
    await trio.sleep(60)
    assert (await free_shop.verify()).error == "monthly_quota_exceeded"
    await assert_settled(free_shop, 500, 490)
    refused = [row.failed_check for row in await free_shop.rows() if row.units == 0]
    assert sorted(refused) == ["monthly_quota_exceeded"] + ["rate_limit_exceeded"] * 3


async def test_a_flood_of_refusals_does_not_fill_the_disk(autojump_clock, free_shop):
    await free_shop.batch(*["x"] * 10)
    for _ in range(200):
        assert (await free_shop.verify()).status == 429
    rows = await free_shop.rows()
    assert len(rows) < 40
    assert sum(row.times for row in rows if row.units == 0) == 200


async def test_a_refusal_that_cannot_be_logged_is_one_all_the_same(autojump_clock, free_shop):
    await free_shop.batch(*["x"] * 10)
    free_shop.store.away = {"log_refusal"}
    assert (await free_shop.verify()).status == 429


# -- limits under load --------------------------------------------------------------------------


@pytest.mark.parametrize(("tier", "limit"), [("free", 10), ("builder", 100)])
async def test_60_parallel_batches_never_pass_the_limit(autojump_clock, tier, limit):
    async with open_shop(tier) as shop:
        statuses = await in_parallel(60, lambda: shop.batch(*["known@slow.test"] * 5))
        assert statuses.count(200) == limit // 5
        assert set(statuses) == {200, 429}
        await assert_settled(shop, limit, limit)


async def test_60_parallel_requests_never_pass_the_quota(autojump_clock):
    from msgspec.structs import replace

    from mailprobe.api.quota.plans import PLANS

    plans = {**PLANS, "free": replace(PLANS["free"], rate_limit_per_min=1000)}
    async with open_shop("free", plans=plans) as shop:
        await shop.use_up(470)
        statuses = await in_parallel(60, lambda: shop.verify(SLOW))
        assert (statuses.count(200), statuses.count(429)) == (30, 30)
        await assert_settled(shop, 500, 500)


async def test_60_parallel_requests_never_pass_the_hard_cap(autojump_clock):
    async with open_shop("scale") as shop:
        await shop.use_up(100_000 - 5)
        await shop.change(hard_cap_micros=20_000)  # ten calls at 0.002 EUR
        statuses = await in_parallel(60, lambda: shop.verify(SLOW))
        assert (statuses.count(200), statuses.count(402)) == (15, 45)
        assert (await shop.verify()).status == 402
        await assert_settled(shop, 100_010, 100_010)


async def in_parallel(count, send):
    statuses = []

    async def one():
        statuses.append((await send()).status)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return statuses


async def test_waiting_retry_after_is_enough(autojump_clock, free_shop):
    for pause in (0.3, 7.9, 0.1, 11.0):
        await free_shop.batch("x", "y")
        await trio.sleep(pause)
    await free_shop.batch("x", "y")
    for size in (1, 5, 10, 2):
        got = await free_shop.batch(*["x"] * size)
        if got.status == 429:
            assert got.body["action"].startswith("Wait Retry-After seconds")
            await trio.sleep(int(got.headers["retry-after"]))
            assert (await free_shop.batch(*["x"] * size)).status == 200


# -- hanging up ---------------------------------------------------------------------------------


async def test_a_stream_that_is_hung_up_counts_what_was_answered(autojump_clock, shop):
    got = await shop.stream(
        "known@friendly.test", "no@friendly.test", "bad", SLOW, "no@slow.test",
        hang_up_after=lambda chunks: b"".join(chunks).count(b"\n") >= 3,
    )  # fmt: skip
    assert len(got.lines) == 3
    await assert_settled(shop, 3, 2)


async def test_a_hang_up_cancels_the_probes(autojump_clock, shop):
    began = trio.current_time()
    await shop.stream(*[f"known{n}@slow.test" for n in range(40)], hang_up_at=0.5)
    assert trio.current_time() - began == pytest.approx(0.5, abs=0.01)
    await assert_settled(shop, 0, 0)
    assert shop.service.quota.engine.probing.turn.under_way == 0


async def test_a_batch_that_is_hung_up_counts_results_and_bills_nothing(autojump_clock, shop):
    """The client got no result: the quota counts verified addresses, the bill delivered results."""
    await shop.batch("known@friendly.test", "no@friendly.test", SLOW, hang_up_at=0.5)
    await assert_settled(shop, 2, 0)


async def test_a_single_verify_that_is_hung_up_is_not_counted(autojump_clock, shop):
    await shop.verify(SLOW, hang_up_at=0.5)
    await assert_settled(shop, 0, 0)


async def test_results_that_nobody_took_count_and_are_not_billed(
    autojump_clock, shop, nothing_known
):
    with trio.move_on_after(0.5):
        async with charge(
shop.service.quota, await shop.caller(), Verifications("stream", ["bad", "known@friendly.test", SLOW], in_parts=True)
) as answers:  # fmt: skip
            await anext(answers)
            await trio.sleep_forever()
    await assert_settled(shop, 2, 0)


@pytest.mark.parametrize("listener", ["verify", "batch", "stream"])
async def test_hanging_up_at_any_step_leaves_nothing_behind(autojump_clock, listener):
    """The client hangs up after a growing number of scheduler steps."""
    headers = {} if listener == "stream" else {"idempotency-key": "once"}
    emails = ["known@friendly.test"] if listener == "verify" else ["known@friendly.test", "bad"]
    died = 0
    for steps in STEPS:
        async with open_shop("builder") as shop:
            got = await getattr(shop, listener)(*emails, headers=headers, hang_up_steps=steps)
            died += got.octets.count(b"confidence") < len(emails)
            await trio.sleep(LEASE_S + 1)
            rows, now = await shop.rows(), await ledger(shop)
            assert now.reserved == 0
            assert now.month_units == len(rows) <= len(emails)
            assert now.month_billable <= 1
            assert shop.service.capacity.addresses == 0
            assert shop.service.background_writes.pending == 0
            assert shop.service.quota.engine.probing.turn.under_way == 0
            again = await getattr(shop, listener)(*emails, headers=headers)
            assert again.status == 200
            assert (await ledger(shop)).month_units <= 2 * len(emails)
    # some answers were cut, some were whole
    assert len(STEPS) / 16 < died < len(STEPS)


async def test_a_reader_that_stalls_keeps_its_lease(autojump_clock, shop, nothing_known):
    async with charge(
        shop.service.quota,
        await shop.caller(),
        Verifications("stream", ["bad", "a@b"], in_parts=True),
    ) as answers:
        await anext(answers)
        await trio.sleep(LEASE_S * 5)
        assert (await ledger(shop)).reserved == 1
        await anext(answers)
    await assert_settled(shop, 2, 0)


async def test_a_line_is_counted_before_anybody_has_it(autojump_clock, shop, nothing_known):
    """A process that is killed between two lines has counted every line that it sent."""
    emails = ["known@friendly.test", "bad", "other@friendly.test"]
    async with charge(
        shop.service.quota, await shop.caller(), Verifications("stream", emails, in_parts=True)
    ) as answers:
        for count in range(1, 4):
            await anext(answers)
            assert len(await shop.rows()) == count
            assert (await ledger(shop)).reserved == 3 - count
    await assert_settled(shop, 3, 2)


async def test_an_answer_as_a_whole_is_counted_as_a_whole(autojump_clock, shop, nothing_known):
    async with charge(
        shop.service.quota, await shop.caller(), Verifications("batch", ["bad", "a@b"])
    ) as answers:
        await anext(answers)
        assert not await shop.rows()
        await anext(answers)
    await assert_settled(shop, 2, 0)


async def test_a_grant_that_is_never_used_is_given_back_within_a_minute(
    autojump_clock, free_shop, nothing_known
):
    texts = ["x"] * 10
    charged = charge(
        free_shop.service.quota,
        await free_shop.caller(),
        Verifications("stream", texts, in_parts=True),
    )
    await charged.reserve()
    assert (await ledger(free_shop)).reserved == 10
    await trio.sleep(60)
    assert (await free_shop.batch(*["x"] * 10)).status == 200
    await assert_settled(free_shop, 10, 0)


# -- a store that is away -----------------------------------------------------------------------


async def test_lines_wait_for_a_store_that_is_away_and_come_when_it_is_back(autojump_clock, shop):
    """The client sees no line that a killed process would not have counted."""
    async with trio.open_nursery() as nursery:
        shop.store.away = {"settle"}

        async def heal():
            await trio.sleep(5)
            shop.store.away = False

        nursery.start_soon(heal)
        began = trio.current_time()
        got = await shop.stream("known@friendly.test", "bad")
        assert [at - began >= 5 for at, _ in got.chunks] == [True] * len(got.chunks)
        assert len(got.lines) == 2
        assert (await ledger(shop)).month_billable == 1
    await assert_settled(shop, 2, 1)


async def test_a_stream_whose_lines_cannot_be_counted_is_cut(autojump_clock, shop, nothing_known):
    shop.store.away = {"settle"}
    with trio.move_on_after(60) as waiting, pytest.raises(StoreUnavailable):
        async with charge(
            shop.service.quota, await shop.caller(), Verifications("stream", ["bad"], in_parts=True)
        ) as answers:
            await anext(answers)
    assert not waiting.cancelled_caught
    shop.store.away = False
    await assert_settled(shop, 1, 0)


async def test_an_answer_that_cannot_be_counted_is_not_given(autojump_clock, shop):
    shop.store.away = {"settle"}
    got = await shop.batch("known@friendly.test")
    assert (got.status, got.error) == (503, "quota_check_failed")
    shop.store.away = False
    await trio.sleep(LEASE_S)
    await assert_settled(shop, 0, 0)


async def test_a_lease_that_cannot_be_extended_stops_nothing(autojump_clock, shop, nothing_known):
    shop.store.away = {"extend"}
    async with charge(
        shop.service.quota, await shop.caller(), Verifications("batch", ["bad"])
    ) as answers:
        await anext(answers)
        await trio.sleep(30)
    await assert_settled(shop, 1, 0)


# -- capacity -----------------------------------------------------------------------------------


async def test_beyond_what_we_bear_a_request_is_shed_and_takes_no_units(autojump_clock):
    async with open_shop("scale", addresses_max=20) as shop:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shop.batch, *[f"known{n}@slow.test" for n in range(20)])
            await trio.sleep(0.1)
            began = trio.current_time()
            got = await shop.verify()
            assert (got.status, got.error, got.headers["retry-after"]) == (503, "overloaded", "1")
            assert trio.current_time() - began == pytest.approx(WAIT_S, abs=0.05)
            assert sum(units for _, units in (await ledger(shop)).window) == 20
        assert (await shop.verify()).status == 200
        await assert_settled(shop, 21, 21)


async def test_a_request_waits_a_moment_for_room(autojump_clock):
    async with open_shop("scale", addresses_max=1) as shop, trio.open_nursery() as nursery:
        shop.world.add("quick.test", MailHost(latency_s=0.004))
        nursery.start_soon(shop.verify, "known@quick.test")
        await trio.sleep(0.001)
        assert (await shop.verify()).status == 200


async def test_requests_that_are_weighed_together_leave_room_for_each_other():
    capacity = Capacity(10)
    with capacity.requesting("ann", 6) as first, capacity.requesting("bob", 6) as second:
        assert first.is_free
        assert second.is_free
        with capacity.requesting("eve", 1) as third:
            assert not third.is_free
    assert capacity.addresses == 0
    with capacity.requesting("ann", 50) as large:
        assert large.is_free
    capacity.enter(10)
    with capacity.requesting("ann", 1) as late:
        assert not late.is_free


async def test_one_task_keeps_all_leases_and_ends_with_them(autojump_clock, shop, nothing_known):
    """This includes leases that begin and end while the task sleeps."""
    quota, caller = shop.service.quota, await shop.caller()

    async def hold(seconds: float) -> None:
        async with charge(quota, caller, Verifications("batch", ["bad"])):
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for place in range(8):
            nursery.start_soon(hold, LEASE_S * 2 + place)
            await trio.sleep(0.7)
        await trio.sleep(LEASE_S + 10)
        assert (await ledger(shop)).reserved == 8
    assert not quota.leases
    await trio.sleep(LEASE_S)
    assert not quota.leases.kept
    await hold(LEASE_S * 2)  # a new task begins
    await assert_settled(shop, 9, 0)


# -- background writes --------------------------------------------------------------------------


async def test_a_write_that_has_begun_ends_though_its_request_is_cancelled(autojump_clock):
    """Else a store that has counted already would be asked to count again."""
    written = []

    async def write() -> None:
        await trio.sleep(0.5)
        written.append(1)

    async with open_background_writes() as background_writes:
        with trio.move_on_after(0.1) as request:
            await background_writes.write_shielded(write)
            await trio.lowlevel.checkpoint()
    assert written == [1]
    assert request.cancelled_caught


async def test_leaving_the_background_writes_waits_for_what_is_pending(autojump_clock):
    written = []

    async def write():
        await trio.sleep(1 + DRAIN_S / 2)
        written.append(1)

    with trio.move_on_after(1):
        async with open_background_writes() as background_writes:
            background_writes.write_until_durable(write)
            await trio.sleep_forever()
    assert written == [1]


async def test_a_background_writes_does_not_wait_for_ever(autojump_clock, caplog):
    async def write():
        raise StoreUnavailable

    began = trio.current_time()
    async with open_background_writes() as background_writes:
        background_writes.write_until_durable(write)
    assert trio.current_time() - began == pytest.approx(DRAIN_S, abs=0.01)
    assert "given up" in caplog.text


async def test_a_bug_in_a_write_ends_that_write_alone(faults):
    async def write():
        raise ZeroDivisionError

    async with open_background_writes() as background_writes:
        await background_writes.write_until_durable(write).wait()
        with pytest.raises(ZeroDivisionError):  # the caller that waits gets the error
            await background_writes.write_shielded(write)
        await background_writes.write_until_durable(trio.lowlevel.checkpoint).wait()
    assert len(faults) == 1
