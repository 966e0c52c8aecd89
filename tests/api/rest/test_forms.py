"""The route of forms: publishable keys, their origins, their visitors, and what they never learn."""

import itertools
import json
from typing import Any, get_args
from uuid import uuid4

import pytest
import trio

from mailprobe.api.forms.proof_of_work import LIFE_S, has_zero_bits
from mailprobe.api.forms.visitors import CHECKS_PER_MIN, PREFLIGHTS_PER_MIN
from mailprobe.api.keys import Prefix, mint
from mailprobe.api.operations.forms import FORMS, reason_for_visitors
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.verdict import Blame, Reason
from tests.api.mcp.tool_server import Listener
from tests.api.rest.test_bounces import GONE, feed
from tests.api.service_fixture import FORM_ORIGIN as ORIGIN
from tests.api.service_fixture import HttpAnswer, RunningService, open_shop

ALLOWED = "access-control-allow-origin"


async def check(
    shop: RunningService, key: str | None, email: str = "ann@friendly.test", **more: Any
) -> HttpAnswer:
    headers = {"origin": ORIGIN, **more.pop("headers", {})}
    return await shop.request("POST", FORMS, {"email": email}, key=key, headers=headers, **more)


async def preflight(shop: RunningService, origin: str | None, **more: Any) -> HttpAnswer:
    headers = {"origin": origin, "access-control-request-method": "POST"}
    return await shop.request("OPTIONS", FORMS, key=None, headers=headers, **more)


@pytest.mark.parametrize(
    ("email", "expected"),
    [
        ("ann@friendly.test", ["GREEN_LIGHT", "accepted", None]),
        ("nobody@friendly.test", ["RED_LIGHT", "no_mailbox", None]),
        ("ann@gmial.com", ["YELLOW_LIGHT", "disposable", "gmail.com"]),
        ("no address", ["RED_LIGHT", "syntax", None]),
    ],
)
async def test_a_form_learns_light_reason_and_suggestion(autojump_clock, shop, email, expected):
    answer = await check(shop, await shop.new_form_key(), email)
    assert answer.status == 200
    assert answer.body == dict(zip(("light", "reason", "suggestion"), expected, strict=True))
    assert answer.headers[ALLOWED] == ORIGIN
    assert answer.headers["vary"] == "Origin"
    assert not {"ratelimit", "ratelimit-policy", "access-control-allow-credentials"} & {
        *answer.headers
    }


async def test_a_check_is_charged_like_a_single_request(autojump_clock, shop):
    key = await shop.new_form_key()
    await check(shop, key)
    await check(shop, await shop.new_form_key("pk_test_"), "typo@sandbox.test")
    [row] = await shop.rows()
    assert (row.operation, row.status, row.units, row.billable) == ("form", "deliverable", 1, True)
    assert (await shop.store.ledger(await shop.caller(key))).month_units == 1


@pytest.mark.parametrize(
    "origin",
    [
        None, "", "null", "*", "https://shop.test.evil.test", "https://evil.test", "http://shop.test",
        "https://shop.test:8443", "https://SHOP.test", "https://shop.test/", "shop.test",
        "https://shop.test, https://evil.test", "https://shop.test http://localhost:3000",
    ],
)  # fmt: skip
async def test_another_origin_or_none_is_refused(autojump_clock, shop, origin):
    answer = await check(shop, await shop.new_form_key(), headers={"origin": origin})
    assert (answer.status, answer.error) == (403, "origin_not_allowed")
    assert ("no Origin header" in answer.body["message"]) == (origin is None)
    asked = await preflight(shop, origin)
    assert (asked.status, asked.error) == (403, "origin_not_allowed")
    for refused in (answer, asked):
        assert refused.headers["vary"] == "Origin"
        assert not any(name.startswith("access-control") for name in refused.headers)
    assert await shop.rows() == []


async def test_a_preflight_passes_for_the_origins_of_active_keys(autojump_clock, shop):
    key = await shop.new_form_key()
    for origin in (ORIGIN, "http://localhost:3000"):
        asked = await preflight(shop, origin)
        assert (asked.status, asked.octets) == (204, b"")
        assert asked.headers[ALLOWED] == origin
        assert asked.headers["vary"] == "Origin"
        assert asked.headers["access-control-allow-methods"] == "POST"
        assert (
            asked.headers["access-control-allow-headers"]
            == "Authorization, Content-Type, Form-Proof"
        )
    await shop.store.revoke_key(None, (await shop.caller(key)).key.id)
    assert (await preflight(shop, ORIGIN)).status == 403


async def test_a_revoked_key_is_unknown(autojump_clock, shop):
    key = await shop.new_form_key()
    await shop.store.revoke_key(None, (await shop.caller(key)).key.id)
    answer = await check(shop, key)
    assert (answer.status, answer.error) == (401, "invalid_api_key")
    assert ALLOWED not in answer.headers


