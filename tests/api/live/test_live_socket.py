"""The live socket on virtual time: results, credit, limits, errors, and how it ends."""

import json
from datetime import timedelta
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionRejected

from mailprobe.api.admission.connections import LiveConnections
from mailprobe.api.keys import key_hash
from mailprobe.api.live.connection import CREDIT, IDLE_S, PING_EVERY_S, PONG_S
from mailprobe.api.live.server import LiveServer
from mailprobe.bench.world.mail_host import MailHost
from tests.api.lists.test_lists import open_list_shop, send
from tests.api.live.live_client import LIVE, Live, open_live, open_raw
from tests.api.service_fixture import open_shop

END = {"type": "end"}


def results(live: Live) -> dict[Any, str]:
    return {line["ref"]: line["status"] for line in live.of("result")}


async def test_results_come_with_their_ref_and_are_billed_once(autojump_clock):
    async with open_shop() as shop, open_live(shop) as live:
        await live.send(
            {"email": "ann@friendly.test", "ref": 1},
            {"email": "nobody@friendly.test", "ref": "two"},
            "no address",
            END,
        )
        assert await live.until_closed() == 1000
        assert results(live) == {1: "deliverable", "two": "undeliverable", None: "invalid"}
        assert live.lines[0] == {"type": "credit", "more": CREDIT}
        assert live.lines[-1] == {"type": "done", "answered": 3}
        result = live.of("result")[0]
        streamed = (await shop.stream("ann@friendly.test")).lines[0]
        assert result.keys() == {"type", "ref", *streamed}
        rows = [row for row in await shop.rows() if row.operation == "live"]
        assert sorted((row.status, row.units, row.billable) for row in rows) == [
            ("deliverable", 1, True), ("invalid", 1, False), ("undeliverable", 1, True),
        ]  # fmt: skip


async def test_results_leave_in_completion_order(autojump_clock):
    async with open_shop() as shop, open_live(shop) as live:
        await live.send("slow@slow.test", "ann@friendly.test", END)
        await live.until_closed()
        assert [line["email"] for line in live.of("result")] == [
            "ann@friendly.test", "slow@slow.test",
        ]  # fmt: skip


async def test_the_credit_comes_back_as_results_leave(autojump_clock):
    async with open_shop("scale") as shop, open_live(shop) as live:
        await live.send(*[f"a{number}@friendly.test" for number in range(CREDIT)])
        await live.until("result", CREDIT)
        assert sum(line["more"] for line in live.of("credit")) == 2 * CREDIT
        assert len(live.of("credit")) < CREDIT / 10


async def test_a_client_that_ignores_its_credit_is_read_more_slowly(autojump_clock):
    """It gets all results, and the service never holds much more than the credit."""
    async with open_shop("scale") as shop, open_live(shop) as live:
        count = 2 * CREDIT + 100

        async def send_all() -> None:
            for number in range(count):
                await live.send(f"a{number}@friendly.test")
            await live.send(END)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            assert await live.until_closed() == 1000
        assert len(live.of("result")) == count


async def test_the_limit_of_the_minute_is_a_wait(autojump_clock):
    async with open_shop("builder") as shop, open_live(shop) as live:
        began = trio.current_time()
        await live.send(*[f"a{number}@friendly.test" for number in range(130)], END)
        assert await live.until_closed() == 1000
        assert len(live.of("result")) == 130
        assert [line["code"] for line in live.of("wait")] == ["rate_limit_exceeded"]
        assert 55 < live.of("wait")[0]["seconds"] <= 60
        assert 55 < trio.current_time() - began < 70
        assert {row.failed_check for row in await shop.rows()} <= {None, "smtp", "mailbox"} | {
            line["failed_check"] for line in live.of("result")
        }


async def test_a_small_minute_is_used_piece_by_piece(autojump_clock):
    async with open_shop("free") as shop, open_live(shop) as live:
        await live.send(*[f"a{number}@friendly.test" for number in range(25)], END)
        assert await live.until_closed() == 1000
        assert len(live.of("result")) == 25


async def test_the_month_ends_the_socket_after_its_last_units(autojump_clock):
    async with open_shop("free") as shop:
        await shop.use_up(497)
        async with open_live(shop) as live:
            await live.send(*[f"a{number}@friendly.test" for number in range(5)])
            assert await live.until_closed() == 4429
            assert len(live.of("result")) == 3
            (error,) = live.of("error")
            assert error["error"] == "monthly_quota_exceeded"
            assert {"message", "action", "docs", "limit", "used"} <= error.keys()


