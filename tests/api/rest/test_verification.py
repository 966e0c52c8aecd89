"""The three ways to verify, and what may be added to them."""

from typing import Any

import pytest
import trio

from mailprobe.api.operations.verify import EMAILS_MAX
from mailprobe.api.results.advice import ADVICE
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine.verdict import FIELDS
from mailprobe.storage.contract import OutcomeUnknown
from tests.api.service_fixture import BATCH, MANAGEMENT, STREAM, VERIFY, RunningService

EVIDENCE = {"reason", "blame", "exchanges", "conversation", "rule", "cached", "truncated"}


async def test_a_batch_keeps_the_order_of_the_request(autojump_clock, shop: RunningService):
    emails = ["known@slow.test", "bad", "known@friendly.test", "no@friendly.test", "bad"]
    got = await shop.batch(*emails)
    assert [result["email"] for result in got.body["results"]] == emails
    assert got.body["count"] == 5
    assert got.body["latency_ms"] == 1200


async def test_a_batch_is_verified_in_parallel(autojump_clock, shop: RunningService):
    for n in range(EMAILS_MAX):
        shop.world.add(f"slow{n}.test", MailHost(latency_s=0.4))
    got = await shop.batch(*[f"known@slow{n}.test" for n in range(EMAILS_MAX)])
    assert got.body["latency_ms"] < 2000
    assert {result["status"] for result in got.body["results"]} == {"deliverable"}


async def test_the_email_of_a_result_is_the_string_as_it_was_sent(
    autojump_clock, shop: RunningService
):
    for email in (
        " known@friendly.test",
        "KNOWN@Friendly.Test",
        "",
        "x" * 400,
        "日本@friendly.test",
    ):
        assert (await shop.verify(email)).body["email"] == email
    assert (await shop.verify(" known@friendly.test")).body["failed_check"] == "syntax"


async def test_evidence_is_a_15th_field_and_only_on_request(autojump_clock, shop: RunningService):
    plain = await shop.verify()
    assert tuple(plain.body) == FIELDS
    body = {"email": "known@friendly.test"}
    got = await shop.request("POST", f"{VERIFY}?evidence=1", body)
    assert tuple(got.body) == (*FIELDS, "evidence")
    assert set(got.body["evidence"]) == EVIDENCE
    assert tuple((await shop.request("POST", f"{VERIFY}?evidence=0", body)).body) == FIELDS
    many = {"emails": ["known@friendly.test", "bad"]}
    got = await shop.request("POST", f"{BATCH}?evidence=1", many)
    assert all(set(result["evidence"]) == EVIDENCE for result in got.body["results"])
    got = await shop.request("POST", f"{STREAM}?evidence=1", many)
    assert all(set(line["evidence"]) == EVIDENCE for line in got.lines)


async def test_advice_is_added_on_request_in_every_way_to_verify(
    autojump_clock, shop: RunningService
):
    known, nobody = "known@friendly.test", "nobody@friendly.test"
    got = await shop.request("POST", f"{VERIFY}?advice=1", {"email": nobody})
    assert tuple(got.body) == (*FIELDS, "reason", "light", "advice")
    assert (got.body["reason"], got.body["light"]) == ("no_mailbox", "RED_LIGHT")
    assert got.body["advice"] == ADVICE["no_mailbox"].sentence
    assert (
        tuple((await shop.request("POST", f"{VERIFY}?advice=0", {"email": known})).body) == FIELDS
    )
    many = {"emails": [known, nobody, "bob@gmial.com"]}
    batch = await shop.request("POST", f"{BATCH}?advice=1", many)
    stream = await shop.request("POST", f"{STREAM}?advice=1&evidence=1", many)
    for results in (batch.body["results"], stream.lines):
        assert {each["email"]: each["light"] for each in results} == {
            known: "GREEN_LIGHT", nobody: "RED_LIGHT", "bob@gmial.com": "YELLOW_LIGHT",
        }  # fmt: skip
        (typo,) = (each["advice"] for each in results if each["suggestion"])
        assert typo.startswith("Did you mean gmail.com?")
    assert all(line["evidence"]["reason"] == line["reason"] for line in stream.lines)
    assert not any("evidence" in each for each in batch.body["results"])


