"""The dashboard without a browser: sign-ins, forms, and what strangers and other accounts get."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.keys import key_hash
from mailprobe.api.observability import request_context
from mailprobe.api.pages.dashboard.assets import assets
from mailprobe.api.pages.dashboard.keys_page import COOKIE as KEYS_COOKIE
from mailprobe.api.pages.dashboard.sign_ins import (
    BROWSER_COOKIE,
    COOKIE,
    HOST_COOKIE,
    SIGN_IN_S,
    TRIES_EACH,
    TRIES_S,
    SignIns,
    is_same_site,
)
from mailprobe.api.serve import create_app
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.storage.list_records import HostWait
from mailprobe.storage.sqlite.memory import MemoryStore
from tests.api.lists.test_lists import open_list_shop, send
from tests.api.service_fixture import HttpAnswer, RunningService, open_shop
from tests.storage.contract.list_calls import claimed, running

HOME = "/dashboard"
PAGES = (
    "",
    "/start",
    "/keys",
    "/caps",
    "/people",
    "/audit",
    "/jobs",
    "/try",
    "/lists",
    "/operator",
)
FORM = {"content-type": "application/x-www-form-urlencoded"}


class PageClient:
    """A browser with its cookie, without script."""

    def __init__(self, shop: RunningService) -> None:
        self.shop = shop
        self.cookie: str | None = None
        self.browser_cookie: str | None = None
        self.keys_cookie: str | None = None
        self.csrf = ""

    async def get(self, path: str, **headers: str) -> HttpAnswer:
        got = await self.shop.request("GET", HOME + path, key=None, headers=self.sent(headers))
        found = re.search(rb'name="csrf" content="([0-9a-f]+)"', got.octets)
        self.csrf = found[1].decode() if found else self.csrf
        return got

    async def post(
        self, path: str, fields: Mapping[str, str] | None = None, **headers: str
    ) -> HttpAnswer:
        body = urlencode({"csrf": self.csrf, **(fields or {})}).encode()
        sent = self.sent({**FORM, "origin": "https://api.test", **headers})
        got = await self.shop.request("POST", HOME + path, octets=body, key=None, headers=sent)
        for line in got.headers.get("set-cookie", "").splitlines():
            name, _, rest = line.partition("=")
            value = rest.partition(";")[0]
            if name == HOST_COOKIE:
                self.cookie = value
            elif name == KEYS_COOKIE:
                self.keys_cookie = value or None
            else:
                assert name == BROWSER_COOKIE
                self.browser_cookie = value
        return got

    def sent(self, headers: Mapping[str, str]) -> dict[str, str | None]:
        cookies = {
            HOST_COOKIE: self.cookie,
            BROWSER_COOKIE: self.browser_cookie,
            KEYS_COOKIE: self.keys_cookie,
        }
        sent = "; ".join(f"{name}={value}" for name, value in cookies.items() if value)
        return {"cookie": sent or None, **headers}

    async def sign_in(self, key: str | None = None) -> HttpAnswer:
        got = await self.post("/sign-in", {"key": key or self.shop.provisioning})
        await self.get("")
        return got


async def signed_in(shop: RunningService, key: str | None = None) -> PageClient:
    visitor = PageClient(shop)
    assert (await visitor.sign_in(key)).status == 303
    return visitor


async def test_a_provisioning_key_opens_every_page(autojump_clock):
    async with open_shop(operators=frozenset({"ann@example.org"})) as shop:
        visitor = await signed_in(shop)
        for path in PAGES:
            got = await visitor.get(path)
            assert got.status == 200, path
            assert "default-src 'none'" in got.headers["content-security-policy"]
            assert "unsafe" not in got.headers["content-security-policy"]
            assert b"http://" not in re.sub(rb"http://www.w3.org\S+", b"", got.octets)


async def test_a_stranger_is_sent_to_sign_in_and_comes_back(autojump_clock):
    async with open_shop() as shop:
        visitor = PageClient(shop)
        for path in PAGES:
            got = await visitor.get(path)
            assert (got.status, got.headers["location"]) == (
                303, f"{HOME}/sign-in?next={HOME}{path}",
            )  # fmt: skip
        got = await visitor.post("/keys")
        assert (got.status, got.headers["location"]) == (303, f"{HOME}/sign-in?ended=1")
        asked = await visitor.get("/sign-in?ended=1")  # the script of an upload looks for an alert
        assert b"Your session has ended, and nothing more was done." in asked.octets
        assert b'role="alert"' not in (await visitor.get("/sign-in")).octets
        got = await visitor.post("/sign-in", {"key": shop.provisioning, "next": f"{HOME}/keys"})
        assert got.headers["location"] == f"{HOME}/keys"
        part = await PageClient(shop).get("/now", **{"hx-request": "true"})
        assert (part.status, part.headers["hx-redirect"]) == (204, f"{HOME}/sign-in?ended=1")


@pytest.mark.parametrize(
    "target", ["https://evil.test/", "//evil.test", "/dashboard/../v1", "/v1", "/dashboard/sign-in"]
)
async def test_a_sign_in_leads_to_our_own_pages_only(target, autojump_clock):
    async with open_shop() as shop:
        got = await PageClient(shop).post("/sign-in", {"key": shop.provisioning, "next": target})
        assert got.headers["location"] == HOME


async def test_no_other_key_signs_in(autojump_clock):
    async with open_shop() as shop:
        for key in (shop.key, await shop.new_key("sk_test_"), "", "x", "sk_mgmt_" + "0" * 40):
            visitor = PageClient(shop)
            got = await visitor.post("/sign-in", {"key": key})
            assert (got.status, visitor.cookie) == (401, None), key
            await trio.sleep(TRIES_S)


async def test_attempts_to_sign_in_are_limited(autojump_clock):
    async with open_shop() as shop:
        visitor = PageClient(shop)
        for _ in range(TRIES_EACH):
            assert (await visitor.post("/sign-in", {"key": "x"})).status == 401
        assert (await visitor.post("/sign-in", {"key": shop.provisioning})).status == 429
        await trio.sleep(TRIES_S)
        assert (await visitor.post("/sign-in", {"key": shop.provisioning})).status == 303


async def test_strangers_do_not_shut_out_a_browser_that_has_signed_in_before(autojump_clock):
    """They share its address, as behind a proxy."""
    async with open_shop() as shop:
        visitor, stranger = await signed_in(shop), PageClient(shop)
        await trio.sleep(TRIES_S)
        visitor.cookie = None
        while (await stranger.post("/sign-in", {"key": "x"})).status != 429:
            pass
        stranger.browser_cookie = f"{visitor.browser_cookie}x"
        assert (await stranger.post("/sign-in", {"key": shop.provisioning})).status == 429
        for _ in range(TRIES_EACH):
            assert (await visitor.post("/sign-in", {"key": shop.provisioning})).status == 303
        assert (await visitor.post("/sign-in", {"key": shop.provisioning})).status == 429


async def test_a_sign_in_ends(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        got = await visitor.post("/sign-in", {"key": shop.provisioning})
        cookie = got.headers["set-cookie"].splitlines()[0]
        for word in ("HttpOnly", "SameSite=Lax", "Secure", f"Max-Age={SIGN_IN_S}", "Path=/"):
            assert word in cookie
        assert visitor.cookie is not None
        for forged in ("x", visitor.cookie[:-2] + "zz", visitor.cookie.replace(".", "", 1)):
            other = PageClient(shop)
            other.cookie = forged
            assert (await other.get("")).status == 303
        caller = await shop.store.caller(key_hash(shop.provisioning))
        await shop.store.revoke_key(shop.account.id, caller.key.id)
        assert (await visitor.get("")).status == 303


async def test_a_form_needs_its_token_and_our_own_site(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        for fields, headers in (
            ({"csrf": ""}, {}),
            ({"csrf": "0" * 64}, {}),
            ({}, {"origin": "https://evil.test"}),
            ({}, {"origin": "null"}),
            ({}, {"origin": "http://api.test"}),
            ({}, {"origin": "https://api.test/"}),
            ({"csrf": ""}, {"x-csrf-token": "é"}),
        ):
            got = await visitor.post("/keys", {"label": "x", **fields}, **headers)
            assert got.status == 403, (fields, headers)
        keys = await shop.store.keys(shop.account.id)
        assert len(keys) == 2
        other = await signed_in(shop)
        got = await visitor.post("/keys", {"csrf": other.csrf})
        assert got.status == 403
        assert (await visitor.post("/keys", {"label": "x"})).status == 303


@pytest.mark.parametrize(
    ("origin", "host", "base_url", "is_ours"),
    [
        (None, "api.test", "https://api.test", True),
        ("https://api.test", "api.test", "https://api.test:443/", True),
        ("http://api.test", "api.test", "https://api.test", False),
        ("https://in.test", "in.test", "https://api.test", True),
        ("http://in.test", "in.test", "https://api.test", False),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", "http://localhost:8080", True),
        ("https://api.test", "api.test", "http://127.0.0.1:8080", True),
        ("ftp://api.test", "api.test", "http://api.test", False),
        ("https://None", None, "https://api.test", False),
    ],
)
def test_an_origin_is_ours_with_its_scheme(origin, host, base_url, is_ours):
    assert is_same_site(origin, host, base_url) == is_ours


async def test_text_of_users_is_escaped(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        script = "<script>alert(1)</script>"
        await visitor.post("/keys", {"label": script})
        assert script.encode() not in (await visitor.post("/keys", {"label": script * 9})).octets
        assert script.encode() not in (await visitor.get("/keys")).octets
        assert script.encode() not in (await visitor.post("/try", {"email": script})).octets
        assert script.encode() not in (await visitor.post("/caps", {"hard": script})).octets


async def test_another_accounts_things_are_not_found(autojump_clock):
    async with open_list_shop() as shop:
        list_id = (await send(shop)).body["list_id"]
        await trio.sleep(30)
        other = await shop.store.create_account("eve@example.org", "scale")
        eve = await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))
        ours = await shop.caller()
        for path in (f"/lists/{list_id}", f"/lists/{list_id}/results", f"/lists/{list_id}/domains"):
            assert (await eve.get(path)).status == 404, path
        for path in (
            f"/lists/{list_id}/delete",
            f"/lists/{list_id}/cancel",
            f"/lists/{list_id}/column",
            f"/keys/{ours.key.id}/revoke",
            "/jobs/00000000-0000-4000-8000-000000000000/resend",
        ):
            assert (await eve.post(path)).status == 404, path
        assert (await eve.get("/operator")).status == 404
        assert await shop.store.caller(key_hash(shop.key)) is not None


async def test_a_stranger_with_a_strange_path_is_sent_to_sign_in(autojump_clock):
    """A line break in the path is none in the Location, nor a bug of ours in the log."""
    async with open_shop() as shop:
        visitor = PageClient(shop)
        for path in ("a\r\nSet-Cookie: x=1", "a b&next=c", "中", "a\0"):
            got = await visitor.get(f"/lists/{path}")
            location = got.headers["location"]
            assert (got.status, location.isascii(), location.isprintable()) == (303, True, True)
            assert (location.count("="), " " in location) == (1, False)


async def test_a_host_beside_ours_cannot_plant_a_sign_in(autojump_clock):
    """Browsers refuse it the name that begins with __Host-, and another name opens nothing."""
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        planted = {"cookie": f"{COOKIE}={visitor.cookie}"}
        got = await shop.request("GET", f"{HOME}/keys", key=None, headers=planted)
        assert (got.status, got.headers["location"]) == (303, f"{HOME}/sign-in?next={HOME}/keys")
        made = (await PageClient(shop).sign_in()).headers["set-cookie"]
        (line,) = [each for each in made.splitlines() if each.startswith("__Host-")]
        assert {"Secure", "Path=/"} <= set(line.split("; "))
        assert "Domain" not in line
        ended = (await visitor.post("/sign-out")).headers["set-cookie"]
        (line,) = [each for each in ended.splitlines() if each.startswith("__Host-")]
        assert {"Secure", "Path=/"} <= set(line.split("; "))  # else a browser keeps it


async def test_signing_out_takes_the_keys_that_the_browser_still_shows(autojump_clock):
    async with open_shop() as shop:
        ended = (await (await signed_in(shop)).post("/sign-out")).headers["set-cookie"]
    shown = [line for line in ended.splitlines() if line.startswith("mailprobe_shown=;")]
    paths = {part for line in shown for part in line.split("; ") if part.startswith("Path=")}
    assert {"Path=/docs", f"Path={HOME}/keys"} <= paths


async def test_the_first_account_is_made_once(autojump_clock):
    async with open_shop() as shop:
        token = SignIns(shop.store, shop.clock).welcome_token()
        visitor = PageClient(shop)
        assert (await visitor.get(f"/welcome?token={token}")).status == 404
        made = await visitor.post("/welcome", {"token": token, "email": "eve@example.org"})
        assert (made.status, visitor.cookie) == (404, None)


@asynccontextmanager
async def open_empty_shop() -> AsyncIterator[tuple[RunningService, MemoryStore, str]]:
    """A service without an account, its store, and the token of its one-time link."""
    async with open_shop() as shop:
        store = MemoryStore(shop.clock)
        shop.app = create_app(replace(shop.service, store=store))
        yield shop, store, SignIns(store, shop.clock).welcome_token()


async def test_a_burst_on_the_one_time_link_makes_one_account(autojump_clock):
    async with open_empty_shop() as (shop, store, token):
        answers: list[HttpAnswer] = []

        async def begin() -> None:
            form = {"token": token, "email": "eve@example.org"}
            answers.append(await PageClient(shop).post("/welcome", form))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(begin)
        assert sorted(got.status for got in answers) == [303, *[404] * 9]
        [account] = await store.accounts()
        assert len(await store.keys(account.id)) == 2


async def test_a_mistyped_first_form_comes_back_as_it_was_filled_in(autojump_clock):
    async with open_empty_shop() as (shop, store, token):
        form = {"token": token, "email": "eve@@example", "tier": "builder"}
        got = await PageClient(shop).post("/welcome", form)
        assert got.status == 400
        for kept in (b'value="eve@@example"', b'"builder" selected', token.encode()):
            assert kept in got.octets
        assert await store.accounts() == []


@pytest.mark.parametrize(
    ("form", "tier"),
    [
        ({"own": "on", "tier": "builder"}, "own"),
        ({"tier": "builder"}, "builder"),
        ({}, "free"),
        ({"tier": "own"}, None),
    ],
)
async def test_the_box_of_the_first_form_makes_an_own_account(autojump_clock, form, tier):
    async with open_empty_shop() as (shop, store, token):
        page = await PageClient(shop).get(f"/welcome?token={token}")
        assert b'name="own" aria-describedby="own-help" checked' in page.octets
        form = {"token": token, "email": "eve@example.org", **form}
        await PageClient(shop).post("/welcome", form)
        assert [account.tier for account in await store.accounts()] == ([tier] if tier else [])


async def test_where_plans_are_sold_the_first_form_has_no_box(autojump_clock):
    async with open_empty_shop() as (shop, store, token):
        sold: Any = object()
        shop.app = create_app(replace(shop.service, store=store, payments=sold))
        page = await PageClient(shop).get(f"/welcome?token={token}")
        assert b'name="own"' not in page.octets
        form = {"token": token, "email": "eve@example.org", "own": "on"}
        await PageClient(shop).post("/welcome", form)
        assert [account.tier for account in await store.accounts()] == ["free"]


async def test_money_is_shown_only_where_prices_exist(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        for tier, shown in {"builder": True, "free": False, "own": False}.items():
            await shop.change(tier=tier)
            for path in ("", "/caps"):
                got = await visitor.get(path)
                assert got.status == 200
                money = b" EUR" if path == "/caps" else b"Cost beyond the plan"
                assert (money in got.octets) is shown, (tier, path)
                assert (b"2,147,483,647" in got.octets) is False


async def test_signing_out_ends_the_sign_in_for_every_holder_of_its_cookie(autojump_clock):
    async with open_shop() as shop:
        visitor, other = await signed_in(shop), await signed_in(shop)
        stolen = PageClient(shop)
        stolen.cookie = visitor.cookie
        assert (await stolen.get("")).status == 200
        assert (await visitor.post("/sign-out")).status == 303
        assert (await stolen.get("")).status == 303
        assert (await other.get("")).status == 200


async def test_the_store_away_is_said_in_words(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        shop.store.away = True
        got = await visitor.get("")
        assert (got.status, got.headers["content-type"]) == (503, "text/html; charset=utf-8")
        shop.store.away = False


async def test_a_page_of_an_error_does_not_need_what_failed(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        shop.store.away = {"ledger"}  # the sign-in is found
        for path, status in (("", 503), ("/jobs", 503), ("/nothing-here", 404)):
            got = await visitor.get(path)
            assert (got.status, b"Sign out" in got.octets) == (status, True), path
        shop.store.away, shop.store.throwing = False, {"ledger"}
        got = await visitor.get("/jobs")
        assert (got.status, b"Sign out" in got.octets) == (500, True)


async def test_static_files_are_kept_for_ever_under_their_hash(autojump_clock):
    async with open_shop() as shop:
        for name, asset in assets().items():
            got = await shop.request("GET", asset.url, key=None)
            assert (got.status, got.octets) == (200, asset.octets), name
            assert "immutable" in got.headers["cache-control"]
        assert (await shop.request("GET", f"{HOME}/static/other.js", key=None)).status == 404
        page = (await PageClient(shop).get("/sign-in")).octets.decode()
        for tag in re.findall(r"<(?:script|link rel=.stylesheet.)[^>]*>", page):
            assert "integrity=" in tag


async def test_hosts_that_refuse_us_are_named_to_the_operator_only(autojump_clock):
    """Their names may be of another customer's list."""
    async with open_shop(operators=frozenset({"ann@example.org"})) as shop:
        refusal = "554 5.7.1 Service unavailable; client host blocked using zen.spamhaus.org"
        shop.world.add("strict.test", MailHost(banner=refusal, name="mx.strict.test"))
        probing = shop.service.quota.engine.probing
        for number in range(9):
            await shop.verify(f"a{number}@strict.test")
        assert [host.name for host in probing.overview.hosts_backing_off()] != []
        other = await shop.store.create_account("eve@example.org", "scale")
        eve = await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))
        ann = await signed_in(shop)
        for visitor, names in ((eve, False), (ann, True)):
            page = (await visitor.get("")).octets
            assert b"mail host refuses this machine" in page
            assert (b"strict.test" in page) is names


