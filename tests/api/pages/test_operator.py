"""The operator's pages: whose they are, what they show, and what they do to accounts."""

import re
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from mailprobe.api.egress.control import StoredControl
from mailprobe.api.keys import key_hash
from mailprobe.api.pages.dashboard.operator.machine import size_of
from mailprobe.api.serve import create_app
from mailprobe.api.service import Deployment
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine.egress import DailyLimit, Egress, Egresses
from mailprobe.storage.audit import EntryFilter
from mailprobe.storage.egresses import ReputationDay
from mailprobe.storage.records import Actor
from mailprobe.storage.tolerances import LearnedTolerance, RefusalRequest
from tests.api.pages.test_dashboard import PageClient, signed_in
from tests.api.service_fixture import HttpAnswer, RunningService, open_shop

REFUSAL = "554 5.7.1 Service unavailable; client host blocked using zen.spamhaus.org"
PAGE = "/operator"
ACCOUNTS = f"{PAGE}/accounts"


def bare(got: HttpAnswer) -> str:
    """The page with the cells of its tables as they are without attributes."""
    return re.sub(r"<(t[dr]) [^>]*>", r"<\1>", got.octets.decode())


async def other_account(shop: RunningService) -> tuple[str, PageClient]:
    """A customer's account, and its browser."""
    other = await shop.store.create_account("eve@example.org", "free")
    return other.id, await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))


@pytest.mark.parametrize(
    ("named", "ann", "eve"),
    [
        (None, True, False),
        (frozenset(), False, False),
        (frozenset({"eve@example.org"}), False, True),
    ],
    ids=["the first account", "nobody", "the named one"],
)
async def test_the_pages_are_the_operators_alone(autojump_clock, named, ann, eve):
    async with open_shop(operators=named) as shop:
        id, visitor = await other_account(shop)
        for client, may in ((await signed_in(shop), ann), (visitor, eve)):
            assert (b'href="/dashboard/operator"' in (await client.get("")).octets) is may
            for path in (PAGE, ACCOUNTS, f"{ACCOUNTS}/{id}", f"{ACCOUNTS}/{shop.account.id}"):
                assert (await client.get(path)).status == (200 if may else 404), path
            if may:
                continue
            for path in ("", f"/{id}/plan", f"/{id}/keys", f"/{id}/delete", "/saved"):
                form = {"email": "eve@example.org", "tier": "own", "kind": "sk_live_"}
                assert (await client.post(ACCOUNTS + path, form)).status == 404, path
        assert (await shop.store.account(id)).tier == "free"
        assert len(await shop.store.accounts()) == 2


async def test_pauses_are_shown_to_the_operator_who_may_end_them(autojump_clock):
    async with open_shop() as shop:
        _, eve = await other_account(shop)
        ann = await signed_in(shop)
        assert "Paused" not in (await ann.get(PAGE)).octets.decode()
        await shop.store.pause("operator", "google", why="<incident>")
        await shop.store.pause("account", shop.account.id)
        page = (await ann.get(PAGE)).octets.decode()
        assert "&lt;incident&gt;" in page
        form = {"kind": "account", "name": shop.account.id}
        assert (await eve.post(f"{PAGE}/unpause", form)).status == 404
        assert len(await shop.store.pauses()) == 2
        for sent in (form, form, {"kind": "nonsense", "name": "x"}):
            assert (await ann.post(f"{PAGE}/unpause", sent)).status == 303
        assert [each.kind for each in await shop.store.pauses()] == ["operator"]
        entry = (await shop.store.audit(shop.account.id))[0]
        assert (entry.act.kind, entry.by.kind, entry.on_account) == (
            "lists_unpaused",
            "session",
            None,
        )
        assert entry.by.key_id == (await shop.caller(shop.provisioning)).key.id


async def test_deleting_the_first_account_makes_no_other_one_the_operators(autojump_clock):
    async with open_shop() as shop:
        _, eve = await other_account(shop)
        await shop.store.delete_account(shop.account.id)
        assert (await eve.get(PAGE)).status == 404


