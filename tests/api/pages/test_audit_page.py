"""The audit log in the dashboard, and what the dashboard writes into it."""

import re
from html import unescape
from ipaddress import ip_network
from typing import get_args

import pytest
from msgspec.structs import replace

from mailprobe.api.keys import key_hash
from mailprobe.api.operations.audit import AuditChange, AuditEntry
from mailprobe.api.pages.dashboard.audit_page import ACTOR_WORDS, KIND_WORDS, what_of
from mailprobe.api.pages.dashboard.sign_ins import TRIES_EACH
from mailprobe.api.serve import create_app
from mailprobe.storage.audit import ActKind, EntryFilter
from mailprobe.storage.records import ActorKind
from tests.api.lists.test_lists import open_list_shop, send
from tests.api.pages.test_dashboard import PageClient, signed_in
from tests.api.service_fixture import open_shop


def rows_of(octets: bytes) -> list[list[str]]:
    body = octets.decode().partition("<tbody")[2].partition("</tbody>")[0]
    return [
        [unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall("<td[^>]*>(.*?)</td>", row)]
        for row in re.findall("<tr[^>]*>(.*?)</tr>", body)
    ]


def test_each_kind_and_each_actor_has_words():
    assert set(KIND_WORDS) == set(get_args(ActKind))
    assert set(ACTOR_WORDS) == set(get_args(ActorKind))


@pytest.mark.parametrize(
    ("field", "before", "after", "words"),
    [
        ("hard_cap_eur", None, 25.0, "Hard cap none → 25.00 EUR"),
        ("alerts", True, False, "Alerts on → off"),
        ("tier", None, "free", "Plan free"),
        ("tier", "free", "scale", "Plan free → scale"),
    ],
)
def test_changes_are_said_in_words(field, before, after, words):
    change = AuditChange(field, before, after)
    entry = AuditEntry(id="", at=None, kind="caps_changed", times=1, actor="key", changes=[change])  # type: ignore[arg-type]  # the instant is not read
    assert what_of(entry) == words


async def test_acts_in_the_dashboard_are_shown_with_their_address(autojump_clock):
    async with open_list_shop() as shop:
        visitor = await signed_in(shop)
        prefix = shop.provisioning[:12]
        await visitor.post("/keys", {"label": "checkout"})
        await visitor.post("/keys", {"kind": "pk_live_", "origins": "https://shop.test"})
        for key in [
            key for key in await shop.store.keys(shop.account.id) if key.label or key.origins
        ]:
            await visitor.post(f"/keys/{key.id}/revoke")
        await visitor.post("/caps", {"hard": "20", "soft": "10", "alerts": "on"})
        made = await send(shop, b"email\nann@friendly.test\n")
        await visitor.post(f"/lists/{made.body['list_id']}/delete")
        found = rows_of((await visitor.get("/audit")).octets)
        assert [(row[0], row[2], row[3]) for row in found][:8] == [
            (what, f"Dashboard, {prefix}…", "192.0.2.7")
            for what in ("List deleted", "Caps changed", "Key revoked", "Key revoked",
                         "Key created", "Key created", "Signed in")
        ] + [("Key created", "The service", "–")]  # fmt: skip
        assert [row[1] for row in found][:2] == [
            made.body["name"], "Soft cap none → 10.00 EUR, hard cap none → 20.00 EUR",
        ]  # fmt: skip
        assert found[5][1].startswith("checkout (sk_live_")
        await visitor.post("/sign-out")
        [entry] = await shop.store.audit(shop.account.id, EntryFilter("signed_out"))
        assert entry.by.key_prefix == prefix


async def test_refused_sign_ins_are_counted_for_the_account_they_are_about(autojump_clock):
    proxies = (ip_network("192.0.2.7"),)
    async with open_shop() as shop:
        shop.app = create_app(replace(shop.service, trusted_proxies=proxies))
        revoked = await shop.new_key("sk_mgmt_")
        await shop.store.revoke_key(None, (await shop.caller(revoked)).key.id)
        visitor = PageClient(shop)
        for key in (revoked, f" {revoked} ", shop.key, "sk_mgmt_unknown", ""):
            sent = {"x-forwarded-for": "203.0.113.9"}
            assert (await visitor.post("/sign-in", {"key": key}, **sent)).status == 401
        sent = {"x-forwarded-for": "203.0.113.9"}
        assert (await visitor.post("/sign-in", {"key": revoked}, **sent)).status == 429
        other = {"x-forwarded-for": "203.0.113.8"}  # has tries of its own behind the proxy
        assert (await visitor.post("/sign-in", {"key": revoked}, **other)).status == 401
        failed = await shop.store.audit(shop.account.id, EntryFilter("sign_in_failed"))
        assert [(each.by.address, each.act.prefix, each.times) for each in failed] == [
            ("203.0.113.8", revoked[:12], 1),
            ("203.0.113.9", shop.key[:12], 1),
            ("203.0.113.9", revoked[:12], 2),
        ]
        assert TRIES_EACH == 5


async def test_the_first_start_is_in_the_log(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        page = await visitor.get("/audit")
        assert [row[0] for row in rows_of(page.octets)][-1] == "Account created"


async def test_the_page_filters_turns_and_downloads(autojump_clock):
    async with open_shop() as shop:
        for number in range(60):
            await shop.change(hard_cap_micros=number * 10_000)
        await shop.store.create_key(
            shop.account.id, "standard", "<b>=1", sha256="h", prefix="sk_live_abcd", keys_max=None
        )
        visitor = await signed_in(shop)
        first = await visitor.get("/audit?kind=caps_changed")
        assert len(rows_of(first.octets)) == 50
        [older] = re.findall(r'href="/dashboard(/audit\?[^"]*before=[^"]+)"', first.octets.decode())
        second = await visitor.get(unescape(older))
        assert len(rows_of(second.octets)) == 10
        assert b'rel="next"' not in second.octets
        assert b'href="/dashboard/audit?kind=caps_changed" rel="first"' in second.octets
        assert b"<b>" not in (await visitor.get("/audit?kind=key_created")).octets
        got = await visitor.get("/audit/entries.csv?kind=key_created")
        assert got.headers["content-type"] == "text/csv; charset=utf-8"
        assert "audit.csv" in got.headers["content-disposition"]
        assert b",<b>=1," in got.octets
        assert len(got.octets.splitlines()) == 4
        assert rows_of((await visitor.get("/audit?kind=other&before=x")).octets) == []
        assert b"No entry matches" in (await visitor.get("/audit?kind=list_deleted")).octets


async def test_another_account_sees_none_of_it(autojump_clock):
    async with open_shop() as shop:
        other = await shop.store.create_account("bob@example.org", "free")
        key = await shop.new_key("sk_mgmt_", other.id)
        ours = await shop.store.audit(shop.account.id)
        visitor = await signed_in(shop, key)
        assert len(rows_of((await visitor.get("/audit")).octets)) == 3
        assert rows_of((await visitor.get(f"/audit?before={ours[0].id}")).octets) == []
        assert len((await visitor.get("/audit/entries.csv")).octets.splitlines()) == 4
        assert (await shop.caller(key)).key.id not in str(ours)
        assert key_hash(key) not in str(await shop.store.audit(other.id))