@pytest.mark.parametrize("prefix", ["sk_live_", "sk_test_", "sk_mgmt_"])
async def test_a_secret_key_learns_why_it_is_never_in_a_page(autojump_clock, shop, prefix):
    await shop.new_form_key()
    for key in (await shop.new_key(prefix), prefix + "x"):
        answer = await check(shop, key)
        assert (answer.status, answer.error) == (401, "invalid_api_key")
        assert "must never be in a web page" in answer.body["message"]
        assert ALLOWED not in answer.headers


OTHERS = [each for each in OPERATIONS if each.key not in (None, "form")]


@pytest.mark.parametrize("prefix", ["pk_live_", "pk_test_"])
async def test_a_publishable_key_opens_no_other_route(
    autojump_clock, shop: RunningService, listener: Listener, prefix: Prefix
):
    key = await shop.new_form_key(prefix)
    unknown = mint("sk_live_")
    for operation in OTHERS:
        path = operation.path.replace("{id}", str(uuid4()))
        body = None if operation.method in ("GET", "DELETE") else {"emails": ["ann@friendly.test"]}
        got, expected = [
            await shop.request(operation.method, path, body, key=each, headers={"origin": ORIGIN})
            for each in (key, unknown)
        ]
        assert (got.status, got.error) == (expected.status, expected.error), operation.name
        assert "/v1/forms/verify" in got.body["message"]
        assert ALLOWED not in got.headers
    assert (await shop.request("OPTIONS", "/v1/email/verify", key=None)).status == 405
    called = await listener.rpc("tools/list", key=key)
    assert called.status == 401
    assert await shop.rows() == []


async def test_one_visitor_leaves_the_others_their_checks(autojump_clock, shop):
    key = await shop.new_form_key()
    for _ in range(CHECKS_PER_MIN):
        assert (await check(shop, key, "no address")).status == 200
    refused = await check(shop, key, "no address")
    assert (refused.status, refused.error) == (429, "form_busy")
    assert 1 <= int(refused.headers["retry-after"]) <= 3
    assert refused.headers[ALLOWED] == ORIGIN
    assert (await check(shop, key, "no address", client="192.0.2.8")).status == 200
    assert (await check(shop, await shop.new_form_key(), "no address")).status == 200
    forged = {"x-forwarded-for": "198.51.100.1"}
    assert (await check(shop, key, headers=forged)).status == 429


async def test_one_visitors_preflights_are_limited(autojump_clock, shop):
    await shop.new_form_key()
    seen = [(await preflight(shop, ORIGIN)).status for _ in range(PREFLIGHTS_PER_MIN + 1)]
    assert seen == [204] * PREFLIGHTS_PER_MIN + [429]
    assert (await preflight(shop, ORIGIN, client="192.0.2.8")).status == 204


async def test_the_keys_own_rate_leaves_the_accounts_other_keys_alone(autojump_clock, shop):
    key = await shop.new_form_key(rate_per_min=2)
    got = [await check(shop, key, "no address", client=f"192.0.2.{n}") for n in range(3)]
    assert [answer.status for answer in got] == [200, 200, 429]
    assert got[2].error == "form_busy"
    assert set(got[2].body) == {"error", "message", "action", "docs"}
    assert int(got[2].headers["retry-after"]) == 60
    assert (await shop.verify("ann@friendly.test")).headers["ratelimit"].startswith('"minute";r=99')


@pytest.mark.parametrize("tier", ["free", "builder"])
async def test_an_account_that_may_spend_no_more_shows_nothing_of_itself(
    autojump_clock, shop: RunningService, tier
):
    key = await shop.new_form_key()
    if tier == "free":
        await shop.change(tier=tier)
        await shop.use_up(1, units=500)
    else:
        await shop.change(hard_cap_micros=0)
        await shop.use_up(5000)
    answer = await check(shop, key)
    assert (answer.status, answer.error) == (503, "form_off")
    assert set(answer.body) == {"error", "message", "action", "docs"}
    assert "ratelimit" not in answer.headers
    assert not any(character.isdigit() for character in json.dumps(answer.body))


@pytest.mark.parametrize(
    ("changes", "used", "passes"),
    [
        ({"tier": "free"}, 374, True),
        ({"tier": "free"}, 375, False),  # three quarters of 500
        ({"hard_cap_micros": 0}, 3749, True),
        ({"hard_cap_micros": 0}, 3750, False),  # of the included 5,000
        ({"hard_cap_micros": 4_000_000}, 4499, True),
        ({"hard_cap_micros": 4_000_000}, 4500, False),  # of these and 1,000 more
        ({"hard_cap_micros": None}, 9000, True),
    ],
)
async def test_the_last_quarter_of_an_accounts_month_is_kept_for_its_secret_keys(
    autojump_clock, shop: RunningService, changes, used, passes
):
    key = await shop.new_form_key()
    await shop.change(**changes)
    if "tier" in changes:
        await shop.use_up(1, units=used)
    else:
        await shop.use_up(used)
    assert (await check(shop, key)).status == (200 if passes else 503)
    if not passes:
        assert (await shop.verify("ann@friendly.test")).status == 200