async def test_hosts_reputation_queues_and_the_machine_are_shown(autojump_clock, tmp_path: Path):
    async with open_shop("scale") as shop:
        shop.world.add("strict.test", MailHost(banner=REFUSAL, name="mx.strict.test"))
        for number in range(9):
            await shop.verify(f"a{number}@strict.test")
        plain = MailHost(
            banner="220 mx.plain.test ESMTP", name="mx.plain.test", mailboxes=frozenset()
        )
        shop.world.add("plain.test", plain)
        await shop.batch("nobody@plain.test", "none@plain.test")
        day = shop.clock().date()
        await shop.store.count_reputation(
            [ReputationDay(day, "google", 90, 9), ReputationDay(day, "<b>", 10, 0)]
        )
        (tmp_path / "mailprobe.db").write_bytes(b"x" * 2_500)
        deployment = Deployment(
            datetime(2026, 3, 14, 9, tzinfo=UTC), 4, str(tmp_path / "mailprobe.db"),
            {"the database": tmp_path, "nothing": tmp_path / "missing"}, lambda: 3,
        )  # fmt: skip
        shop.app = create_app(replace(shop.service, deployment=deployment))
        ann = await signed_in(shop)
        page = bare(await ann.get(PAGE))
        assert re.search(
            r"<td>mx\.strict\.test</td>.*<td>yes</td><td>0</td><td><time [^>]*>in [^<]+</time>",
            page,
        )
        assert "blocked using zen.spamhaus.org" in page
        assert "Google</a></td><td>90</td><td>9</td>" in page
        assert "&lt;b&gt;" in page
        for words in (
            "Parts of lists that run",
            "4, 3 alive",
            "2.5 KB",
            "Disk of the database",
            "0 at work",
        ):
            assert words in page, words
        twice = 2 * "<td>2</td>"
        assert re.search(rf"plain\.test</td><td>[^<]+</td><td>All others</td>{twice}", page)
        assert "banned.test" not in page
        banned = LearnedTolerance(careful=True, tolerance=9, ceiling=9, ban_ages_s=(60.0,))
        asked = {("fra-1", "mx.banned.test"): RefusalRequest(0, False, 16, learned=banned)}
        await shop.store.lease_refusals("another process", asked, lease_s=30)
        page = bare(await ann.get(PAGE))
        none = 2 * "<td>0</td>"
        learned = "<td>9</td><td>learned from a ban</td><td><time"
        assert f"mx.banned.test</td><td>fra-1</td><td>All others</td>{none}{learned}" in page
        of_one = bare(await ann.get(f"{PAGE}?operator=google"))
        assert re.search(rf"<td>{day}</td><td>90</td>", of_one)
        of_all = bare(await ann.get(f"{PAGE}?operator=unknown"))
        assert re.search(rf"<td>{day}</td><td>100</td>", of_all)


async def test_an_account_is_created_once_with_keys_that_are_shown_until_saved(autojump_clock):
    async with open_shop() as shop:
        ann = await signed_in(shop)
        for email, tier, status in (
            ("eve@@example", "free", 400),
            ("ANN@example.org", "free", 400),
            ("eve@example.org", "gold", 400),
            ("eve@example.org", "builder", 303),
            ("eve@example.org", "builder", 400),
        ):
            got = await ann.post(ACCOUNTS, {"email": email, "tier": tier})
            assert got.status == status, (email, tier)
            if status == 303:
                place = got.headers["location"].removeprefix("/dashboard")
            else:
                assert f'value="{email}"'.encode() in got.octets
        pages = [
            (await ann.get(place)).octets.decode() for _ in range(2)
        ]  # ages in them may differ
        [key], again = (set(re.findall(r"sk_mgmt_\w{49}", page)) for page in pages)
        assert again == {key}
        eve = await shop.store.caller(key_hash(key))
        assert (eve.account.email, eve.account.tier) == ("eve@example.org", "builder")
        assert (
            "sk_mgmt_" + key[8:]
            not in (await ann.get(f"{ACCOUNTS}/{shop.account.id}")).octets.decode()
        )
        assert (await ann.post(f"{ACCOUNTS}/saved")).headers["location"].endswith(place)
        assert key not in (await ann.get(place)).octets.decode()


