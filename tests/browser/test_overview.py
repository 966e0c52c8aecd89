"""The overview and the operator's page in a real browser."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Route, expect

from mailprobe.api.pages.icons import line_of_counts
from tests.browser.pages import BrowserPage

ROOT = Path(__file__).parents[2]
LIST = ROOT / "examples/list.csv"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def looked_at(ann: BrowserPage, name: str, factory: pytest.TempPathFactory) -> None:
    """The page as it is now, by day and night, wide and narrow: no barrier; a picture of each is kept."""
    shots = factory.getbasetemp() / "shots"
    shots.mkdir(exist_ok=True)
    for scheme in SCHEMES:
        for width in (1280, 390):
            ann.page.set_viewport_size({"width": width, "height": 900})
            ann.page.emulate_media(color_scheme=scheme)
            ann.page.reload()
            ann.page.screenshot(path=shots / f"{name}-{scheme}-{width}.png", full_page=True)
            assert ann.barriers() == [], (scheme, width)
            assert not ann.is_wider_than_the_screen(), (scheme, width)


def test_the_overview_shows_what_runs_and_the_results_by_light(
    ann: BrowserPage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ann.page.get_by_text("Nothing verified yet").wait_for()
    ann.page.get_by_role("link", name="Show the lines").wait_for()
    ann.send_list(LIST)
    ann.clean()
    ann.open()
    assert ann.page.locator(".chart rect").count() == 3
    ann.page.get_by_text("Numbers by day").click()
    sums = [
        sum(
            int(cell.replace(",", ""))
            for cell in ann.page.locator(f"[data-count={name}]").all_inner_texts()
        )
        for name in ("green", "yellow", "red")
    ]
    assert sum(sums) == 295
    assert min(sums) > 0
    ann.page.get_by_role("link", name="7 days").click()
    ann.page.get_by_role("heading", name="Last 7 days").wait_for()
    ann.page.get_by_text("Numbers by day").click()
    assert ann.page.locator("#days tbody tr").count() == 7
    looked_at(ann, "overview", tmp_path_factory)


def with_line(route: Route) -> None:
    """The operator's page of a service that is old enough for a line."""
    got = route.fetch()
    first = datetime(2026, 3, 14, 9, tzinfo=UTC)
    counts = [(first + timedelta(minutes=number), 1_000.0 + number) for number in range(60)]
    drawn = line_of_counts([*((at, None) for at, _ in counts[:9]), *counts[9:]], "Addresses")
    before = '<div class="nothing"><b>The line begins in two minutes'
    assert before in got.text()
    route.fulfill(response=got, body=got.text().replace(before, drawn + before))


