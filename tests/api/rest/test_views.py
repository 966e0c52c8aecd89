"""Ordinary Quart views beside the operations: pages are made of them."""

import logging
from collections.abc import AsyncIterator

import pytest
import quart
import trio

from mailprobe.api.rest.app import ApiApp, this_request
from mailprobe.api.schema import BODY_OCTETS_MAX
from mailprobe.api.serve import create_app
from tests.api.service_fixture import RunningService


@pytest.fixture
def app(shop: RunningService) -> ApiApp:
    """The service's application with the views of this module."""
    app = create_app(shop.service)
    shop.app = app
    return app


async def test_a_view_returns_text_with_a_status_and_headers(
    shop: RunningService, app: ApiApp
) -> None:
    @app.get("/pages/<name>")
    async def page(name: str) -> tuple[str, int, dict[str, str]]:
        return f"<p>{name} {quart.request.args['q']}", 203, {"x-made-by": "a view"}

    got = await shop.request("GET", "/pages/%C3%A9?q=a%20b", key=None)
    assert (got.status, got.octets.decode()) == (203, "<p>%C3%A9 a b")
    assert got.headers["content-type"] == "text/html; charset=utf-8"
    assert got.headers["content-length"] == str(len(got.octets))
    assert got.headers["x-made-by"] == "a view"


async def test_a_view_uses_all_of_the_request(shop: RunningService, app: ApiApp) -> None:
    @app.post("/form")
    async def form() -> quart.Response:
        sent = await this_request().read(BODY_OCTETS_MAX)
        return quart.jsonify(
            sent.decode(), quart.request.headers["X-Custom"], quart.request.remote_addr,
            quart.url_for("form"), quart.url_for("form", _external=True),
        )  # fmt: skip

    for pieces in (None, [(0.0, b"a="), (0.1, b"1")]):
        got = await shop.request(
            "POST", "/form", octets=b"a=1", pieces=pieces, headers={"X-Custom": "b"}
        )
        links = ["/form", f"{shop.service.links.base_url}/form"]
        assert got.body == ["a=1", "b", "192.0.2.7", *links]


async def test_a_view_reads_its_body_in_parts(shop: RunningService, app: ApiApp) -> None:
    @app.post("/parts")
    async def parts() -> str:
        found = []
        while part := await this_request().next_part():
            found.append(part.decode())
        return ",".join(found)

    pieces = [(0.1, b"one"), (0.1, b"two"), (0.1, b"")]
    assert (await shop.request("POST", "/parts", pieces=pieces)).octets == b"one,two"


async def test_a_view_streams_its_response(
    autojump_clock: object, shop: RunningService, app: ApiApp
) -> None:
    @app.get("/lines")
    async def lines() -> AsyncIterator[str]:
        for number in range(3):
            yield f"{number}\n"
            await trio.sleep(40)  # longer in all than Quart's own limit

    got = await shop.request("GET", "/lines")
    assert got.lines == [0, 1, 2]


async def test_a_bug_in_a_view_is_an_error_body(
    shop: RunningService, app: ApiApp, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/bug")
    async def bug() -> str:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        got = await shop.request("GET", "/bug")
    assert (got.status, got.error) == (500, "internal_error")
    assert "ZeroDivisionError" in caplog.text


async def test_a_function_that_is_not_async_runs_beside_the_loop(
    shop: RunningService, app: ApiApp
) -> None:
    @app.get("/sync")
    def sync() -> str:
        return quart.request.path

    assert (await shop.request("GET", "/sync")).octets == b"/sync"


async def test_hooks_and_sessionless_templates_work(shop: RunningService, app: ApiApp) -> None:
    @app.after_request
    async def mark(response: quart.Response) -> quart.Response:
        response.headers["x-after"] = "1"
        return response

    @app.get("/template")
    async def template() -> str:
        return await quart.render_template_string("{{ request.path }} {{ a }}", a="<b>")

    got = await shop.request("GET", "/template")
    assert (got.octets, got.headers["x-after"]) == (b"/template &lt;b&gt;", "1")
    assert (await shop.request("GET", "/health")).headers["x-after"] == "1"
