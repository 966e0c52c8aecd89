"""The first keys and the first steps with them."""

import json
import re
import shlex
from html import unescape

import pytest
import trio

from mailprobe.api.keys import key_hash
from mailprobe.api.pages.dashboard.start_page import SAMPLE, assistant_line, sample_list
from mailprobe.api.service import RecentAccounts
from tests.api.lists.test_lists import open_list_shop
from tests.api.pages.test_dashboard import PageClient, open_empty_shop, signed_in
from tests.api.service_fixture import RunningService, open_shop


async def begun(shop: RunningService, token: str) -> PageClient:
    visitor = PageClient(shop)
    made = await visitor.post("/welcome", {"token": token, "email": "eve@example.org"})
    assert (made.status, made.headers["location"]) == (303, "/dashboard/start")
    return visitor


def shown(page: bytes, id_: str) -> str:
    found = re.search(rf'id="{id_}">([^<]+)<'.encode(), page)
    return unescape(found[1].decode()) if found else ""


async def test_the_first_keys_are_shown_until_they_are_saved(autojump_clock):
    """A reload shows them again; afterwards only the line for a shell has the live key."""
    async with open_empty_shop() as (shop, store, token):
        visitor = await begun(shop, token)
        for _ in range(2):
            page = (await visitor.get("/start")).octets
            key, provisioning_key = shown(page, "key"), shown(page, "provisioning_key")
            assert await store.caller(key_hash(key)) is not None
            assert await store.caller(key_hash(provisioning_key)) is not None
        env = await visitor.get("/start/keys.env")
        assert "mailprobe.env" in env.headers["content-disposition"]
        assert f"MAILPROBE_KEY={key}\n" in env.octets.decode()
        assert f"MAILPROBE_PROVISIONING_KEY={provisioning_key}\n" in env.octets.decode()
        assert (await visitor.post("/start/saved")).status == 303
        page = (await visitor.get("/start")).octets
        assert provisioning_key.encode() not in page
        line = shlex.split(shown(page, "curl"))
        assert f"Authorization: Bearer {key}" in line
        assert "https://api.test/v1/email/verify" in line
        assert json.loads(line[-1]) == {"email": "eve@example.org"}  # the visitor's own
        assert (await visitor.get("/start/keys.env")).status == 404


async def test_keys_are_shown_to_the_session_that_made_them_only(autojump_clock):
    async with open_empty_shop() as (shop, store, token):
        visitor = await begun(shop, token)
        assert visitor.keys_cookie is not None
        another = await store.create_account("bob@example.org", "scale")
        bob = PageClient(shop)
        raw = "sk_mgmt_" + "0" * 40
        await store.create_key(
            another.id, "provisioning", None, sha256=key_hash(raw), prefix="x", keys_max=9
        )
        await bob.sign_in(raw)
        for stolen in (visitor.keys_cookie, visitor.keys_cookie[:-2] + "zz", "x"):
            bob.keys_cookie = stolen
            assert b"sk_live_" not in (await bob.get("/start")).octets
        stranger = PageClient(shop)
        stranger.keys_cookie = visitor.keys_cookie
        assert (await stranger.get("/start")).status == 303


async def test_the_steps_tick_themselves_off(autojump_clock):
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)
        assert b"0 of 3 done" in (await visitor.get("/start/ticks")).octets
        await shop.verify("ann@friendly.test")
        page = (await visitor.get("/start/ticks")).octets.decode()
        assert "1 of 3 done" in page
        assert 'id="tick-verify" class="tick done"' in page
        for _ in range(2):
            made = await visitor.post("/start/sample")
            assert made.headers["location"].startswith("/dashboard/lists/")
        await trio.sleep(60)
        assert b"2 of 3 done" in (await visitor.get("/start/ticks")).octets
        keys = await shop.store.keys(shop.account.id)
        assert [key.is_test for key in keys if key.label == SAMPLE] == [True]
        assert (await shop.store.ledger(await shop.caller())).month_units == 1
        shop.service.assistants.add(shop.account.id)
        page = (await visitor.get("/start/ticks")).octets.decode()
        assert "3 of 3 done" in page
        assert "hx-get" not in page


async def test_the_sample_needs_the_forms_token_and_test_keys(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        assert (await visitor.post("/start/sample", {"csrf": "x"})).status == 403
        assert len(await shop.store.keys(shop.account.id)) == 2


def test_the_sample_has_one_address_for_each_verdict():
    lines = sample_list().decode().splitlines()
    assert lines[0] == "name,email"
    assert "catch all,catch_all@sandbox.test" in lines


@pytest.mark.parametrize("url", ["http://127.0.0.1:8081", ""])
def test_an_assistants_line_needs_a_tool_server(url):
    line = assistant_line(url, "sk_live_x")
    assert bool(line) is bool(url)
    if url:
        assert shlex.split(line)[-1] == "Authorization: Bearer sk_live_x"


def test_the_memory_of_assistants_is_bounded():
    recent = RecentAccounts()
    for number in range(RecentAccounts.ACCOUNTS_MAX + 1):
        recent.add(f"{number}")
        recent.add(f"{number}")
    assert "0" not in recent
    assert "1" in recent
    assert f"{RecentAccounts.ACCOUNTS_MAX}" in recent
