"""The dashboard in a real browser: what people do there, from the first start on."""

import csv
import re
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from mailprobe.api.pages.dashboard.sign_ins import BROWSER_COOKIE, COOKIE
from mailprobe.bench.lab.workbooks import row, sheet, text, workbook
from tests.api.service_process import PATIENCE_S, Running
from tests.browser.pages import LIST_S, BrowserPage

ROOT = Path(__file__).parents[2]
LIST = ROOT / "examples/list.csv"
LIVING = "clara.nowak@harbour-books.test"
PATHS = ("", "/start", "/lists", "/try", "/keys", "/caps", "/audit", "/jobs", "/operator")
LARGE = 200_000
LONG_TASK_MS = 100
STILL_MS_MAX = 1_500  # of counters that move each second, on a busy machine


def test_the_link_of_the_first_start_makes_an_account_once(visitor: BrowserPage) -> None:
    visitor.begin()
    assert visitor.heading() == "Overview"
    assert visitor.key.startswith("sk_live_")
    answer = httpx.post(
        f"{visitor.service.url}/v1/email/verify",
        json={"email": LIVING},
        headers={"Authorization": f"Bearer {visitor.key}"},
        timeout=PATIENCE_S,
    )
    assert answer.json()["status"] == "deliverable"
    log = visitor.service.place.log.read_text()
    link = next(line.strip() for line in log.splitlines() if "/dashboard/welcome?" in line)
    again = httpx.get(link, timeout=PATIENCE_S)
    assert again.status_code == 404
    assert "no longer works" in again.text


def test_a_provisioning_key_signs_in_and_signing_out_ends_it(
    ann: BrowserPage, context: BrowserContext
) -> None:
    ann.sign_out()
    ann.open("/keys")
    assert ann.heading() == "Sign in"
    ann.page.get_by_label("Provisioning key").fill(ann.provisioning_key)
    ann.page.keyboard.press("Enter")
    ann.page.get_by_role("heading", name="API keys", level=1).wait_for()
    cookies = context.cookies()
    assert {cookie["name"] for cookie in cookies} == {COOKIE, BROWSER_COOKIE}
    assert all(cookie["httpOnly"] and cookie["sameSite"] == "Lax" for cookie in cookies)


def test_a_key_is_made_copied_used_and_revoked(ann: BrowserPage) -> None:
    ann.open("/keys")
    ann.page.get_by_text("Create a key").click()
    ann.page.get_by_label("Name").fill("checkout <b>")
    ann.page.get_by_role("button", name="Create the key").click()
    key = ann.page.locator("#made").inner_text()
    ann.page.get_by_role("button", name="Copy").click()
    ann.page.get_by_role("button", name="Copied").wait_for()
    assert ann.page.evaluate("navigator.clipboard.readText()") == key
    headers = {"Authorization": f"Bearer {key}"}

    def status() -> int:
        url, body = f"{ann.service.url}/v1/email/verify", {"email": LIVING}
        return httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S).status_code

    assert status() == 200
    ann.page.reload()
    assert ann.page.locator("#made").inner_text() == key
    ann.page.get_by_role("button", name="I have saved it").click()
    ann.page.get_by_text("2 of 50 live keys").wait_for()
    assert ann.page.locator("#made").count() == 0
    ann.page.get_by_label("Revoke checkout <b>", exact=True).click()
    ann.page.get_by_role("button", name="Revoke checkout <b> for good").click()
    ann.page.get_by_text("1 of 50 live keys").wait_for()
    assert status() == 401


def test_a_cap_is_set_and_refuses(ann: BrowserPage) -> None:
    ann.open("/caps")
    ann.page.get_by_label("Hard cap in euros").fill("nothing")
    ann.page.get_by_role("button", name="Save").click()
    assert "not an amount in euros" in ann.page.get_by_role("alert").inner_text()
    ann.faults.clear()  # the browser notes the 400
    ann.page.get_by_label("Hard cap in euros").fill("12.50")
    ann.page.get_by_label("Send alerts").uncheck()
    ann.page.get_by_role("button", name="Save").click()
    ann.page.get_by_role("status").wait_for()
    ann.open()
    assert "12.50 EUR" in ann.page.locator(".figures").first.inner_text()
    assert '"hard_cap_eur":12.5' in ann.service.place.mailprobe("account", "list").replace(" ", "")