async def test_the_overview_shows_results_by_light_what_runs_and_what_is_wrong(autojump_clock):
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)
        page = (await visitor.get("")).octets.decode()
        assert "Nothing verified yet" in page
        assert "Nothing is wrong." not in page  # nothing was tested
        await shop.batch("ann@friendly.test", "eve@friendly.test", "no address")
        assert "Nothing is wrong." in (await visitor.get("")).octets.decode()
        list_id = (await send(shop, query="?start=0")).body["list_id"]
        stored = await shop.store.change_list(
            list_id, "paused", cause="monthly_quota_exceeded", before={"paused"}
        )
        assert stored is not None
        page = (await visitor.get("")).octets.decode()
        row = re.search(r"<tr[^>]*><td[^>]*><time[^<]*2026-03-14</time></td>(.*?)</tr>", page)
        assert row is not None
        assert re.findall(r">([0-9]+)<", row[1]) == ["1", "0", "2", "3"]
        assert "is paused: the month&#39;s verifications are used up" in page
        assert f'href="{HOME}/lists/{list_id}"' in page
        await visitor.post(f"/lists/{list_id}/resume")
        now = (await visitor.get("/now")).octets.decode()
        assert "<!doctype" not in now
        assert f'href="{HOME}/lists/{list_id}"' in now.partition("Running now")[2]


