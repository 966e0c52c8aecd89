"""The page Try and the frame of every page, in a real browser."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.pages import BrowserPage

LIVING = "clara.nowak@harbour-books.test"


def test_an_address_is_tried_and_explained(ann: BrowserPage) -> None:
    """The field has the focus; a typing error is offered first; what was said can be copied."""
    ann.open(f"/try?email={LIVING}")
    field = ann.page.get_by_label("E-mail address")
    expect(field).to_be_focused()
    expect(field).to_have_value(LIVING)
    ann.page.keyboard.press("Enter")
    ann.page.get_by_role("region", name="Conversation").wait_for()
    ann.page.get_by_role("button", name="Copy as text").click()
    ann.page.get_by_role("button", name="Copied").wait_for()
    said = ann.page.evaluate("navigator.clipboard.readText()")
    assert f"C: RCPT TO:<{LIVING}>" in said
    ann.page.get_by_text("For programs").click()
    ann.page.get_by_role("button", name="Copy: As JSON").click()
    expect(ann.page.get_by_role("button", name="Copy: As JSON")).to_have_text("Copied")
    copied = json.loads(ann.page.evaluate("navigator.clipboard.readText()"))
    assert (copied["email"], copied["status"]) == (LIVING, "deliverable")

    field.fill("ann@gmial.com")
    ann.page.keyboard.press("Enter")
    ann.page.get_by_role("button", name="Verify ann@gmail.com").click()
    tried = ann.page.locator("#tried li")
    expect(tried).to_have_count(3)
    assert "ann@gmail.com" in tried.first.inner_text()
    ann.page.locator("#tried").get_by_role("link", name=LIVING).click()
    expect(field).to_have_value(LIVING)
    expect(ann.page.get_by_role("region", name="Conversation")).to_have_count(0)


def test_a_form_shows_that_it_waits_and_is_sent_once(ann: BrowserPage) -> None:
    ann.open("/try")
    ann.page.get_by_label("E-mail address").fill(LIVING)
    ann.page.evaluate(
        "window.ended = []; addEventListener('submit', (event) => {"
        "window.ended.push(event.defaultPrevented); event.preventDefault(); })"
    )
    button = ann.page.get_by_role("search").get_by_role("button")
    button.click()
    expect(button).to_have_attribute("aria-busy", "true")
    expect(button).to_have_text("Verifying…")
    ann.page.keyboard.press("Enter")
    assert ann.page.evaluate("window.ended") == [False, True]


def test_signing_out_forgets_what_was_tried(ann: BrowserPage) -> None:
    ann.open("/try")
    ann.page.get_by_label("E-mail address").fill("ann@mailinator.com")
    ann.page.keyboard.press("Enter")
    expect(ann.page.locator("#tried li")).to_have_count(1)
    ann.sign_out()
    ann.page.wait_for_function("sessionStorage.getItem('tried') === null")


def test_copying_works_where_the_browser_has_no_clipboard(ann: BrowserPage) -> None:
    """Over plain http, but for localhost, there is no navigator.clipboard."""
    ann.page.add_init_script(
        "Object.defineProperty(Navigator.prototype, 'clipboard', {get: () => undefined});"
    )
    ann.open("/try")
    ann.page.get_by_label("E-mail address").fill(LIVING)
    ann.page.keyboard.press("Enter")
    ann.page.get_by_role("button", name="Copy as text").click()
    ann.page.get_by_role("button", name="Copied").wait_for()
    ann.page.get_by_label("E-mail address").fill("")
    ann.page.keyboard.press("Control+v")
    expect(ann.page.get_by_label("E-mail address")).to_have_value(re.compile("RCPT TO"))


@pytest.mark.parametrize(
    ("key", "selector", "path"),
    [
        ("/", "[data-search]:focus", "/try"),
        ("n", "#file", "/lists"),
        ("?", "dialog[open]", "/keys"),
    ],
)
def test_keys_lead_to_their_places(key: str, selector: str, path: str, ann: BrowserPage) -> None:
    ann.open("/keys")
    ann.page.keyboard.press(key)
    ann.page.locator(selector).wait_for()
    assert ann.page.url.split("#")[0].endswith(path)


def test_a_key_pressed_in_a_field_is_text(ann: BrowserPage) -> None:
    ann.open("/try")
    field = ann.page.get_by_label("E-mail address")
    expect(field).to_be_focused()
    ann.page.keyboard.type("n/?")
    expect(field).to_have_value("n/?")
