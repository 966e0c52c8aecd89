"""The documentation as the service serves it, and the links of its error bodies."""

import re
from dataclasses import fields
from datetime import timedelta
from typing import Any, get_type_hints
from urllib.parse import urlsplit

import pytest
import trio

from mailprobe.api import refusals
from mailprobe.api.error_table import TABLE, body_of
from mailprobe.api.mcp.jsonrpc import VERSION_2026
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.pages.search import SEARCHES_PER_S
from tests.api.mcp.tool_server import listener_of
from tests.api.service_fixture import PLACES, START, RunningService

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


async def opens(shop: RunningService, link: str) -> bool:
    """Does a link of an error body open a section of a page? The pages are at `docs_url`."""
    assert link.startswith(PLACES.docs_url), link
    url = urlsplit(link.replace(PLACES.docs_url, "/docs/api", 1))
    got = await shop.request("GET", url.path, key=None)
    return got.status == 200 and f'id="{url.fragment}"' in got.octets.decode()


def example_of(kind: type[refusals.Refusal]) -> refusals.Refusal:
    """A refusal of this class with some value in each field."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]  # refusals are dataclasses
        hint = str(hints[field.name])
        values[field.name] = (
            START + timedelta(minutes=1) if "datetime" in hint
            else "limits" if field.name == "section"
            else 1 if "int" in hint or "float" in hint or "bool" in hint
            else "words"
        )  # fmt: skip
    return kind(**values)


@pytest.mark.parametrize("kind", list(TABLE), ids=lambda kind: kind.__name__)
async def test_the_link_of_every_error_opens_its_section(
    autojump_clock, shop: RunningService, kind
):
    body: Any = body_of(example_of(kind), PLACES)
    assert await opens(shop, body.docs)


async def test_errors_of_every_section_and_of_tools_have_links_that_open(autojump_clock, shop):
    sections = {operation.section for operation in OPERATIONS}
    for section in sections:
        body: Any = body_of(refusals.InvalidRequest("words", section), PLACES)
        assert await opens(shop, body.docs)
    tools = listener_of(shop)
    answers = [
        await tools.post(b"{"),
        await tools.rpc("nothing"),
        await tools.rpc("tools/call", {"name": "nothing"}),
        await tools.rpc("tools/list", key=None),
        await tools.call("verify_email", {"email": 7}),
        await tools.call("verify_email", {"email": "quota@sandbox.test"}, key="no key"),
        await tools.rpc("tools/list", headers={"mcp-protocol-version": VERSION_2026}),
    ]
    links = [re.findall(r'"docs":"([^"]+)"', got.octets.decode()) for got in answers]
    for found in links:
        assert found
        for link in found:
            assert await opens(shop, link)


async def test_a_browser_is_sent_to_the_documentation_and_a_client_is_not(autojump_clock, shop):
    got = await shop.request("GET", "/", key=None, headers=BROWSER)
    assert (got.status, got.headers["location"]) == (302, "/docs")
    for headers in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
        got = await shop.request("GET", "/", key=None, headers=headers)
        assert (got.status, got.error) == (404, "not_found")


@pytest.mark.parametrize(
    "path",
    ["/docs", "/docs/", "/docs/reference", "/docs/api.md", "/llms.txt", "/about-probes"],
)
async def test_pages_need_no_key_and_no_store(autojump_clock, shop: RunningService, path):
    shop.store.away = True
    got = await shop.request("GET", path, key=None, headers=BROWSER)
    assert got.status == 200
    assert "default-src 'none'" in got.headers["content-security-policy"]
    head = await shop.request("HEAD", path, key=None)
    assert head.status == 200


async def test_a_missing_page_is_html_below_docs_and_json_elsewhere(autojump_clock, shop):
    for path in ("/docs/nothing", "/docs/a/b", "/docs/..%2f..%2fetc"):
        got = await shop.request("GET", path, key=None)
        assert got.status == 404
        assert got.headers["content-type"].startswith("text/html")
    assert (await shop.request("GET", "/nothing", key=None)).error == "not_found"
    assert (await shop.request("POST", "/docs", key=None)).error == "method_not_allowed"


async def test_hostile_searches_find_nothing_and_break_nothing(
    autojump_clock, shop: RunningService
):
    for query in ('"', "%00", "x" * 5_000, "AND%20OR%20NOT", "%3Cscript%3E", "a*b^c:d", "%ff%fe"):
        got = await shop.request("GET", f"/docs/search?q={query}", key=None)
        assert got.status == 200
        assert b"<script>" not in got.octets
    found = await shop.request("GET", "/docs/search?q=webhook", key=None)
    assert b"/docs/callbacks#" in found.octets


async def test_strangers_searches_are_bounded(autojump_clock, shop: RunningService):
    # The first search reads the pages in a thread, for which the virtual clock jumps.
    assert (await shop.request("GET", "/docs/search?q=webhook", key=None)).status == 200
    await trio.sleep(1)
    statuses = [
        (await shop.request("GET", "/docs/search?q=webhook", key=None)).status
        for _ in range(SEARCHES_PER_S + 10)
    ]
    assert statuses == [200] * SEARCHES_PER_S + [503] * 10
    assert (await shop.request("GET", "/docs", key=None)).status == 200
    await trio.sleep(1)
    assert (await shop.request("GET", "/docs/search?q=webhook", key=None)).status == 200