async def test_advice_that_is_not_understood_is_400(autojump_clock, shop: RunningService):
    got = await shop.request("POST", f"{STREAM}?advice=yes", {"emails": ["a@friendly.test"]})
    assert (got.status, "advice" in got.body["message"]) == (400, True)


async def test_evidence_that_is_not_understood_is_400(autojump_clock, shop: RunningService):
    for query in ("evidence=yes", "evidence=", "evidence=1&evidence=0", "evidence=01"):
        for path, body in ((VERIFY, {"email": "a"}), (STREAM, {"emails": ["a"]})):
            got = await shop.request("POST", f"{path}?{query}", body)
            assert (got.status, got.error) == (400, "invalid_request")
            assert "evidence" in got.body["message"]
    assert (await shop.request("POST", f"{VERIFY}?other=1", {"email": "a"})).status == 200


async def test_a_webhook_that_will_not_do_is_400_and_one_unit(autojump_clock, shop: RunningService):
    for webhook in ("http://x.test/hook", "https://127.1/", "https://localhost/", "x", ""):
        got = await shop.request("POST", VERIFY, {"email": "a@b.test", "webhook": webhook})
        assert (got.status, got.error) == (400, "invalid_request")
        assert "webhook" in got.body["message"]
    assert [row.failed_check for row in await shop.rows()] == ["invalid_request"] * 5


async def test_a_service_without_a_background_says_so(autojump_clock, shop: RunningService):
    got = await shop.request(
        "POST", VERIFY, {"email": "a@b.test", "webhook": "https://x.test/hook"}
    )
    assert (got.status, got.error) == (400, "invalid_request")


async def test_no_webhook_is_none(autojump_clock, shop: RunningService):
    body = {"email": "known@friendly.test", "webhook": None, "webhook_secret": None}
    assert (await shop.request("POST", VERIFY, body)).status == 200


async def test_a_batch_to_a_slow_host_leaves_a_neighbour_its_answer(
    autojump_clock, shop: RunningService
):
    neighbour = await shop.store.create_account("bob@example.org", "builder")
    key = await shop.new_key("sk_live_", neighbour.id)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shop.batch, *[f"known{n}@slow.test" for n in range(50)])
        await trio.sleep(0.1)
        got = await shop.verify("known@slow.test", key=key)
    assert got.body["status"] == "deliverable"


# -- Idempotency-Key ----------------------------------------------------------------------------


def idempotency(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


async def test_the_same_key_and_body_get_the_first_answer_again(
    autojump_clock, shop: RunningService
):
    first = await shop.verify(headers=idempotency("a"))
    shop.world.hosts.clear()
    await trio.sleep(3600)
    again = await shop.verify(headers=idempotency("a"))
    assert again.octets == first.octets
    assert again.status == 200
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert len(await shop.rows()) == 1
    await trio.sleep(24 * 3600)
    assert (await shop.verify("bad", headers=idempotency("a"))).status == 200
    assert len(await shop.rows()) == 2


async def test_another_request_with_the_same_key_is_422(autojump_clock, shop: RunningService):
    await shop.verify(headers=idempotency("a"))
    for got in (
        await shop.verify("b@friendly.test", headers=idempotency("a")),
        await shop.request("POST", f"{VERIFY}?evidence=1", {"email": "known@friendly.test"},
                       headers=idempotency("a")),
        await shop.batch("known@friendly.test", headers=idempotency("a")),
        await shop.manage("POST", "/keys", headers=idempotency("a")),
    ):  # fmt: skip
        assert (got.status, got.error) == (422, "idempotency_key_reused")


async def test_a_first_request_that_still_runs_is_409(autojump_clock, shop: RunningService):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: shop.verify("known@slow.test", headers=idempotency("a")))
        await trio.sleep(0.1)
        got = await shop.verify("known@slow.test", headers=idempotency("a"))
        assert (got.status, got.error) == (409, "idempotency_in_progress")
    assert (await shop.verify("known@slow.test", headers=idempotency("a"))).status == 200
    assert len(await shop.rows()) == 1