async def test_a_revoked_key_ends_the_socket(autojump_clock):
    async with open_shop() as shop, open_live(shop) as live:
        await live.send("ann@friendly.test")
        await live.until("result")
        caller = await shop.store.caller(key_hash(shop.key))
        await shop.store.revoke_key(shop.account.id, caller.key.id)
        await live.send("bob@friendly.test")
        assert await live.until_closed() == 4401
        assert live.of("error")[0]["error"] == "invalid_api_key"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"email": 3}',
        '{"mail": "ann@friendly.test"}',
        '{"type": "go"}',
        '{"type": "end", "email": "ann@friendly.test"}',
        {"email": "ann@friendly.test", "ref": "r" * 201},
        {"email": "ann@friendly.test", "ref": [1]},
        "\n".join(["a"] * 1001),
        b"ann@friendly.test",
    ],
)
async def test_an_unreadable_message_closes_the_socket_with_the_reason(line, autojump_clock):
    async with open_shop() as shop, open_live(shop) as live:
        if isinstance(line, bytes):
            await live.socket.send_message(line)
        else:
            await live.send(line)
        assert await live.until_closed() == 4400
        (error,) = live.of("error")
        assert error["error"] == "invalid_request"
        assert error["docs"].endswith("#live")


@pytest.mark.parametrize("ref", [2**64, -(2**63) - 1, 10**300])
async def test_a_ref_outside_of_64_bits_ends_the_socket_after_what_came_before(ref, autojump_clock):
    """The address before it is answered; the one with it costs nothing."""
    async with open_shop() as shop, open_live(shop) as live:
        bob = {"email": "bob@friendly.test", "ref": 2**64 - 1}
        await live.send(bob, {"email": "ann@friendly.test", "ref": ref})
        assert await live.until_closed() == 4400
        assert list(results(live)) == [2**64 - 1]
        assert "64 bits" in live.of("error")[0]["message"]
        assert [row.units for row in await shop.rows()] == [1]


async def test_a_line_ends_at_lf_alone(autojump_clock):
    """U+2028 and U+0085 may stand in JSON, and other separators in a malformed address."""
    async with open_shop() as shop, open_live(shop) as live:
        refs = ["a\u2028b", "a\u0085b"]
        lines = [
            json.dumps({"email": "ann@friendly.test", "ref": ref}, ensure_ascii=False)
            for ref in refs
        ]
        await live.send(*lines, "bob@friendly.test\x0bcem@friendly.test\r", END)
        assert await live.until_closed() == 1000
        assert sorted(map(str, results(live))) == sorted([*refs, "None"])


async def test_results_that_a_client_did_not_get_are_not_billed(autojump_clock):
    async with open_shop() as shop:
        async with open_live(shop) as live:
            await live.send("slow@slow.test", "ann@friendly.test")
            await live.until("result")
        await trio.sleep(5)
        assert [row.units for row in await shop.rows()] == [1]
        ledger = await shop.store.ledger(await shop.caller())
        assert ledger.reserved == 0


async def test_a_client_without_a_pong_is_gone(autojump_clock):
    async with open_shop() as shop:
        live_server = LiveServer(shop.service, LiveConnections(trio.Event()))
        async with open_raw(shop, live_server) as client:
            began = trio.current_time()
            while await client.receive_some():
                pass
            assert trio.current_time() - began == pytest.approx(PING_EVERY_S + PONG_S, abs=3)


async def test_a_socket_with_nothing_to_do_ends(autojump_clock):
    async with open_shop() as shop, open_live(shop) as live:
        await live.send("ann@friendly.test")
        await live.until("result")
        began = trio.current_time()
        assert await live.until_closed() == 1000
        assert IDLE_S <= trio.current_time() - began <= IDLE_S + 5
        assert live.lines[-1] == {"type": "done", "answered": 1}


async def test_a_stop_leaves_the_results_under_way(autojump_clock):
    drain = trio.Event()
    async with open_shop() as shop:
        live_server = LiveServer(shop.service, LiveConnections(drain))
        async with open_live(shop, live_server) as live:
            await live.send("slow@slow.test", "ann@friendly.test")
            await live.until("result")
            drain.set()
            assert await live.until_closed() == 1001
            assert len(live.of("result")) == 2


@pytest.mark.parametrize("end", [[], [END]], ids=["more may come", "the client has ended"])
async def test_a_stop_ends_the_wait_for_the_minute(autojump_clock, end):
    drain = trio.Event()
    async with (
        open_shop("free") as shop,
        open_live(shop, LiveServer(shop.service, LiveConnections(drain))) as live,
    ):
        await live.send(*[f"a{number}@friendly.test" for number in range(25)], *end)
        await live.until("wait")
        drain.set()
        began = trio.current_time()
        assert await live.until_closed() == 1001
        assert trio.current_time() - began < 5
        assert live.of("done") == []


