"""The specification: processing layers, results, callbacks and health.

Each test is named after the row of the specification that it checks.
"""

from uuid import UUID

import trio

from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.zone import ZoneMode
from tests.api.jobs.test_worker import promise
from tests.api.rest.specification import Working, result
from tests.api.service_fixture import RunningService

# == Processing layers ========================================================================


async def test_layer_1_syntax_failure_gives_syntax(autojump_clock, shop: RunningService):
    for email in ("plain", "a..b@friendly.test", "x" * 65 + "@friendly.test", "a@", "@b.test", ""):
        assert (await shop.verify(email)).body["failed_check"] == "syntax"


async def test_layer_2_disposable_failure_gives_disposable(autojump_clock, shop: RunningService):
    got = (await shop.verify("ann@mailinator.com")).body
    assert (got["failed_check"], got["disposable"], got["status"]) == (
        "disposable",
        True,
        "invalid",
    )


async def test_layer_3_mx_lookup_failure_gives_no_mx(autojump_clock, shop: RunningService):
    got = (await shop.verify("ann@nowhere.test")).body
    assert (got["failed_check"], got["mx_found"], got["mx_host"]) == ("no_mx", False, None)


async def test_layer_4_smtp_failure_gives_smtp(autojump_clock, shop: RunningService):
    shop.world.add("refusing.test", MailHost(banner="554 go away"))
    assert (await shop.verify("no@friendly.test")).body["failed_check"] == "smtp"
    assert (await shop.verify("ann@refusing.test")).body["failed_check"] == "smtp"


async def test_layer_4_either_timeout_gives_smtp_timeout(autojump_clock, shop: RunningService):
    shop.world.add("silent.test", MailHost(latency_s=1.5))
    shop.world.add("slow3.test", MailHost(latency_s=0.95, ehlo_lines=()))
    assert (await shop.verify("known@silent.test")).body["failed_check"] == "smtp_timeout"
    assert (await shop.verify("known@slow3.test")).body["failed_check"] == "smtp_timeout"


async def test_layer_5_signals_never_set_failed_check(autojump_clock, shop: RunningService):
    got = (await shop.verify("info@friendly.test")).body
    assert (got["role"], got["failed_check"]) == (True, "smtp")
    shop.world.add("big.test", MailHost(mailboxes=frozenset({"info"})))
    got = (await shop.verify("info@big.test")).body
    assert (got["role"], got["failed_check"], got["status"]) == (True, None, "deliverable")


async def test_the_first_failing_layer_ends_processing(autojump_clock, shop: RunningService):
    asked = sum(shop.world.transport.exchanged.values())
    await shop.verify("a..b@friendly.test")
    await shop.verify("ann@mailinator.com")
    assert sum(shop.world.transport.exchanged.values()) == asked


async def test_smtp_blocked_providers_are_unknown_at_0_75(autojump_clock, shop: RunningService):
    domain = "yahoo.com"
    shop.world.add(domain, MailHost())
    got = (await shop.verify(f"ann@{domain}")).body
    assert (got["status"], got["valid"], got["confidence"]) == ("unknown", False, 0.75)
    assert (got["smtp_blocked"], got["failed_check"], got["mx_found"]) == (True, None, True)
    assert not shop.world.dialled


async def test_without_smtp_no_mail_host_is_connected(autojump_clock, shop: RunningService):
    body = {"emails": ["known@friendly.test", "bad"], "smtp": False}
    lines = (await shop.request("POST", "/v1/email/verify/stream?evidence=1", body)).lines
    assert {line["email"]: (line["status"], line["evidence"]["reason"]) for line in lines} == {
        "known@friendly.test": ("unknown", "not_asked"),
        "bad": ("invalid", "syntax"),
    }
    batch = await shop.request("POST", "/v1/email/verify/batch", body)
    assert [got["mx_found"] for got in batch.body["results"]] == [True, False]
    one = {"email": "known@friendly.test", "smtp": False}
    got = (await shop.request("POST", "/v1/email/verify", one)).body
    assert (got["status"], got["confidence"], got["failed_check"]) == ("unknown", 0.5, None)
    assert not shop.world.dialled
    refused = await shop.request("POST", "/v1/email/verify", {**one, "smtp": "no"})
    assert refused.status == 400
    assert "smtp" in refused.body["message"]
    # one of a test key, too
    test_key = await shop.new_key("sk_test_")
    one["email"] = "deliverable@sandbox.test"
    got = (await shop.request("POST", "/v1/email/verify", one, key=test_key)).body
    assert (got["status"], got["confidence"]) == ("unknown", 0.5)


# == VerifyEmailResult ========================================================================


async def test_result_has_exactly_its_fields_in_order(autojump_clock, shop: RunningService):
    assert list(await result(shop, "known@friendly.test")) == [
        "email", "valid", "status", "confidence", "failed_check", "disposable", "role",
        "free_provider", "catch_all", "smtp_blocked", "mx_found", "mx_host", "suggestion",
        "latency_ms",
    ]  # fmt: skip


async def test_result_email_is_the_address_that_was_verified(autojump_clock, shop: RunningService):
    assert (await result(shop, "Known@Friendly.test"))["email"] == "Known@Friendly.test"