def test_the_throughput_is_a_line_with_times_of_the_reader(
    ann: BrowserPage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ann.page.route("**/dashboard/operator", with_line)
    ann.open("/operator")
    section = ann.page.get_by_role("region", name="Throughput")
    expect(section.get_by_role("img", name="Addresses")).to_be_visible()
    for name in ("Addresses a minute", "Median answer", "Waiting"):
        expect(section.get_by_role("heading", name=name)).to_be_visible()
    zone = ann.page.evaluate("new Date('2026-03-14T09:59Z').toTimeString().slice(0, 5)")
    expect(section.locator(".chart .end")).to_have_text(zone)
    assert ann.page.evaluate(
        "[...document.querySelectorAll('.chart .x')].every((each) =>"
        " each.getBoundingClientRect().right <= document.documentElement.clientWidth)"
    )
    looked_at(ann, "throughput", tmp_path_factory)
    section.get_by_role("link", name="24 hours").click()
    expect(section.get_by_text("The line begins in half an hour")).to_be_visible()


def test_the_operator_makes_and_deletes_an_account(
    ann: BrowserPage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ann.open("/operator")
    looked_at(ann, "operator", tmp_path_factory)
    ann.page.get_by_role("link", name="All accounts").click()
    ann.page.get_by_label("E-mail address", exact=True).fill("eve@example.org")
    ann.page.get_by_label("Plan").select_option("builder")
    looked_at(ann, "accounts", tmp_path_factory)
    ann.page.get_by_label("E-mail address", exact=True).fill("eve@example.org")
    ann.page.get_by_label("Plan").select_option("builder")
    ann.page.get_by_role("button", name="Create the account").click()
    ann.page.get_by_role("heading", name="eve@example.org").wait_for()
    assert ann.page.locator("#made").inner_text().startswith("sk_live_")
    assert ann.page.locator("#made-provisioning").inner_text().startswith("sk_mgmt_")
    looked_at(ann, "account", tmp_path_factory)
    ann.page.get_by_role("button", name="I have saved them").click()
    assert ann.page.locator("#made").count() == 0
    ann.page.get_by_text("Delete the account").click()
    ann.page.get_by_label("Its e-mail address").fill("eve@example.org")
    ann.page.get_by_role("button", name="Delete for good").click()
    ann.page.get_by_role("heading", name="Accounts").wait_for()
    assert ann.page.get_by_text("eve@example.org").count() == 0


def test_the_title_shows_per_cent_while_a_list_runs(
    ann: BrowserPage, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ann.open("/lists")
    file = tmp_path / "grey.csv"
    file.write_text("email\nclara.nowak@harbour-books.test\nphansen@greylist-guild.test\n")
    ann.send_list(file, rechecks=True)
    ann.start()
    ann.page.get_by_text("asked again at").wait_for()
    ann.page.wait_for_function("document.title.startsWith('100 % – ')")
    ann.open()
    ann.page.get_by_role("link", name="grey.csv").wait_for()
    ann.page.go_back()
    ann.page.get_by_role("button", name="Stop").click()
    ann.wait_for_status("cancelled")
    assert not ann.page.title().startswith("100 %")
    ann.page.get_by_role("link", name="clara.nowak@").click()
    expect(ann.page.get_by_role("complementary", name="Row")).to_contain_text("confidence")
    talk = ann.page.get_by_role("region", name="Conversation")
    talk.wait_for()
    assert "RCPT TO:<clara.nowak@" in talk.inner_text()
    assert talk.locator(".ours").count() > 2
    ann.page.get_by_role("button", name="Ask again").click()
    ann.page.get_by_role("region", name="Asked again").wait_for()
    ann.page.get_by_role("button", name="Copy as text").last.click()
    ann.page.get_by_role("button", name="Copied").wait_for()
    assert "C: RCPT TO:<clara" in ann.page.evaluate("navigator.clipboard.readText()")
    assert ann.barriers() == []
    looked_at(ann, "list", tmp_path_factory)
    ann.open("/lists")
    assert ann.page.locator("main time").count() == 1
    looked_at(ann, "lists", tmp_path_factory)


def test_a_page_that_renews_itself_says_when_the_connection_is_lost(ann: BrowserPage) -> None:
    lost = ann.page.get_by_text("No connection. This page shows what was known at")
    expect(lost).to_be_hidden()
    ann.page.context.set_offline(True)
    expect(lost).to_be_visible()
    expect(ann.page.locator("#lost")).to_contain_text(re.compile(r"known at \d\d:\d\d\."))
    ann.page.context.set_offline(False)
    expect(lost).to_be_hidden()
    ann.faults.clear()  # the browser notes the requests that failed


def test_a_shared_report_is_printed_without_what_is_around_it(
    ann: BrowserPage, tmp_path: Path
) -> None:
    file = tmp_path / "one.csv"
    file.write_text("email\nclara.nowak@harbour-books.test\n")
    ann.send_list(file)
    ann.clean()
    ann.page.goto(f"{ann.page.url}/share")
    ann.page.get_by_role("button", name="Make a link").click()
    link = ann.page.locator("#link").inner_text()
    ann.page.goto(link.replace("https://", "http://"))
    expect(ann.page.locator(".flap")).to_be_visible()
    ann.page.emulate_media(media="print")
    expect(ann.page.locator(".flap")).to_be_hidden()
    expect(ann.page.get_by_role("heading", name="Why")).to_be_visible()
    width = ann.page.evaluate("document.querySelector('.letter').getBoundingClientRect().width")
    assert width == ann.page.evaluate("document.documentElement.clientWidth")