async def test_a_list_that_waits_says_until_when_and_how_long_it_takes(autojump_clock):
    """On the overview and on the operator's page, which adds up all lists."""
    async with open_shop("scale") as shop:
        visitor = await signed_in(shop)
        await running(shop.store, await shop.caller(), 9)
        [claim] = await claimed(shop.store)
        until = shop.clock() + timedelta(minutes=7)
        waits = [HostWait("mx.slow.test", "host_budget", 0, 9, until)]
        assert await shop.store.release_chunk(claim, until, waits=waits)
        now = (await visitor.get("/now")).octets.decode().partition("Running now")[2]
        assert "Waiting until <time" in now
        assert re.search(r"of 9<br><span class=.quiet.>about 7 min left", now)
        page = (await visitor.get("/operator")).octets.decode()
        assert re.search(r'Waiting</h3><p class="figure">9</p><small>for 1 mail host<', page)


async def test_the_projection_is_the_pace_of_the_month(autojump_clock):
    """On the 14th at 9:26 of a month of 31 days."""
    async with open_shop("builder") as shop:
        await shop.use_up(1_300)
        page = (await (await signed_in(shop)).get("")).octets.decode()
        assert "1,300" in page
        projected = int(re.findall(r'class="figure">([0-9,]+)<', page)[1].replace(",", ""))
        assert 2_980 < projected < 3_020