async def test_a_request_that_may_have_begun_can_be_repeated(
    autojump_clock, shop: RunningService, monkeypatch: pytest.MonkeyPatch
):
    """The store has begun it, and was too late to say so."""
    begin = shop.store.store.begin_idempotent

    async def begin_unseen(*arguments: Any, **named: Any) -> None:
        await begin(*arguments, **named)
        raise OutcomeUnknown

    with monkeypatch.context() as late:
        late.setattr(shop.store.store, "begin_idempotent", begin_unseen)
        assert (await shop.verify(headers=idempotency("a"))).status == 503
    await trio.sleep(1)
    got = await shop.verify(headers=idempotency("a"))
    assert got.status == 200
    assert "idempotency-replayed" not in got.headers


async def test_a_key_belongs_to_one_account(autojump_clock, shop: RunningService):
    other = await shop.store.create_account("bob@example.org", "builder")
    key = await shop.new_key("sk_live_", other.id)
    await shop.verify(headers=idempotency("a"))
    got = await shop.verify("b@friendly.test", headers=idempotency("a"), key=key)
    assert (got.status, got.body["email"]) == (200, "b@friendly.test")


async def test_a_repeated_creation_makes_one_key_and_repeats_its_secret(
    autojump_clock, shop: RunningService
):
    first = await shop.manage("POST", "/keys", {"label": "x"}, headers=idempotency("a"))
    again = await shop.manage("POST", "/keys", {"label": "x"}, headers=idempotency("a"))
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body
    assert (await shop.manage("GET", "/keys")).body["count"] == 2


async def test_a_malformed_request_is_counted_once(autojump_clock, shop: RunningService):
    for _ in range(3):
        assert (await shop.verify(5, headers=idempotency("a"))).status == 400
    assert len(await shop.rows()) == 1


async def test_a_refusal_that_may_pass_is_not_kept(autojump_clock, free_shop: RunningService):
    await free_shop.batch(*["x"] * 10)
    assert (await free_shop.verify(headers=idempotency("a"))).status == 429
    await trio.sleep(60)
    assert (await free_shop.verify(headers=idempotency("a"))).status == 200
    free_shop.store.away = {"settle"}
    assert (await free_shop.verify(headers=idempotency("b"))).status == 503
    free_shop.store.away = False
    assert (await free_shop.verify(headers=idempotency("b"))).status == 200


async def test_a_caller_who_hung_up_may_ask_again(autojump_clock, shop: RunningService):
    await shop.verify("known@slow.test", headers=idempotency("a"), hang_up_at=0.5)
    await trio.sleep(0.1)
    assert (await shop.verify("known@slow.test", headers=idempotency("a"))).status == 200


async def test_a_key_is_1_to_255_characters(autojump_clock, shop: RunningService):
    assert (await shop.verify(headers=idempotency("k" * 255))).status == 200
    for key in ("k" * 256, ""):
        got = await shop.verify(headers=idempotency(key))
        assert (got.status, got.error) == (400, "invalid_request")
        assert "Idempotency-Key" in got.body["message"]


async def test_a_stream_cannot_be_repeated(autojump_clock, shop: RunningService):
    got = await shop.stream("known@friendly.test", headers=idempotency("a"))
    assert (got.status, got.error) == (400, "invalid_request")
    assert got.body["docs"].endswith("#streaming")


async def test_a_get_takes_no_notice_of_a_key(autojump_clock, shop: RunningService):
    for _ in range(2):
        got = await shop.request("GET", f"{MANAGEMENT}/account", headers=idempotency("a"))
        assert "idempotency-replayed" not in got.headers