async def test_a_form_never_uses_up_a_secret_keys_minute(autojump_clock, shop: RunningService):
    await shop.change(tier="free")
    keys = [await shop.new_form_key(rate_per_min=10) for _ in range(3)]
    for key in keys:
        for n in range(11):
            last = await check(shop, key, "no address", client=f"192.0.2.{n}")
        assert last.status == 429
    assert (await shop.verify("no address")).headers["ratelimit"].startswith('"minute";r=9;')


@pytest.mark.parametrize("reason", get_args(Reason))
@pytest.mark.parametrize("blame", [*get_args(Blame), None])
def test_a_visitor_learns_no_reason_of_the_account_or_of_the_service(reason, blame):
    shown = reason_for_visitors(VerdictCause(reason, blame))
    states = {
        *("paused", "host_budget", "no_connection_free", "no_egress", "resolver", "not_asked"),
        *("blocked_us", "smtp_blocked", "rate_limited", "host_changed", "unconfirmed"),
    }
    if reason == "bounced":
        assert shown == "no_mailbox"
    elif reason in states or blame in ("us", "network"):
        assert shown == "unclear"
    else:
        assert shown == reason


async def test_a_bounced_address_looks_like_an_unknown_one(autojump_clock, shop: RunningService):
    key = await shop.new_form_key()
    assert (await feed(shop)).status == 200
    known = await check(shop, key, "nobody@friendly.test")
    assert (await check(shop, key, GONE)).body == known.body


async def test_a_body_that_is_no_forms_is_not_read(autojump_clock, shop):
    key = await shop.new_form_key()
    large = {"content-length": str(10 * 1024 * 1024)}
    assert (await check(shop, key, headers=large)).status == 413
    for pieces in ([(0.0, b"x" * 5000)], [(0.0, b"x" * 1000)] * 6):
        answer = await shop.request(
            "POST", FORMS, key=key, headers={"origin": ORIGIN}, pieces=pieces
        )
        assert answer.status == 413
        assert answer.headers[ALLOWED] == ORIGIN
    for octets in (b"", b"[]", b"{}", b'{"email": 1}', b"\xff"):
        answer = await shop.request(
            "POST", FORMS, octets=octets, key=key, headers={"origin": ORIGIN}
        )
        assert (answer.status, answer.error) == (400, "invalid_request")
    assert await shop.rows() == []


async def test_without_the_store_a_page_gets_503(autojump_clock, shop):
    key = await shop.new_form_key()
    shop.store.away = True
    for answer in (await check(shop, key), await preflight(shop, ORIGIN)):
        assert (answer.status, answer.error) == (503, "quota_check_failed")
        assert answer.headers["vary"] == "Origin"


async def test_in_production_a_test_key_is_refused(autojump_clock):
    async with open_shop(takes_test_keys=False) as shop:
        answer = await check(shop, await shop.new_form_key("pk_test_"))
        assert (answer.status, answer.error) == (401, "invalid_api_key")


async def test_a_check_needs_a_proof_of_work_where_the_setting_says_so(autojump_clock):
    """The proof is checked before the body is read and the check counted, and is good once."""
    async with open_shop(form_proof_bits=4) as shop:
        key = await shop.new_form_key("pk_test_")
        refused = await check(shop, key, headers={"content-length": "10"})
        assert (refused.status, refused.error) == (428, "proof_required")
        assert refused.headers[ALLOWED] == ORIGIN
        assert "Form-Challenge" in refused.headers["access-control-expose-headers"]
        challenge = refused.headers["form-challenge"]
        proof = {"form-proof": solve(challenge, 4)}
        assert (await check(shop, key, headers=proof, client="192.0.2.8")).status == 428
        answer = await check(shop, key, "typo@sandbox.test", headers=proof)
        assert (answer.status, answer.body["suggestion"]) == (200, "gmail.com")
        assert (await check(shop, key, headers=proof)).status == 428
        following = {"form-proof": solve(answer.headers["form-challenge"], 4)}
        await trio.sleep(LIFE_S + 1)
        assert (await check(shop, key, headers=following)).status == 428
        for _ in range(CHECKS_PER_MIN * 2):
            last = await check(shop, key)
        assert last.status == 428  # refused checks are not the visitor's checks
        other = {"origin": "https://evil.test"}
        assert "form-challenge" not in (await check(shop, key, headers=other)).headers


async def test_without_the_setting_no_answer_has_a_challenge(autojump_clock, shop):
    answer = await check(shop, await shop.new_form_key(), headers={"form-proof": "anything"})
    assert answer.status == 200
    assert "form-challenge" not in answer.headers


def solve(challenge: str, bits: int) -> str:
    proofs = (f"{challenge}:{number}" for number in itertools.count())
    return next(proof for proof in proofs if has_zero_bits(proof, bits))
