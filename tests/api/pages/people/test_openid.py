"""Signing in at an OpenID provider, and all that a provider, a token or a browser may forge."""

import base64
import json
import logging
from typing import Any

import httpx
import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.serve import create_app
from tests.api.pages.people.stand_in_provider import (
    ISSUER,
    KEY,
    OPENID,
    OTHER_KEY,
    SECRET_KEY,
    OpenIdShop,
    open_openid_shop,
)
from tests.api.pages.people.visitor import HOME, Visitor


async def assert_refused(shop: OpenIdShop, visitor: Visitor, **changed: str) -> None:
    got = await shop.enter(visitor, **changed)
    assert (got.status, visitor.is_signed_in) == (403, False)


async def test_a_verified_address_that_was_invited_signs_in(autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        visitor = Visitor(shop.people.shop)
        assert b"Sign in with login.test" in (await visitor.get("sign-in")).octets
        answer = await shop.leave(visitor, f"{HOME}/keys")
        assert set(visitor.cookies) == {"__Host-mailprobe_openid"}
        got = await shop.come_back(visitor, answer)
        assert (got.status, got.headers["location"]) == (303, f"{HOME}/keys")
        assert b"Account menu of ann@shop.test" in (await visitor.get("keys")).octets
        assert "__Host-mailprobe_openid" not in visitor.cookies


async def test_an_address_that_nobody_invited_stays_outside(autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        shop.provider.claims = {"email": "eve@shop.test"}
        visitor = Visitor(shop.people.shop)
        got = await shop.enter(visitor)
        assert (got.status, b"Nobody has invited this address." in got.octets) == (403, True)
        assert not visitor.is_signed_in


@pytest.mark.parametrize(
    "target", ["https://evil.test/", "//evil.test", "/dashboard/../v1", "/v1", "/dashboard/sign-in"]
)
async def test_a_provider_leads_to_our_own_pages_only(target: str, autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        visitor = Visitor(shop.people.shop)
        got = await shop.come_back(visitor, await shop.leave(visitor, target))
        assert got.headers["location"] == HOME


FORGED: dict[str, dict[str, Any]] = {
    "another nonce": {"claims": {"nonce": "another"}},
    "no nonce": {"left_out": {"nonce"}},
    "another issuer": {"claims": {"iss": "https://evil.test"}},
    "no issuer": {"left_out": {"iss"}},
    "another audience": {"claims": {"aud": "another"}},
    "no audience": {"left_out": {"aud"}},
    "several audiences, none of them chosen": {"claims": {"aud": ["mailprobe", "another"]}},
    "made for another client": {"claims": {"azp": "another"}},
    "expired": {"claims": {"exp": 1_000_000}},
    "no end": {"left_out": {"exp"}},
    "of the future": {"claims": {"iat": 9_999_999_999}},
    "no subject": {"left_out": {"sub"}},
    "signed by another key": {"signed_by": OTHER_KEY},
    "signed by another key that names itself": {
        "signed_by": OTHER_KEY, "header": {"alg": "RS256", "kid": "two"},
    },
    "signed by our secret": {"signed_by": SECRET_KEY, "header": {"alg": "HS256", "kid": "one"}},
    "signed by its public key as a secret": {
        "signed_by": SECRET_KEY, "header": {"alg": "HS256"},
    },
    "no token": {"token": "x"},
    "an address that is not verified": {"claims": {"email_verified": False}},
    "an address of which nothing is said": {"left_out": {"email_verified"}},
    "an address that is none": {"claims": {"email": 7}},
    "no address anywhere": {"left_out": {"email"}, "user": {"sub": "u1"}},
    "the address of another user": {
        "left_out": {"email"},
        "user": {"sub": "u2", "email": "ann@shop.test", "email_verified": True},
    },
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED)
async def test_a_forged_token_proves_nothing(forged: str, autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        for name, value in FORGED[forged].items():
            setattr(shop.provider, name, value)
        await assert_refused(shop, Visitor(shop.people.shop))


async def test_a_token_without_a_signature_proves_nothing(autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        visitor = Visitor(shop.people.shop)
        answer = await shop.leave(visitor)
        at = int(shop.people.shop.clock().timestamp())
        claims = {
            "iss": ISSUER, "aud": "mailprobe", "sub": "u1", "iat": at, "exp": at + 300,
            "nonce": shop.provider.authorization["nonce"], "email": "ann@shop.test",
            "email_verified": True,
        }  # fmt: skip
        parts = [{"alg": "none"}, claims]
        text = ".".join(
            base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=")
            for each in parts
        )
        shop.provider.token = f"{text}."
        got = await shop.come_back(visitor, answer)
        assert (got.status, visitor.is_signed_in) == (403, False)


async def test_an_address_beside_the_token_counts_for_its_user(autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        shop.provider.left_out = {"email", "email_verified"}
        shop.provider.user = {"sub": "u1", "email": "Ann@Shop.test", "email_verified": "true"}
        assert (await shop.enter(Visitor(shop.people.shop))).status == 303


async def test_a_forged_answer_proves_nothing(autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        for number, changed in enumerate(
            [
                {"state": "forged"}, {"state": ""}, {"code": "stolen"}, {"iss": "https://evil.test"},
                {"error": "access_denied", "code": ""},
            ]
        ):  # fmt: skip
            visitor = Visitor(shop.people.shop, client=f"198.51.100.{number}")
            await assert_refused(shop, visitor, **changed)
        shop.provider.metadata = {"authorization_response_iss_parameter_supported": True}
        shop.people.shop.app = create_app(shop.people.shop.service)
        await trio.sleep(3600)  # what the provider says of itself is asked again
        await assert_refused(shop, Visitor(shop.people.shop))
        got = await shop.enter(Visitor(shop.people.shop), iss=ISSUER)
        assert got.status == 303


async def test_an_answer_counts_in_the_browser_that_left_alone(autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        ann, eve = Visitor(shop.people.shop), Visitor(shop.people.shop, client="203.0.113.1")
        answer = await shop.leave(ann)
        assert (await shop.come_back(eve, answer)).status == 403  # without a cookie
        await shop.leave(eve)
        assert (await shop.come_back(eve, answer)).status == 403  # with that of another attempt
        assert not eve.is_signed_in


async def test_an_answer_that_is_replayed_counts_no_second_time(autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        visitor = Visitor(shop.people.shop)
        answer = await shop.leave(visitor)
        replayed = Visitor(shop.people.shop, cookies=dict(visitor.cookies))
        assert (await shop.come_back(visitor, answer)).status == 303
        got = await shop.come_back(replayed, answer)
        assert (got.status, b"This sign-in is over." in got.octets) == (403, True)
        assert not replayed.is_signed_in


async def test_an_answer_comes_within_ten_minutes(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_openid_shop() as shop:
        monkeypatch.setattr("mailprobe.api.pages.dashboard.sign_ins.ATTEMPT_S", -1)
        await assert_refused(shop, Visitor(shop.people.shop))


WRONG: dict[str, dict[str, Any]] = {
    "another issuer": {"metadata": {"issuer": "https://login.test/other"}},
    "a slash more": {"metadata": {"issuer": f"{ISSUER}/"}},
    "a token endpoint without TLS": {"metadata": {"token_endpoint": "http://login.test/token"}},
    "keys without TLS": {"metadata": {"jwks_uri": "http://login.test/keys"}},
    "no description": {"answers": {"/realm/.well-known/openid-configuration": httpx.Response(503)}},
    "a page": {
        "answers": {"/realm/.well-known/openid-configuration": httpx.Response(200, text="<html>")}
    },
    "endless": {
        "answers": {
            "/realm/.well-known/openid-configuration": httpx.Response(200, content=b" " * 300_000)
        }
    },
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_provider_that_describes_itself_wrongly_is_not_used(
    wrong: str, autojump_clock: Any
) -> None:
    async with open_openid_shop() as shop:
        for name, value in WRONG[wrong].items():
            setattr(shop.provider, name, value)
        visitor = Visitor(shop.people.shop)
        got = await visitor.get(OPENID)
        assert (got.status, b"The sign-in at login.test did not work." in got.octets) == (403, True)


@pytest.mark.parametrize(
    "address", ["https://[", "https://login.test/\r\nX: y", "https://login.test/\x7f"]
)
@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint"])
async def test_a_provider_whose_addresses_are_none_is_not_used(
    name: str, address: str, autojump_clock: Any
) -> None:
    async with open_openid_shop() as shop:
        shop.provider.metadata = {name: address}
        assert (await Visitor(shop.people.shop).get(OPENID)).status == 403


@pytest.mark.parametrize(
    "email", [["ann@shop.test"], "ann@shop.test\0", "\N{KELVIN SIGN}im@shop.test", ""]
)
async def test_an_address_that_is_none_or_only_alike_proves_nothing(
    email: Any, autojump_clock: Any
) -> None:
    async with open_openid_shop() as shop:
        await shop.people.person("owner", "kim@shop.test")
        shop.provider.claims = {"email": email}
        await assert_refused(shop, Visitor(shop.people.shop))


@pytest.mark.parametrize("verified", [False, None, 1, "false", ["true"]])
async def test_an_address_that_is_not_verified_proves_nothing(
    verified: Any, autojump_clock: Any
) -> None:
    async with open_openid_shop() as shop:
        shop.provider.claims = {"email_verified": verified}
        await assert_refused(shop, Visitor(shop.people.shop))


async def test_a_key_on_an_unknown_curve_signs_nothing(autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        key = {"kty": "EC", "crv": "new", "x": "AA", "y": "AA"}
        shop.provider.answers = {"/keys": httpx.Response(200, json={"keys": [key]})}
        head = base64.urlsafe_b64encode(b'{"alg":"ES256"}').decode().rstrip("=")
        shop.provider.token = f"{head}.e30.AAAA"
        await assert_refused(shop, Visitor(shop.people.shop))


@pytest.mark.parametrize("path", ["/token", "/keys"])
async def test_a_provider_that_fails_later_signs_nobody_in(path: str, autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        for answer in (httpx.Response(500), httpx.Response(200, json=[])):
            shop.provider.answers = {path: answer}
            await assert_refused(shop, Visitor(shop.people.shop))


async def test_new_keys_of_the_provider_are_fetched_when_one_is_unknown(
    autojump_clock: Any,
) -> None:
    async with open_openid_shop() as shop:
        assert (await shop.enter(Visitor(shop.people.shop))).status == 303
        shop.provider.keys = (KEY, OTHER_KEY)
        shop.provider.signed_by, shop.provider.header = OTHER_KEY, {"alg": "RS256", "kid": "two"}
        await assert_refused(shop, Visitor(shop.people.shop))  # once a minute at most
        await trio.sleep(60)
        assert (await shop.enter(Visitor(shop.people.shop))).status == 303
        assert shop.provider.asked.count("/keys") == 2


async def test_no_log_has_what_proves_the_sign_in(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_openid_shop() as shop:
        visitor = Visitor(shop.people.shop)
        assert (await shop.enter(visitor)).status == 303
        shop.provider.claims = {"nonce": "another"}
        await assert_refused(shop, Visitor(shop.people.shop))
        assert "sign-in failed: provider=login.test error=" in caplog.text
        kept = shop.provider.authorization
        for secret in ("s3cret", "Bearer", kept["nonce"], kept["state"], "eyJ"):
            assert secret not in caplog.text, secret


async def test_a_service_without_a_provider_has_no_such_page(autojump_clock: Any) -> None:
    async with open_openid_shop() as shop:
        service = replace(shop.people.shop.service, openid=None)
        shop.people.shop.app = create_app(service)
        for path in (OPENID, f"{OPENID}/callback"):
            assert (await Visitor(shop.people.shop).get(path)).status == 404