async def test_a_strangers_form_is_small(autojump_clock):
    """The parsing of a form must not keep the loop for long."""
    async with open_shop() as shop:
        for body, status in (
            (b"key=" + b"a" * 20_000, 413),
            (b"&".join(b"k%d=v" % number for number in range(2_000)), 400),
            (b"key=%" * 1_000, 401),
            (b"\xff\xfe=\x00", 401),
        ):
            got = await shop.request(
                "POST", f"{HOME}/sign-in", octets=body, key=None,
                headers={**FORM, "origin": "https://api.test"},
            )  # fmt: skip
            assert got.status == status, body[:10]
            assert got.headers["content-type"].startswith("text/html")


async def test_a_label_keeps_the_rule_of_the_api(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        for label in ("a\x07b", "x" * 101):
            assert (await visitor.post("/keys", {"label": label})).status == 400
        assert len(await shop.store.keys(shop.account.id)) == 2


async def test_the_column_of_a_list_that_was_started_stays(autojump_clock):
    async with open_list_shop() as shop:
        list_id = (await send(shop)).body["list_id"]
        visitor = await signed_in(shop)
        got = await visitor.post(f"/lists/{list_id}/column", {"column": "name"})
        assert got.status == 400
        assert await shop.store.stored_list(list_id) is not None


async def test_a_missing_page_keeps_the_frame_of_a_sign_in(autojump_clock: Any) -> None:
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        for client, is_framed in ((visitor, True), (PageClient(shop), False)):
            got = await client.get("/no-such-page")
            assert (got.status, b"There is no such page." in got.octets) == (404, True)
            assert (b"Account menu of" in got.octets) is is_framed


async def test_a_page_performs_its_operations_by_the_dispatcher(autojump_clock, monkeypatch):
    """Its access line names the first operation, the account and the refusal."""
    seen: list[request_context.RequestContext] = []
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        monkeypatch.setattr(
            request_context, "log_access", lambda ended, seconds: seen.append(ended)
        )
        for path in ("", "/keys", "/lists/nothing"):
            await visitor.get(path)
        assert [(each.operation, each.code, each.status) for each in seen] == [
            ("get_usage_summary", None, 200),
            ("list_api_keys", None, 200),
            ("get_list", "list_not_found", 404),
        ]
        assert {each.caller and each.caller.account.id for each in seen} == {shop.account.id}


@pytest.mark.parametrize("again", [True, False], ids=["reloaded", "from the form as shown again"])
async def test_a_reloaded_form_does_its_work_once(again, autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        account = (await shop.caller()).account.id
        before = len(await shop.store.keys(account))
        made = []
        for once in ("a", "a" if again else "b"):
            await visitor.post("/keys", {"label": "checkout", "once": once})
            got = await visitor.get("/keys")
            made += re.findall(rb'id="made">(sk_live_\w+)', got.octets)
            got = await visitor.post("/try", {"email": "ann@mailinator.com", "once": once})
            assert b"Throwaway list" in got.octets, got.octets
        made_keys = 1 if again else 2
        assert len(await shop.store.keys(account)) == before + made_keys
        assert (len(made), len(set(made))) == (2, made_keys)
        assert (await shop.store.ledger(await shop.caller())).month_units == made_keys
        got = await visitor.post("/keys", {"label": "another", "once": "a"})
        assert len(await shop.store.keys(account)) == before + made_keys + 1
