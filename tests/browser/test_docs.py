"""The documentation in a real browser: read, searched, copied and filled, on a desk and on a phone."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.pages import BrowserPage

PATHS = (
    "/docs",
    "/docs/api",
    "/docs/quickstart-form",
    "/docs/reference",
    "/docs/forms/example",
    "/docs/search?q=key",
    "/about-probes",
    "/docs/nothing",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "narrow"])
def test_the_documentation_is_without_barriers_at_every_width(
    scheme: str, width: int, visitor: BrowserPage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shots = tmp_path_factory.getbasetemp() / "shots"
    shots.mkdir(exist_ok=True)
    visitor.page.set_viewport_size({"width": width, "height": 900})
    visitor.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for path in PATHS:
        visitor.page.goto(visitor.service.url + path)
        name = re.sub(r"\W+", "-", path.removeprefix("/"))
        visitor.page.screenshot(path=shots / f"{name}-{scheme}-{width}.png")
        assert visitor.barriers() == [], path
        assert not visitor.is_wider_than_the_screen(), path
    visitor.faults.clear()  # the page that is missing is one


def test_a_reader_searches_turns_pages_and_copies_what_runs(ann: BrowserPage) -> None:
    page, url = ann.page, ann.service.url
    page.goto(f"{url}/docs")
    page.get_by_role("button", name="Fill the examples").click()
    page.get_by_text("The examples of this page use a test key").wait_for()
    page.get_by_role("button", name="Copy block 1").click()
    expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    copied = str(page.evaluate("navigator.clipboard.readText()"))
    assert f"{url}/v1/email/verify" in copied
    assert re.search(r"Bearer sk_test_\w{49}", copied)
    page.get_by_role("link", name="Next").click()
    page.wait_for_url("**/docs/quickstart-form")
    page.get_by_role("link", name="Previous").click()
    page.wait_for_url("**/docs")
    page.keyboard.press("/")
    page.keyboard.type("idempotency")
    page.keyboard.press("Enter")
    page.get_by_role("link", name=re.compile("repeat|idempot", re.IGNORECASE)).first.click()
    page.wait_for_url("**/docs/**#*")


def test_a_reader_chooses_a_language_by_mouse_and_by_keyboard(visitor: BrowserPage) -> None:
    visitor.page.goto(f"{visitor.service.url}/docs/api")
    tabs = visitor.page.get_by_role("radiogroup").first
    blocks = tabs.locator("pre")
    expect(blocks.nth(0)).to_be_visible()
    expect(blocks.nth(1)).to_be_hidden()
    tabs.get_by_text("Python", exact=True).click()
    expect(blocks.nth(0)).to_be_hidden()
    expect(blocks.nth(1)).to_be_visible()
    tabs.get_by_role("radio", name="Python").press("ArrowRight")
    expect(blocks.nth(2)).to_be_visible()


def test_a_link_of_an_older_error_finds_its_section(visitor: BrowserPage) -> None:
    visitor.page.goto(f"{visitor.service.url}/docs#limits")
    visitor.page.wait_for_url("**/docs/api#limits")
