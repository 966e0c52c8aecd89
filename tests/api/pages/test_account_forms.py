"""The forms of keys and limits: what they keep, what they refuse, and what a reload does."""

import re

import pytest

from mailprobe.api.keys import key_hash
from mailprobe.api.pages.dashboard.limits_page import caps_of
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import open_shop


async def test_a_new_key_is_shown_after_a_redirect_until_it_is_saved(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        got = await visitor.post("/keys", {"label": "checkout", "kind": "test"})
        assert (got.status, got.headers["location"]) == (303, "/dashboard/keys")
        assert "HttpOnly" in got.headers["set-cookie"]
        assert "Path=/dashboard/keys" in got.headers["set-cookie"]
        for _ in range(2):
            page = (await visitor.get("/keys")).octets
            [key] = re.findall(rb'id="made">(sk_test_[^<]+)<', page)
        assert await shop.store.caller(key_hash(key.decode())) is not None
        assert len(await shop.store.keys(shop.account.id)) == 3
        await visitor.post("/keys/saved")
        assert b'id="made"' not in (await visitor.get("/keys")).octets


async def test_signing_out_forgets_a_key_that_was_not_saved(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        await visitor.post("/keys")
        assert visitor.keys_cookie
        await visitor.post("/sign-out")
        assert visitor.keys_cookie is None


async def test_a_label_that_cannot_be_used_stays_in_its_field(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        got = await visitor.post("/keys", {"label": "x" * 101, "kind": "test"})
        assert got.status == 400
        page = got.octets.decode()
        assert f'value="{"x" * 101}"' in page
        assert 'value="test" checked' in page
        assert "This label cannot be used" in page


async def test_a_wrong_cap_keeps_the_form_and_saves_nothing(autojump_clock):
    async with open_shop("builder") as shop:
        visitor = await signed_in(shop)
        await visitor.post("/caps", {"hard": "20", "soft": "10", "alerts": "on"})
        for hard, soft in (("many", "5"), ("-1", "5"), ("5", "6"), ("1e400", "5")):
            got = await visitor.post("/caps", {"hard": hard, "soft": soft})
            page = got.octets.decode()
            assert got.status == 400
            assert f'value="{hard}"' in page
            assert f'value="{soft}"' in page
            assert page.count('aria-invalid="true"') == 1
            assert 'name="alerts">' in page
            account = (await shop.caller()).account
            assert (account.hard_cap_micros, account.soft_cap_micros) == (20_000_000, 10_000_000)


@pytest.mark.parametrize(
    ("soft", "hard", "wrong"),
    [
        ("", "", set()), ("5", "", set()), ("", "5", set()), ("5", "5", set()), ("4,5", "5", set()),
        ("5.01", "5", {"soft"}), ("x", "5", {"soft"}), ("5", "x", {"hard"}), ("x", "x", {"soft", "hard"}),
    ],
)  # fmt: skip
def test_a_soft_cap_is_at_most_the_hard_one(soft, hard, wrong):
    _, errors = caps_of({"soft": soft, "hard": hard})
    assert set(errors) == wrong