async def test_result_valid_is_deliverable_or_catch_all(autojump_clock, shop: RunningService):
    emails = ["known@friendly.test", "a@catchall.test", "no@friendly.test", "bad", "a@none.test"]
    assert [(await result(shop, email))["valid"] for email in emails] == [
        True, True, False, False, False,
    ]  # fmt: skip


async def test_result_status_deliverable_and_confidence_0_97(autojump_clock, shop: RunningService):
    got = await result(shop, "known@friendly.test")
    assert (got["status"], got["confidence"], got["failed_check"]) == ("deliverable", 0.97, None)


async def test_result_status_undeliverable_and_confidence_0_02(
    autojump_clock, shop: RunningService
):
    got = await result(shop, "no@friendly.test")
    assert (got["status"], got["confidence"], got["failed_check"]) == (
        "undeliverable",
        0.02,
        "smtp",
    )


async def test_result_status_unknown_and_confidence_0_50(autojump_clock, shop: RunningService):
    shop.world.add("grey.test", MailHost(greylist_s=300))
    got = await result(shop, "ann@grey.test")
    assert (got["status"], got["confidence"], got["failed_check"]) == ("unknown", 0.5, None)
    assert (got["mx_found"], got["smtp_blocked"]) == (True, False)


async def test_result_status_catch_all_and_confidence_0_65(autojump_clock, shop: RunningService):
    got = await result(shop, "ann@catchall.test")
    assert (got["status"], got["confidence"], got["failed_check"]) == ("catch_all", 0.65, None)
    assert (got["catch_all"], got["valid"]) == (True, True)


async def test_result_status_invalid_and_confidence_0(autojump_clock, shop: RunningService):
    for email in ("bad", "ann@mailinator.com", "ann@nowhere.test"):
        got = await result(shop, email)
        assert (got["status"], got["confidence"]) == ("invalid", 0)


async def test_result_free_provider(autojump_clock, shop: RunningService):
    shop.world.add("gmx.net", MailHost())
    assert (await result(shop, "known@gmx.net"))["free_provider"] is True
    assert (await result(shop, "known@friendly.test"))["free_provider"] is False


async def test_result_mx_host_is_the_primary_exchange(autojump_clock, shop: RunningService):
    shop.world.add("two.test", MailHost(), mx="second.two.test", preference=20)
    shop.world.add("two.test", MailHost(), mx="First.two.test", preference=10)
    assert (await result(shop, "known@two.test"))["mx_host"] == "first.two.test"


async def test_result_suggestion_is_the_corrected_domain(autojump_clock, shop: RunningService):
    assert (await result(shop, "ann@gmial.com"))["suggestion"] == "gmail.com"
    assert (await result(shop, "known@friendly.test"))["suggestion"] is None


async def test_result_latency_ms_is_end_to_end(autojump_clock, shop: RunningService):
    assert (await result(shop, "known@slow.test"))["latency_ms"] == 1200


async def test_result_of_a_syntax_failure_says_nothing_else(autojump_clock, shop: RunningService):
    assert await result(shop, "admin@@gmial.com") == {
        "email": "admin@@gmial.com", "valid": False, "status": "invalid", "confidence": 0,
        "failed_check": "syntax", "disposable": False, "role": False, "free_provider": False,
        "catch_all": False, "smtp_blocked": False, "mx_found": False, "mx_host": None,
        "suggestion": None, "latency_ms": 0,
    }  # fmt: skip


async def test_a_failing_resolver_is_unknown_and_never_no_mx(autojump_clock, shop: RunningService):
    shop.world.zone.mode("broken.test", ZoneMode.SERVFAIL)
    got = await result(shop, "ann@broken.test")
    assert (got["status"], got["failed_check"], got["mx_found"]) == ("unknown", None, False)


# == BatchVerifyResponse ======================================================================


async def test_batch_results_count_and_latency(autojump_clock, shop: RunningService):
    got = (await shop.batch("bad", "known@friendly.test")).body
    assert list(got) == ["results", "count", "latency_ms"]
    assert [result["email"] for result in got["results"]] == ["bad", "known@friendly.test"]
    assert got["count"] == 2
    assert isinstance(got["latency_ms"], int)


# == AsyncVerifyResponse ======================================================================


async def test_async_job_id_is_a_string_and_status_always_pending(autojump_clock, working: Working):
    shop, _ = working
    for email in ("known@friendly.test", "no@friendly.test", "bad"):
        got = (await promise(shop, email)).body
        assert got == {"job_id": got["job_id"], "status": "pending"}
        assert UUID(got["job_id"])


# == Webhook callback payload =================================================================


async def test_callback_has_the_fields_of_a_result_and_job_id(autojump_clock, working: Working):
    shop, receiver = working
    for email in ("known@friendly.test", "ann@mailinator.com", "bad"):
        job_id = (await promise(shop, email)).body["job_id"]
        await trio.sleep(5)
        expected = {**await result(shop, email), "job_id": job_id}
        got = receiver.bodies()[-1]
        assert list(got) == list(expected)
        assert {**got, "latency_ms": 0} == {**expected, "latency_ms": 0}


# == Health ===================================================================================


async def test_health_is_ok_and_ts(autojump_clock, shop: RunningService):
    got = await shop.request("GET", "/health", key=None)
    assert (got.status, got.body) == (200, {"ok": True, "ts": 1_773_480_413_000})
    shop.store.away = True
    await trio.sleep(1)  # the store is checked once a second
    assert (await shop.request("GET", "/health", key=None)).body["ok"] is False