async def test_plan_keys_and_the_account_itself_are_changed(autojump_clock):
    async with open_shop() as shop:
        ann = await signed_in(shop)
        id, eve = await other_account(shop)
        place = f"{ACCOUNTS}/{id}"
        await ann.post(f"{place}/plan", {"tier": "scale"})
        assert (await ann.post(f"{place}/plan", {"tier": "gold"})).status == 400
        assert (await shop.store.account(id)).tier == "scale"
        [entry] = await shop.store.audit(id, EntryFilter("plan_changed"))
        assert entry.by == Actor("session")  # the customer learns no key and no address of ann's
        [entry] = await shop.store.audit(shop.account.id, EntryFilter("plan_changed"))
        key = (await shop.caller(shop.provisioning)).key
        assert (entry.by.key_id, entry.by.address is None) == (key.id, False)
        shown = (await ann.get("/audit")).octets.decode()
        assert f'href="/dashboard{place}"' in shown
        got = await shop.request("GET", "/v1/audit?kind=plan_changed", key=shop.provisioning)
        assert [each["on_account_id"] for each in got.body["entries"]] == [id]
        for kind, status in (("sk_live_", 303), ("sk_mgmt_", 303), ("pk_live_", 400), ("", 400)):
            assert (await ann.post(f"{place}/keys", {"kind": kind, "label": "x"})).status == status
        assert (
            await ann.post(f"{place}/keys", {"kind": "sk_live_", "label": "\x07"})
        ).status == 400
        keys = await shop.store.keys(id)
        assert sorted(key.kind for key in keys) == ["provisioning", "provisioning", "standard"]
        assert (await ann.post(f"{place}/keys/{keys[0].id}/revoke")).status == 303
        assert (await eve.get("")).status == 303
        ours = (await shop.caller(shop.provisioning)).key.id
        own = f"{ACCOUNTS}/{shop.account.id}"
        assert (await ann.post(f"{place}/keys/{ours}/revoke")).status == 400
        assert (await ann.post(f"{own}/delete", {"email": shop.account.email})).status == 400
        assert (await ann.post(f"{place}/delete", {"email": "bob@example.org"})).status == 400
        assert (await ann.post(f"{place}/delete", {"email": "EVE@example.org"})).status == 303
        assert await shop.store.keys(id) == []
        assert (await ann.get(place)).status == 404
        assert b"eve@example.org" not in (await ann.get(ACCOUNTS)).octets


async def test_accounts_come_in_pages_and_are_found(autojump_clock):
    async with open_shop() as shop:
        ann = await signed_in(shop)
        for number in range(55):
            await shop.store.create_account(f"user{number}@example.org", "free")
        first, second = (
            (await ann.get(ACCOUNTS)).octets,
            (await ann.get(f"{ACCOUNTS}?page=2")).octets,
        )
        assert (b"user54@" in first, b"user0@" in first, b"user0@" in second) == (True, False, True)
        found = (await ann.get(f"{ACCOUNTS}?q=USER7@")).octets
        assert (b"user7@" in found, b"user17@" in found) == (True, False)
        for query in ("page=x", "page=99999999", "page=-1", "q=%25", "q=%3Cscript%3E"):
            assert (await ann.get(f"{ACCOUNTS}?{query}")).status == 200
            assert b"<script>" not in (await ann.get(f"{ACCOUNTS}?{query}")).octets


@pytest.mark.parametrize(
    ("octets", "words"),
    [(0, "0 B"), (999, "999 B"), (1_500, "1.5 KB"), (25_000_000, "25 MB"), (3 * 10**12, "3.0 TB")],
)
def test_a_size_is_short(octets: int, words: str) -> None:
    assert size_of(octets) == words


async def test_egresses_are_shown_paused_and_resumed_by_the_operator_alone(autojump_clock):
    async with open_shop() as shop:
        name = "fra-1"
        limits = (DailyLimit(date(2026, 1, 1), 200),)
        way = Egress(name, proxy="socks5://u:secret@192.0.2.1:1080", daily=limits)
        egresses = Egresses((way, Egress("fra-2", helo_name="probe2.shop.test")))
        ann = await signed_in(shop)
        assert b'id="egresses"' not in (await ann.get(PAGE)).octets
        assert (await ann.post(f"{PAGE}/egresses/fra-1/pause")).status == 404
        control = StoredControl(egresses, shop.clock)
        shop.app = create_app(replace(shop.service, egress_control=control))
        ann, (_, eve) = await signed_in(shop), await other_account(shop)
        place = f"{PAGE}/egresses/{name}"
        control.answered(name, "google", "mx.example", "blocked_us")
        assert (await ann.post(f"{place}/pause")).status == 303
        assert (await eve.post(f"{place}/resume")).status == 404
        await control.exchange(shop.store)
        assert control.state(name) == "paused"
        shown = (await ann.get(PAGE)).octets
        assert b">fra-1 <small" in shown
        assert b"socks5 192.0.2.1:1080" in shown
        assert shop.service.quota.engine.settings.helo_name.encode() in shown
        assert b"probe2.shop.test" in shown
        assert b'0 of 200<svg class="bar ' in shown
        assert b"secret" not in shown
        assert b"100.0" in shown
        assert (await ann.post(f"{place}/resume")).status == 303
        assert (await ann.post(f"{PAGE}/egresses/other/pause")).status == 404
        await control.exchange(shop.store)
        assert control.state(name) == "active"
        kinds = [entry.act.kind for entry in await shop.store.audit(shop.account.id)]
        assert {"egress_paused", "egress_resumed"} <= set(kinds)