async def test_a_socket_that_ends_before_all_is_answered_is_not_done(autojump_clock):
    """The database goes away after the client's last address."""
    async with open_shop() as shop, open_live(shop) as live:
        shop.store.away = {"settle"}
        await live.send("ann@friendly.test", "slow@slow.test", END)
        assert await live.until_closed() == 4503
        assert live.of("done") == []
        assert live.of("error")[0]["error"] == "quota_check_failed"


async def test_a_test_key_costs_nothing(autojump_clock):
    async with open_shop() as shop:
        key = await shop.new_key("sk_test_")
        async with open_live(shop, key=key) as live:
            await live.send("deliverable@example.com", END)
            assert await live.until_closed() == 1000
            assert len(live.of("result")) == 1
        assert await shop.rows() == []


async def rejected(shop: Any, live: LiveServer | None = None, **more: Any) -> ConnectionRejected:
    with pytest.raises(BaseExceptionGroup) as raised:
        async with open_live(shop, live, **more):
            raise AssertionError("it was opened")
    error: BaseException = raised.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConnectionRejected)
    return error


async def test_a_cookie_is_no_key(autojump_clock):
    async with open_shop() as shop:
        error = await rejected(shop, headers={"Cookie": "session=1"})
        assert error.status_code == 401
        assert json.loads(error.body or b"")["error"] == "missing_api_key"


async def test_an_account_has_a_number_of_sockets(autojump_clock):
    async with open_shop() as shop:
        live_server = LiveServer(shop.service, LiveConnections(trio.Event(), each_max=1))
        async with open_live(shop, live_server):
            assert (await rejected(shop, live_server)).status_code == 503
        async with open_live(shop, live_server) as live:
            await live.until("credit")


async def test_a_list_is_watched_until_it_ends(autojump_clock):
    async with open_list_shop() as shop:
        shop.world.add("far.test", MailHost(latency_s=0.4))
        text = "email\n" + "".join(f"a{number}@far.test\n" for number in range(60))
        list_id = (await send(shop, text, "?patience_s=0")).body["list_id"]
        async with open_live(shop) as live:
            await live.send({"type": "watch", "list": list_id})
            while not live.of("list") or live.of("list")[-1]["status"] != "done":
                assert await live.receive()
            seen = [line["answered"] for line in live.of("list")]
            assert seen == sorted(seen)
            assert len(seen) > 1
            assert seen[-1] == 60
            await live.send({"type": "watch", "list": "another"})
            assert await live.until_closed() == 4404


async def test_one_slow_domain_holds_up_nobody_else(autojump_clock):
    async with open_shop("scale") as shop:
        shop.world.add("silent.test", MailHost(latency_s=60))
        async with open_live(shop) as live:
            await live.send(*[f"a{number}@silent.test" for number in range(100)])
            await live.send("ann@friendly.test")
            began = shop.clock()
            while not any(line["email"] == "ann@friendly.test" for line in live.of("result")):
                assert await live.receive()
            assert shop.clock() - began < timedelta(seconds=3.2)


@pytest.mark.parametrize("steps", range(40))
async def test_a_stop_at_any_moment_closes_with_its_code(steps, autojump_clock):
    drain = trio.Event()
    async with (
        open_shop() as shop,
        open_live(shop, LiveServer(shop.service, LiveConnections(drain))) as live,
    ):
        await live.until("credit")
        await live.send("ann@friendly.test", "bob@friendly.test", "slow@slow.test")
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        drain.set()
        assert await live.until_closed() == 1001
        await trio.sleep(1)
        assert len(await shop.rows()) == len(live.of("result"))


async def test_evidence_and_advice_are_sent_on_request(autojump_clock):
    async with open_shop() as shop:
        async with open_live(shop, path=f"{LIVE}?evidence=1") as live:
            await live.send("ann@friendly.test", END)
            await live.until_closed()
            assert live.of("result")[0]["evidence"]["reason"] == "accepted"
        async with open_live(shop, path=f"{LIVE}?advice=1") as live:
            await live.send("ann@friendly.test", END)
            await live.until_closed()
            (result,) = live.of("result")
            assert (result["light"], result["reason"]) == ("GREEN_LIGHT", "accepted")
        for name in ("evidence", "advice"):
            error = await rejected(shop, path=f"{LIVE}?{name}=2")
            assert error.status_code == 400
