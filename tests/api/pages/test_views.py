"""The routes of the documentation, as a browser and a crawler use them."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from quart import Response
from quart_trio import QuartTrio

from mailprobe.api.error_table import Links
from mailprobe.api.operations.table import description
from mailprobe.api.pages.about_probes import about_probes
from mailprobe.api.pages.dashboard.assets import assets
from mailprobe.api.pages.examples import Places
from mailprobe.api.pages.views import Documentation, pages_blueprint
from mailprobe.engine.settings import EngineSettings

LINKS = Links("http://api.test", "http://api.test/docs", "http://api.test/dashboard")
SETTINGS = EngineSettings(
    helo_name="probe.shop.test", mail_from="check@shop.test", host_connections=7
)

Get = Callable[..., Awaitable[Response]]


@pytest.fixture
def get() -> Get:
    app = QuartTrio("pages", static_folder=None)
    documentation = Documentation(
        lambda: description(LINKS), lambda: about_probes(SETTINGS), Places(LINKS.base_url, "")
    )
    app.register_blueprint(pages_blueprint(documentation))
    return app.test_client().get


async def text_of(response: Response) -> str:
    return str(await response.get_data(as_text=True))


async def test_every_link_of_every_page_opens_and_leads_outside_only_by_a_click(get: Get) -> None:
    """Nothing is loaded from another host; the crawl follows what the service serves."""
    to_visit, visited = ["/docs", "/llms.txt"], set()
    while to_visit:
        url = to_visit.pop()
        if url in visited:
            continue
        visited.add(url)
        response = await get(url)
        assert response.status_code == 200, url
        text = await text_of(response)
        if response.mimetype == "text/html":
            assert not re.search(r"<img|<iframe|style=", text), url
            scripts = re.findall(r'<script[^>]* src="([^"]+)"', text)
            assert all(url.startswith("/") for url in scripts)
            assert text.count("<script") == len(scripts)
            loaded = re.findall(r'<link rel="stylesheet" href="([^"]+)"', text)
            assert loaded == [assets()["style.css"].url]
        found = re.findall(r'href="(/[^"#]*)', text) + re.findall(r"\]\((/[^)#]*)\)", text)
        if response.mimetype != "text/markdown":
            to_visit += [
                url for url in found if not url.startswith(("/openapi.json", "/dashboard"))
            ]
    assert len(visited) > 30


@pytest.mark.parametrize(
    "url",
    [
        "/docs",
        "/docs/reference",
        "/docs/search?q=x",
        "/docs/verdicts.md",
        "/docs/nothing",
        "/about-probes",
        "/about-probes.md",
    ],
)
async def test_a_browser_may_load_nothing_from_elsewhere(get: Get, url: str) -> None:
    policy = (await get(url)).headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; form-action 'self'")
    assert "unsafe" not in policy


async def test_a_missing_page_is_404_and_escapes_its_name(get: Get) -> None:
    for url in ("/docs/nothing", "/docs/..%2fREADME", "/docs/nothing.md", "/docs/%00"):
        assert (await get(url)).status_code == 404
    text = await text_of(await get("/docs/%3Cscript%3E"))
    assert "<script>" not in text
    assert "script&gt;" not in text


async def test_a_query_is_shown_as_text(get: Get) -> None:
    text = await text_of(await get('/docs/search?q="><script>xylophone(1)</script>'))
    assert "<script>" not in text
    assert "No section has all of these words" in text


async def test_a_page_comes_as_markdown(get: Get) -> None:
    response = await get("/docs/verdicts.md")
    assert response.content_type == "text/markdown; charset=utf-8"
    assert (await text_of(response)).startswith("# Verdicts\n")


async def test_an_unchanged_page_is_not_sent_again(get: Get) -> None:
    first = await get("/docs")
    again = await get("/docs", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, await text_of(again)) == (304, "")
    other = await get("/docs/verdicts", headers={"If-None-Match": first.headers["ETag"]})
    assert other.status_code == 200


async def test_the_reference_opens_at_an_operation(get: Get) -> None:
    assert 'id="verify_stream"' in await text_of(await get("/docs/reference"))


async def test_an_administrator_reads_what_we_ask_and_whom_to_write_to(get: Get) -> None:
    text = await text_of(await get("/about-probes"))
    assert "EHLO probe.shop.test" in text
    assert '<a href="mailto:check@shop.test"' in text
    assert "at most 7;" in text  # connections, as they are set
    assert "postmaster@probe.shop.test" in about_probes(replace(SETTINGS, mail_from=""))


async def test_the_operators_text_takes_the_place_of_ours() -> None:
    """Its HTML is text, like that of every page."""
    app = QuartTrio("pages", static_folder=None)
    own = "# Ours\n\nAsk *us*. <script>x</script> [verdicts](verdicts.md)\n"
    documentation = Documentation(lambda: b"", lambda: own, Places(LINKS.base_url, ""))
    app.register_blueprint(pages_blueprint(documentation))
    text = await text_of(await app.test_client().get("/about-probes"))
    assert "<title>Ours – mailprobe</title>" in text
    assert "Ask <em>us</em>." in text
    assert "<script>" not in text
    assert 'href="/docs/verdicts"' in text
    assert await text_of(await app.test_client().get("/about-probes.md")) == own
