"""No page scrolls sideways, and every action is on the screen: from a small phone to a wide screen."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.pages import BrowserPage

WIDTHS = (320, 390, 768, 1000, 1280, 1920)
LONG_NAME = "W" * 142
LONG_ADDRESS = f"{'a' * 40}@{'b' * 40}.{'c' * 16}.test"
PAGES = (
    "", "/lists", "/try", "/keys", "/caps", "/people", "/audit", "/jobs", "/start", "/operator",
    "/operator/accounts", "/nothing",
)  # fmt: skip
# The right edges of what can be clicked, but for what a region scrolls to.
OUTSIDE = """() => [...document.querySelectorAll("main a, main button, main input, main select, main summary, nav a")]
    .filter((each) => each.checkVisibility() && !each.closest(".preview, .wide, pre, .read, .skip, #file"))
    .filter((each) => { const box = each.getBoundingClientRect();
        return box.width > 1 && (box.right > document.documentElement.clientWidth + 1 || box.left < -1); })
    .map((each) => each.outerHTML.slice(0, 120))"""


def screens(ann: BrowserPage) -> Iterator[int]:
    """The page that is shown, at each width."""
    for width in WIDTHS:
        size: Any = {"width": width, "height": 900}
        ann.page.set_viewport_size(size)
        yield width


def fits(ann: BrowserPage) -> None:
    for width in screens(ann):
        assert not ann.is_wider_than_the_screen(), (ann.page.url, width)
        assert ann.page.evaluate(OUTSIDE) == [], (ann.page.url, width)


def send(ann: BrowserPage, query: str, rows: str) -> str:
    """A list of the account by the API, and its id."""
    got = ann.page.request.post(
        f"{ann.service.url}/v1/lists?{query}&name={LONG_NAME}.csv",
        headers={"Authorization": f"Bearer {ann.key}", "Content-Type": "text/csv"},
        data=rows,
    )
    return str(got.json()["list_id"])


def test_no_page_scrolls_sideways_with_the_longest_names(ann: BrowserPage) -> None:
    headers = {"Authorization": f"Bearer {ann.provisioning_key}"}
    ann.page.request.post(
        f"{ann.service.url}/v1/management/keys", headers=headers, data={"label": "W" * 100}
    )
    columns = ",".join(f"{'C' * 60}{n}" for n in range(6))
    rows = f"email,{columns}\n{LONG_ADDRESS},{','.join(['x' * 80] * 6)}\n"
    survey, done = send(ann, "start=0", rows), send(ann, "recheck=0", rows)
    ann.open(f"/lists/{done}")
    ann.wait_for_status("done")
    fits(ann)
    for path in (*PAGES, f"/lists/{survey}", f"/lists/{done}/rows/0/0", f"/lists/{done}/domains"):
        ann.open(path)
        fits(ann)
    ann.faults.clear()  # the page that is missing
    ann.open("/try")
    ann.page.get_by_label("E-mail address").fill(LONG_ADDRESS)
    ann.page.keyboard.press("Enter")
    ann.page.get_by_role("region", name="Result").or_(
        ann.page.locator("[data-tried]")
    ).first.wait_for()
    fits(ann)
    ann.sign_out()
    fits(ann)


@pytest.mark.parametrize("path", ["/docs", "/docs/api", "/docs/reference", "/docs/search?q=key"])
def test_no_page_of_the_documentation_scrolls_sideways(path: str, visitor: BrowserPage) -> None:
    visitor.page.goto(visitor.service.url + path)
    for width in screens(visitor):
        assert not visitor.is_wider_than_the_screen(), width


def test_a_phone_reaches_every_page_by_its_tabs(ann: BrowserPage) -> None:
    phone: Any = {"width": 390, "height": 844}
    ann.page.set_viewport_size(phone)
    tabs = ann.page.get_by_role("navigation", name="Main pages")
    for name, title in (("Lists", "Lists"), ("Try", "Try an address"), ("Keys", "API keys")):
        tabs.get_by_role("link", name=name, exact=True).click()
        expect(ann.page.get_by_role("heading", level=1)).to_have_text(title)
    for name in ("Jobs", "Limits", "Activity", "Service", "Accounts"):
        tabs.get_by_text("More").click()
        assert ann.barriers() == [], name
        tabs.get_by_role("link", name=name, exact=True).click()
        expect(ann.page.get_by_role("heading", level=1)).to_have_text(name)


def test_addresses_are_pasted_as_people_have_them(ann: BrowserPage) -> None:
    ann.open("/lists")
    ann.page.get_by_label("Or paste addresses").fill(
        "Ann Lee <ann.lee@example.org>, bob@example.org\nmailto:carol@example.org\n"
    )
    ann.page.get_by_role("button", name="Check the text").click()
    ann.page.get_by_role("button", name="Verify 3 addresses").wait_for()
    expect(ann.page.get_by_role("heading", level=1)).to_contain_text("Pasted")
