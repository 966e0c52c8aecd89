"""The examples of the documentation, with the service's URLs and a test key of the reader."""

import re

import pytest

from mailprobe.api.keys import key_hash
from mailprobe.api.pages.dashboard.documentation_key import KEY_FORM, LABEL
from mailprobe.api.pages.examples import KEY_MARK, Places, marked, marked_with_key
from mailprobe.storage.records import Caller
from tests.api.pages.test_dashboard import PageClient, signed_in
from tests.api.service_fixture import RunningService

PLACES = Places("https://api.test", "https://tools.test")


@pytest.mark.parametrize(
    ("code", "filled"),
    [
        ("curl $BASE_URL/health", "curl https://api.test/health"),
        ("export BASE_URL=http://127.0.0.1:8080  # x", "export BASE_URL=https://api.test  # x"),
        ("curl $TOOLS_URL/mcp", "curl https://tools.test/mcp"),
        ('-H "Authorization: Bearer $KEY"', f'-H "Authorization: Bearer {KEY_MARK}"'),
        ('"Authorization: Bearer sk_live_…"', f'"Authorization: Bearer {KEY_MARK}"'),
        ("export KEY=sk_test_…", f"export KEY={KEY_MARK}"),
        ('"MAILPROBE_KEY": "sk_live_…"', f'"MAILPROBE_KEY": "{KEY_MARK}"'),
        # what is not the reader's
        ('"tier":"builder","key":"sk_live_…"', '"tier":"builder","key":"sk_live_…"'),
        ("$FORM_KEY $KEY_ID $PROVISIONING_KEY", "$FORM_KEY $KEY_ID $PROVISIONING_KEY"),
        ('os.environ["BASE_URL"] $BASE_URLS', 'os.environ["BASE_URL"] $BASE_URLS'),
    ],
)
def test_an_example_is_ready_to_paste(code: str, filled: str) -> None:
    assert PLACES.fill(marked_with_key(code)) == filled


@pytest.mark.parametrize("code", ["$TOOLS_URL", "http://127.0.0.1:8081/mcp"])
def test_without_a_tool_server_its_example_stays(code: str) -> None:
    assert Places("https://api.test", "").fill(marked(code)) == code


async def start_page(shop: RunningService, visitor: PageClient, cookie: str = "") -> str:
    cookies = "; ".join(each for each in (f"mailprobe_session={visitor.cookie}", cookie) if each)
    got = await shop.request("GET", "/docs", key=None, headers={"cookie": cookies})
    assert got.status == 200
    assert got.headers["cache-control"] == "no-store"
    return got.octets.decode()


async def test_a_signed_in_reader_fills_the_examples_with_a_test_key(autojump_clock, shop):
    """A second key takes the first one's place; without a session none is shown."""
    ann = await signed_in(shop)
    assert "Fill the examples" in await start_page(shop, ann)
    before = ""
    for _ in range(2):
        made = await ann.post(KEY_FORM.removeprefix("/dashboard"), {"page": "start"})
        assert (made.status, made.headers["location"]) == (303, "/docs")
        cookie = made.headers["set-cookie"].partition(";")[0]
        found = re.search(r"sk_test_\w+", await start_page(shop, ann, cookie))
        assert found
        assert found[0] not in ("", before)
        before = found[0]
        assert isinstance(await shop.store.caller(key_hash(before)), Caller)
    ours = await shop.store.keys(shop.account.id)
    assert [key.label for key in ours if key.is_test] == [LABEL]

    stranger = await shop.request("GET", "/docs", key=None, headers={"cookie": cookie})
    assert before not in stranger.octets.decode()
    await shop.store.revoke_key(shop.account.id, next(k.id for k in ours if k.label == LABEL))
    assert "Fill the examples" in await start_page(shop, ann, cookie)


async def test_pages_open_for_a_signed_in_reader_without_a_store(autojump_clock, shop):
    ann = await signed_in(shop)
    shop.store.away = True
    cookie = f"mailprobe_session={ann.cookie}"
    got = await shop.request("GET", "/docs", key=None, headers={"cookie": cookie})
    assert got.status == 200


async def test_a_form_of_another_site_makes_no_key(autojump_clock, shop):
    ann = await signed_in(shop)
    got = await ann.post(KEY_FORM.removeprefix("/dashboard"), {}, origin="https://evil.test")
    assert got.status == 403
    assert not any(key.is_test for key in await shop.store.keys(shop.account.id))
