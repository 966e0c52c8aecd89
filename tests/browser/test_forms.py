"""The script of forms in a real browser: on a page of another site, and in the live example."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from mailprobe.api.forms.script import script_tag
from tests.api.service_process import Place, Running, running

LIVING = "clara.nowak@harbour-books.test"
PAGE = """<!doctype html><title>Shop</title>
<form action="/sent"><input name="email" type="email" data-mailprobe aria-label="Address">
<button>Send</button></form>{tag}"""


class Site(ThreadingHTTPServer):
    """Another site, with one page. It is on loopback too: browsers keep others from that."""

    html = ""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class SiteRequest(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        octets = self.server.html.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(octets)))
        self.end_headers()
        self.wfile.write(octets)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(("127.0.0.1", 0), SiteRequest) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield site
        site.shutdown()
        thread.join()


@dataclass
class Shop:
    """A page of another site, with a form and the script."""

    page: Page
    service: Running
    site: Site
    key: str

    def open(self, tag: str | None = None) -> None:
        self.site.html = PAGE.format(tag=tag or script_tag(self.service.url, self.key))
        self.page.goto(self.site.origin)

    def type(self, address: str) -> None:
        self.page.get_by_label("Address").fill(address)
        self.page.keyboard.press("Tab")

    def send(self) -> str:
        """Send the form; returns the address that was sent."""
        with self.page.expect_navigation(url="**/sent?*"):
            self.page.get_by_role("button", name="Send").click()
        return str(self.page.evaluate("new URLSearchParams(location.search).get('email')"))


def make_key(service: Running, *words: str) -> str:
    account = service.place.make_account("scale").account_id
    return str(json.loads(service.place.mailprobe("key", "create", account, *words))["key"])


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def shop(service: Running, site: Site, page: Page) -> Shop:
    return Shop(page, service, site, make_key(service, "--origin", site.origin))


def test_a_page_of_another_site_gets_suggestions_and_sends_what_it_likes(shop: Shop) -> None:
    page = shop.page
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    shop.open()
    shop.type("ann@gmial.com")
    button = page.get_by_role("button", name="ann@gmail.com")
    button.click()
    assert page.get_by_label("Address").input_value() == "ann@gmail.com"
    button.wait_for(state="detached")

    shop.type("nobody@nowhere.invalid")  # no mail host at all
    page.get_by_role("status").get_by_text("seems to take no mail").wait_for()
    note = page.get_by_role("status")
    assert page.get_by_label("Address").get_attribute("aria-describedby") == note.get_attribute(
        "id"
    )
    assert shop.send() == "nobody@nowhere.invalid"  # a red light stops nobody

    page.go_back()
    with page.expect_response("**/v1/forms/verify") as answered:
        shop.type(LIVING)
    assert answered.value.json()["light"] == "GREEN_LIGHT"
    expect(page.get_by_role("status")).to_have_text("")
    assert errors == []


def test_a_page_may_show_the_answer_itself(shop: Shop) -> None:
    shop.open()
    shop.page.evaluate(
        """addEventListener("mailprobe", (event) => {
            event.preventDefault();
            document.title = JSON.stringify(event.detail);
        })"""
    )
    shop.type("<img src=x onerror=alert(1)>@gmial.com")
    shop.page.wait_for_function("document.title.startsWith('{')")
    shop.type("ann@gmial.com")
    shop.page.wait_for_function("document.title.includes('ann@')")
    assert json.loads(shop.page.title()) == {
        "email": "ann@gmial.com",
        "light": "YELLOW_LIGHT",
        "reason": "disposable",
        "suggestion": "ann@gmail.com",
    }
    assert shop.page.locator(".mailprobe-note").count() == 0


@pytest.mark.parametrize("away", ["stopped", "silent", "other origin", "other script"])
def test_a_form_works_without_its_service(shop: Shop, away: str) -> None:
    """Nothing that the service does, or does not do, keeps a visitor from sending."""
    tag = script_tag(shop.service.url, shop.key)
    if away == "other origin":
        tag = script_tag(shop.service.url, make_key(shop.service, "--origin", "http://other.test"))
    if away == "other script":
        tag = tag.replace("sha384-", "sha384-A")
    shop.open(tag)
    if away == "stopped":
        shop.page.route("**/v1/forms/verify", lambda route: route.abort())
    if away == "silent":
        shop.page.route("**/v1/forms/verify", lambda route: None)
    shop.type("ann@gmial.com")
    assert shop.send() == "ann@gmial.com"


def test_a_browser_proves_its_work_where_the_service_wants_it(
    place: Place, site: Site, page: Page
) -> None:
    place.env["MAILPROBE_FORM_PROOF_BITS"] = "12"
    with running(place) as service:
        shop = Shop(page, service, site, make_key(service, "--test", "--origin", site.origin))
        statuses: list[int] = []
        page.on(
            "response", lambda each: statuses.append(each.status) if "/v1/" in each.url else None
        )
        shop.open()
        for typed, meant in (("typo@sandbox.test", True), ("undeliverable@sandbox.test", False)):
            shop.type(typed)
            note = page.get_by_role("status")
            note.get_by_text("typo@gmail.com" if meant else "seems to take no mail").wait_for()
        assert statuses == [428, 200, 200]  # each answer has the next check's challenge


def test_a_page_stays_quick_while_its_script_computes(shop: Shop) -> None:
    """With a challenge of 30 bits, which takes an hour."""
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.method)
        route.fulfill(
            status=428,
            headers={
                "Access-Control-Allow-Origin": shop.site.origin,
                "Access-Control-Expose-Headers": "Form-Challenge",
                "Form-Challenge": "1764154800.30.abcdefgh.ABCDEFGHIJKLMNOP",
            },
        )

    shop.open()
    shop.page.route("**/v1/forms/verify", refuse)
    shop.page.evaluate("ticks = 0; setInterval(() => ticks++, 1)")
    with shop.page.expect_response("**/v1/forms/verify"):
        shop.type("ann@gmial.com")
    shop.page.evaluate("ticks = 0")
    shop.page.wait_for_function("ticks > 50")
    assert asked == ["POST"]
    assert shop.send() == "ann@gmial.com"


def test_the_live_example_answers_a_test_key(service: Running, page: Page) -> None:
    key = make_key(service, "--test", "--origin", service.url)
    page.goto(f"{service.url}/docs/forms/example")
    page.get_by_label("Publishable key").fill(key)
    page.get_by_role("button", name="Use it").click()
    address = page.get_by_label("E-mail address")
    address.fill("typo@sandbox.test")
    address.press("Tab")
    page.get_by_role("button", name="typo@gmail.com").wait_for()
    address.fill("undeliverable@sandbox.test")
    address.press("Tab")
    page.get_by_role("status").get_by_text("seems to take no mail").wait_for()