def test_a_list_is_cleaned_to_its_download(ann: BrowserPage, tmp_path: Path) -> None:
    ann.send_list(LIST)
    assert "295 addresses" in ann.page.locator(".lead").inner_text()
    ann.clean()
    expect(ann.page.locator("#progress [role=status]")).to_contain_text("295 of 295")
    with ann.page.expect_download() as download:
        ann.page.get_by_text("All rows").click()
        ann.page.get_by_role("link", name="CSV", exact=True).click()
    download.value.save_as(tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert {"status", "reason"} <= rows[0].keys()
    with ann.page.expect_download() as download:
        ann.page.get_by_role("link", name="Download keep").click()
    download.value.save_as(tmp_path / "green.csv")
    with (tmp_path / "green.csv").open() as file:
        assert {row["light"] for row in csv.DictReader(file)} <= {"GREEN_LIGHT"}
    ann.page.get_by_label("More about this list").click()
    ann.page.get_by_role("button", name="Delete the list").click()
    ann.page.get_by_text("No lists yet").wait_for()


def test_a_list_says_when_it_asks_again(ann: BrowserPage, tmp_path: Path) -> None:
    file = tmp_path / "grey.csv"
    file.write_text(f"email\n{LIVING}\nphansen@greylist-guild.test\n")
    ann.send_list(file, rechecks=True)
    ann.start()
    ann.page.get_by_text("asked again at").wait_for()
    expect(ann.page.locator("main")).to_contain_text("2 of 2 addresses answered")
    ann.page.get_by_role("button", name="Stop").click()
    ann.wait_for_status("cancelled")


def test_times_are_in_the_zone_of_the_reader(
    browser: Browser, ann: BrowserPage, context: BrowserContext, tmp_path: Path
) -> None:
    """Also those that come with an event; the title has UTC."""
    file = tmp_path / "grey.csv"
    file.write_text("email\nphansen@greylist-guild.test\n")
    ann.send_list(file, rechecks=True)
    ann.start()
    abroad = browser.new_context(timezone_id="Asia/Kathmandu")  # UTC+05:45
    abroad.add_cookies(context.cookies())  # type: ignore[arg-type]
    page = abroad.new_page()
    page.goto(ann.page.url)
    shown = page.locator("#progress .lines time")
    expect(shown).to_have_text(re.compile(r"^\d\d:\d\d$"))
    at = datetime.fromisoformat(shown.get_attribute("datetime") or "")
    assert shown.inner_text() == f"{at + timedelta(hours=5, minutes=45):%H:%M}"
    assert shown.get_attribute("title") == f"{at:%Y-%m-%d %H:%M:%S} UTC"
    abroad.close()
    ann.page.get_by_role("button", name="Stop").click()
    ann.wait_for_status("cancelled")


def test_another_column_is_chosen_in_the_preview(ann: BrowserPage, tmp_path: Path) -> None:
    file = tmp_path / "two.csv"
    file.write_text(f"email,home\n{LIVING},eve@harbour-books.test\n{LIVING},bob@acme.test\n")
    ann.send_list(file)
    ann.page.get_by_label("email").uncheck()
    ann.page.get_by_label("home").check()
    expect(ann.page.get_by_role("button", name="Verify 1 address")).to_be_disabled()
    expect(ann.page.get_by_text("press “Read it this way” first")).to_be_visible()
    ann.page.get_by_role("button", name="Read it this way").click()
    ann.page.get_by_text("column: home").wait_for()
    ann.page.get_by_role("button", name="Verify 2 addresses").wait_for()


def test_another_encoding_is_chosen_in_the_preview(ann: BrowserPage, tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    file.write_bytes(f"email;name\n{LIVING};Zo\u00eb\nbob@acme.test;Jos\u00e9\n".encode("cp1252"))
    ann.send_list(file)
    rows = ann.page.get_by_role("region", name="First rows")
    expect(rows).to_contain_text("Zo\u00eb")
    ann.page.get_by_label("Encoding").select_option("Greek (Windows-1253)")
    ann.page.get_by_role("button", name="Read it this way").click()
    expect(rows).to_contain_text("Zo\u03bb")
    ann.page.get_by_label("Encoding").select_option("Western (Windows-1252)")
    ann.page.get_by_role("button", name="Read it this way").click()
    expect(rows).to_contain_text("Jos\u00e9")
    expect(ann.page.get_by_label("Separator")).to_have_value(";")


def test_another_sheet_is_chosen_with_the_file_again(ann: BrowserPage, tmp_path: Path) -> None:
    def one(address: str) -> str:
        return sheet(row(1, text("A1", "email")), row(2, text("A2", address)))

    file = tmp_path / "book.xlsx"
    file.write_bytes(workbook({"First": one(LIVING), "Second": one("bob@acme.test")}))
    ann.send_list(file)
    first = ann.page.url
    ann.page.get_by_label("Sheet").select_option("Second")
    ann.page.get_by_label("The same file").set_input_files(str(file))
    ann.page.get_by_role("button", name="Read this sheet").click()
    expect(ann.page.get_by_role("region", name="First rows")).to_contain_text("bob@acme.test")
    ann.page.goto(first)
    expect(ann.page.get_by_text("There is no such list.")).to_be_visible()
    ann.faults.clear()  # the browser notes the 404


def test_a_list_that_cannot_be_read_says_why(ann: BrowserPage, tmp_path: Path) -> None:
    file = tmp_path / "broken.xlsx"
    file.write_bytes(b"PK\x03\x04 no workbook")
    ann.open("/lists")
    ann.page.set_input_files("#file", str(file))
    ann.page.locator("#upload-error:not(:empty)").wait_for()
    assert "broken.xlsx" in ann.page.locator("#upload-error").inner_text()
    ann.faults.clear()  # the browser notes the 400


def test_one_address_is_explained(ann: BrowserPage) -> None:
    ann.open("/try")
    ann.page.get_by_label("E-mail address").fill(LIVING)
    ann.page.keyboard.press("Enter")
    ann.page.get_by_role("region", name="Conversation").wait_for()
    shown = ann.page.locator("main").inner_text()
    for words in ("deliverable", "Keep", "RCPT TO:<clara.nowak@", "Mail host", "This decides"):
        assert words in shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "narrow"])
