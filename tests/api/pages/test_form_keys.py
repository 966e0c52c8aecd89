"""Publishable keys in the dashboard: made with their tag, listed, revoked, and refused."""

import html
import re

import pytest

from mailprobe.api.forms.script import script_name, script_text
from mailprobe.api.keys import key_hash, well_formed
from mailprobe.api.pages.dashboard.keys_page import FORM_KEYS_A_MINUTE
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import RunningService, open_shop

FIELDS = {"kind": "pk_live_", "label": "news <b>", "origins": "https://Shop.test", "rate": "30"}


async def form_keys(shop: RunningService):
    return [key for key in await shop.store.keys(shop.account.id) if key.is_publishable]


async def test_a_key_of_a_form_is_made_with_its_tag_and_revoked(autojump_clock, shop):
    visitor = await signed_in(shop)
    await visitor.get("/keys")
    assert (await visitor.post("/keys", FIELDS)).status == 303
    text = html.unescape((await visitor.get("/keys")).octets.decode())
    (raw,) = re.findall(r'data-key="(pk_live_\w+)"', text)
    assert well_formed(raw)
    assert f'src="https://api.test/{script_name(script_text())}"' in text
    caller = await shop.store.caller(key_hash(raw))
    assert (caller.key.origins, caller.key.rate_per_min) == (("https://shop.test",), 30)
    await visitor.post("/keys/saved", {})
    listed = (await visitor.get("/keys")).octets.decode()
    assert "https://shop.test" in listed
    assert "news <b>" not in listed
    assert raw not in listed
    revoked = await visitor.post(f"/keys/{caller.key.id}/revoke")
    assert revoked.status == 303
    assert await form_keys(shop) == []


@pytest.mark.parametrize(
    "wrong",
    [{"origins": ""}, {"origins": "*"}, {"origins": "null"}, {"rate": "0"}, {"rate": "x"},
     {"rate": "9" * 50}, {"rate": "1000001"}, {"rate": "000000001" + "0" * 20}, {"label": "a" * 101}, {"origins": " ".join(f"https://{n}.test" for n in range(11))}],
)  # fmt: skip
async def test_a_wrong_field_makes_no_key(autojump_clock, shop, wrong):
    visitor = await signed_in(shop)
    await visitor.get("/keys")
    assert (await visitor.post("/keys", {**FIELDS, **wrong})).status == 400
    assert await form_keys(shop) == []


async def test_keys_of_forms_are_made_within_the_plans_number_and_a_pace(autojump_clock):
    async with open_shop("free", takes_test_keys=False) as shop:
        visitor = await signed_in(shop)
        await visitor.get("/keys")
        assert (await visitor.post("/keys", {**FIELDS, "kind": "pk_test_"})).status == 400
        statuses = [(await visitor.post("/keys", FIELDS)).status for _ in range(3)]
        assert statuses == [303, 303, 429]  # free: two keys of each kind
        await shop.change(tier="scale")
        statuses = [(await visitor.post("/keys", FIELDS)).status for _ in range(FORM_KEYS_A_MINUTE)]
        assert statuses.count(303) == FORM_KEYS_A_MINUTE - 2


async def test_another_accounts_key_is_not_revoked(autojump_clock, shop):
    other = await shop.store.create_account("eve@example.org", "free")
    key = await shop.store.create_key(
        other.id, "form", None, sha256="h", prefix="pk_live_abcd", keys_max=None,
        origins=("https://eve.test",), rate_per_min=1,
    )  # fmt: skip
    visitor = await signed_in(shop)
    await visitor.get("/keys")
    assert (await visitor.post(f"/keys/{key.id}/revoke")).status == 404
    assert await shop.store.caller("h") is not None
