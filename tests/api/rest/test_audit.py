"""GET /v1/audit: pages, filters, lines; its own account alone, and the address from where."""

import csv
import io
import json
from ipaddress import ip_network
from typing import Any

import pytest
from msgspec.structs import replace

from mailprobe.api.serve import create_app
from mailprobe.storage.records import COMMAND_LINE
from tests.api.service_fixture import RunningService, open_shop

KEYS = "/v1/management/keys"


async def audit(shop: RunningService, query: str = "", **more: Any) -> Any:
    got = await shop.request("GET", f"/v1/audit{query}", key=shop.provisioning, **more)
    return got.body if got.headers["content-type"] == "application/json" else got


async def test_acts_of_a_key_have_its_id_and_the_address_from_where(autojump_clock):
    proxies = (ip_network("192.0.2.0/24"),)
    async with open_shop() as shop:
        shop.app = create_app(replace(shop.service, trusted_proxies=proxies))
        sent = {"x-forwarded-for": "203.0.113.9, 198.51.100.4"}
        made = await shop.request("POST", KEYS, {"label": "checkout"}, headers=sent)
        key_id = made.body["id"]
        await shop.request("DELETE", f"{KEYS}/{key_id}", client="198.51.100.5", headers=sent)
        revoked, created, *_ = (await audit(shop))["entries"]
        manager = await shop.caller(shop.provisioning)
        for entry, kind, address in (
            (created, "key_created", "198.51.100.4"),
            (revoked, "key_revoked", "198.51.100.5"),  # not behind the proxy: not believed
        ):
            assert (entry["kind"], entry["actor"], entry["client_address"]) == (
                kind, "key", address,
            )  # fmt: skip
            assert (entry["actor_key_id"], entry["subject_id"]) == (manager.key.id, key_id)
            assert (entry["name"], entry["times"]) == ("checkout", 1)
        assert made.body["key"].startswith(created["prefix"])
        assert made.body["key"] not in json.dumps(await audit(shop))


async def test_a_repeated_request_has_one_entry(autojump_clock):
    async with open_shop() as shop:
        for _ in range(2):
            await shop.request("POST", KEYS, {}, headers={"idempotency-key": "once"})
        assert len((await audit(shop, "?kind=key_created"))["entries"]) == 3  # two are the shop's


async def test_entries_come_in_pages_and_all_of_them_as_lines(autojump_clock):
    async with open_shop() as shop:
        for number in range(1, 8):
            await shop.change(hard_cap_micros=number * 1_000_000, by=COMMAND_LINE)
        found, query = list[Any](), "?limit=3"
        while True:
            page = await audit(shop, query)
            found += page["entries"]
            if page["next"] is None:
                break
            assert len(page["entries"]) == 3
            query = f"?limit=3&before={page['next']}"
        assert len(found) == len({entry["id"] for entry in found}) == 10
        assert found[0]["changes"] == [{"field": "hard_cap_eur", "before": 6.0, "after": 7.0}]
        lines = (await audit(shop, "?format=ndjson")).octets.splitlines()
        assert [json.loads(line) for line in lines] == found
        changed = (await audit(shop, "?format=ndjson&kind=caps_changed")).octets.splitlines()
        assert len(changed) == 7
        got = await audit(shop, "?format=csv")
        rows = list(csv.DictReader(io.StringIO(got.octets.decode())))
        assert got.headers["content-disposition"] == 'attachment; filename="audit.csv"'
        assert [row["id"] for row in rows] == [entry["id"] for entry in found]
        assert rows[-2]["prefix"] == shop.key[:12]
        assert rows[0]["changes"] == "hard_cap_eur: 6.0 → 7.0"


async def test_lines_go_on_beyond_a_page_of_the_store(autojump_clock, monkeypatch):
    for module in ("api.operations.audit", "storage.audit"):
        monkeypatch.setattr(f"mailprobe.{module}.LISTED_MAX", 2)
    async with open_shop() as shop:
        for number in range(5):
            await shop.change(hard_cap_micros=number)
            got = await audit(shop, "?format=csv&limit=1")
            rows = list(csv.reader(io.StringIO(got.octets.decode())))
            assert len(rows) == 1 + 3 + number + 1


async def test_no_cell_is_a_formula(autojump_clock):
    async with open_shop() as shop:
        for label in ("=cmd|' /C calc'!A0", "'=1+1", "+1", "-1", "@SUM(A1)", 'a"b,c'):
            await shop.request("POST", KEYS, {"label": label, "test": True})
        got = await audit(shop, "?format=csv&kind=key_created")
        names = [row["name"] for row in csv.DictReader(io.StringIO(got.octets.decode()))]
        assert names[:6] == ['a"b,c', "'@SUM(A1)", "'-1", "'+1", "''=1+1", "'=cmd|' /C calc'!A0"]


@pytest.mark.parametrize(
    "query",
    [
        "kind=other", "kind=", "since=yesterday", "until=9999-12-31T23:59:59-14:00", "before=1",
        "limit=0", "limit=1001", "limit=-1", "limit=", "limit=²", "format=xml", "format=csv&format=csv",
    ],
)  # fmt: skip
async def test_a_wrong_parameter_is_refused(autojump_clock, query: str):
    async with open_shop() as shop:
        got = await shop.request("GET", f"/v1/audit?{query}", key=shop.provisioning)
        if query == "limit=":
            assert got.status == 200
        else:
            assert (got.status, got.body["error"]) == (400, "invalid_request")


async def test_times_are_instants_or_days(autojump_clock):
    async with open_shop() as shop:
        now = shop.clock()
        day = f"{now:%Y-%m-%d}"
        for query, count in (
            (f"since={day}", 3), (f"until={day}", 0), (f"since={day}T00:00:00Z", 3),
            (f"since={now:%Y-%m-%dT%H:%M:%S}%2B01:00", 3), ("since=2999-01-01", 0), ("until=0001-01-01", 0),
        ):  # fmt: skip
            assert len((await audit(shop, f"?{query}"))["entries"]) == count, query


async def test_an_account_reads_its_own_entries_with_a_provisioning_key_alone(autojump_clock):
    async with open_shop() as shop:
        other = await shop.store.create_account("bob@example.org", "free")
        theirs = await shop.new_key("sk_mgmt_", other.id)
        got = await shop.request("GET", "/v1/audit", key=theirs)
        assert {entry["kind"] for entry in got.body["entries"]} == {
            "account_created",
            "key_created",
        }
        assert len(got.body["entries"]) == 2
        ours = (await audit(shop))["entries"]
        got = await shop.request("GET", f"/v1/audit?before={ours[0]['id']}", key=theirs)
        assert got.body == {"entries": [], "next": None}
        for key, status in ((shop.key, 403), (None, 401), ("sk_mgmt_wrong", 401)):
            assert (await shop.request("GET", "/v1/audit", key=key)).status == status