def test_every_page_is_without_barriers_at_every_width(
    scheme: str, width: int, ann: BrowserPage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """axe-core finds nothing; no page is wider than the screen. Pictures are kept."""
    shots = tmp_path_factory.getbasetemp() / "shots"
    shots.mkdir(exist_ok=True)
    ann.page.set_viewport_size({"width": width, "height": 900})
    ann.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    # Before the list, whose refused addresses its host counts.
    ann.open("/try")
    ann.page.get_by_label("E-mail address").fill(LIVING)
    ann.page.keyboard.press("Enter")
    ann.page.get_by_role("region", name="Conversation").wait_for()
    assert ann.barriers() == []
    ann.send_list(LIST)
    lists = [ann.page.url.partition("/dashboard")[2]]
    ann.clean()
    for path in (*PATHS, *lists):
        ann.open(path)
        name = path.split("/")[1] if "/" in path else "overview"
        ann.page.screenshot(path=shots / f"{name}-{scheme}-{width}.png", full_page=True)
        assert ann.barriers() == [], path
        assert not ann.is_wider_than_the_screen(), path
    ann.open(f"{lists[0]}/share")
    ann.page.get_by_role("button", name="Make a link").click()
    link = ann.page.locator("#link").inner_text()
    assert ann.barriers() == []
    assert not ann.is_wider_than_the_screen()
    ann.page.context.clear_cookies()
    ann.page.goto(link.replace("https://", "http://"))
    ann.page.get_by_role("heading", name="Why").wait_for()
    ann.page.screenshot(path=shots / f"report-{scheme}-{width}.png", full_page=True)
    assert ann.barriers() == []
    assert not ann.is_wider_than_the_screen()


def test_everything_is_reached_by_keyboard(ann: BrowserPage) -> None:
    """From the top of a page, Tab comes to each link and button, and shows where it is."""
    ann.open("/keys")
    seen = set()
    for _ in range(40):
        ann.page.keyboard.press("Tab")
        words = ann.page.evaluate(
            "[document.activeElement.textContent.trim() || document.activeElement.id,"
            " getComputedStyle(document.activeElement).outlineStyle +"
            " getComputedStyle(document.activeElement).boxShadow]"
        )
        seen.add(words[0])
    assert {"Skip to the content", "Overview", "ann@example.org", "Create a key"} <= seen


def test_pages_work_without_script(
    browser: object, service: Running, ann: BrowserPage, context: BrowserContext
) -> None:
    """A list is sent, started and downloaded by forms alone."""
    from playwright.sync_api import Browser

    assert isinstance(browser, Browser)
    plain = browser.new_context(java_script_enabled=False)
    plain.add_cookies(context.cookies())  # type: ignore[arg-type]
    page: Page = plain.new_page()
    page.goto(f"{service.url}/dashboard/lists")
    page.set_input_files("#file", str(LIST))
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Ask again").uncheck()
    page.get_by_role("button", name="Send the list").click()
    page.get_by_role("button", name="Verify 295 addresses").click()
    page.wait_for_selector("[data-status=done]", timeout=LIST_S * 1000)  # it reloads by itself
    with page.expect_download() as download:
        page.get_by_text("All rows").click()
        page.get_by_role("link", name="CSV", exact=True).click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 301
    plain.close()


def test_a_large_list_keeps_the_page_responsive(ann: BrowserPage, tmp_path: Path) -> None:
    """200,000 rows: counters move each second, no task of the page is long, its memory does not grow.

    The table stays as it is, and offers what is new.
    """
    file = tmp_path / "large.csv"
    file.write_text("email\n" + "".join(f"person{n}@harbour-books.test\n" for n in range(LARGE)))
    ann.send_list(file)
    ann.page.add_init_script(
        "window.tasks = []; new PerformanceObserver((list) => window.tasks.push("
        "...list.getEntries().map((each) => each.duration))).observe({type: 'longtask'});"
        "window.heap = []; setInterval(() => window.heap.push("
        "performance.memory.usedJSHeapSize), 1000)"
    )
    ann.start()
    ann.page.locator(".results").wait_for()
    first = ann.page.locator(".results").inner_text()
    moved = ann.page.evaluate(
        "() => new Promise((resolve) => { const moved = []; let before = '';"
        "const look = () => { const shown = document.querySelector('[data-show=answered]').textContent;"
        "if (shown === before) return; before = shown; moved.push(performance.now());"
        "if (moved.length > 15) resolve(moved); };"
        "new MutationObserver(look).observe(document.getElementById('progress'),"
        " {childList: true, subtree: true, characterData: true}); })"
    )
    tasks, heap = ann.page.evaluate("[window.tasks, window.heap]")
    still = sorted(after - before for before, after in pairwise(moved))
    print(
        f"counters still for {still[-1]:.0f} ms at most; long tasks: {max(tasks, default=0):.0f} ms at most;"
        f" heap {min(heap):,} to {max(heap):,}"
    )
    assert still[len(still) // 2] < STILL_MS_MAX
    assert still[-1] < 3 * STILL_MS_MAX  # a busy machine misses a beat now and then
    assert max(tasks, default=0) < LONG_TASK_MS
    assert max(heap) < 32 << 20
    assert ann.page.locator(".results").inner_text() == first
    newer = ann.page.get_by_role("link", name=re.compile(r"^[\d,]+ new$"))
    shown = ann.page.locator("#results").get_attribute("data-answered")
    newer.click()
    expect(ann.page.locator("#results")).not_to_have_attribute("data-answered", shown or "")
    ann.page.get_by_role("button", name="Stop").click()
    ann.wait_for_status("cancelled")


def test_the_page_of_a_list_opens_its_stream_again_where_that_fails(
    ann: BrowserPage, tmp_path: Path
) -> None:
    file = tmp_path / "grey.csv"
    file.write_text(f"email\n{LIVING}\nphansen@greylist-guild.test\n")
    ann.send_list(file, rechecks=True)
    refused = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        if len(refused) > 2:
            route.continue_()
        else:
            route.fulfill(status=503)

    ann.page.route("**/lists/*/events", refuse)
    ann.start()
    ann.page.get_by_text("asked again at").wait_for()
    ann.page.wait_for_function("document.title.startsWith('100 %')")
    assert len(refused) == 3
    ann.faults.clear()  # the browser notes the 503


def test_a_row_of_the_table_opens(ann: BrowserPage) -> None:
    ann.send_list(LIST)
    ann.clean()
    ann.page.get_by_role("searchbox").fill(LIVING)
    ann.page.keyboard.press("Enter")
    ann.page.get_by_text("1 found in all").wait_for()
    ann.page.get_by_role("link", name=LIVING).click()
    panel = ann.page.get_by_role("complementary", name="Row")
    expect(panel).to_contain_text("confidence")
    assert ann.barriers() == []
    ann.page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(ann.page.get_by_role("link", name=LIVING)).to_be_focused()


def test_an_upload_says_that_the_session_has_ended(ann: BrowserPage, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("email\nann@example.org\n")
    ann.open("/lists")
    ann.page.context.clear_cookies()
    ann.page.set_input_files("#file", str(tmp_path / "list.csv"))
    ann.page.get_by_text("Your session has ended, and nothing more was done.").wait_for()
