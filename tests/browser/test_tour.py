"""The tour: from the link of the first start to the rows one wants, without the address bar."""

import csv
from pathlib import Path

from tests.browser.pages import BrowserPage

ROOT = Path(__file__).parents[2]


def test_a_newcomer_reaches_a_filtered_list_by_clicks_alone(
    visitor: BrowserPage, tmp_path: Path
) -> None:
    """Only the link that `serve` prints is opened; everything after it is clicked or typed."""
    page = visitor.page
    visitor.begin()
    page.get_by_role("navigation", name="Dashboard").get_by_role("link", name="Lists").click()
    page.get_by_role("heading", name="Lists", level=1).wait_for()
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Ask again").uncheck()
    page.set_input_files("#file", str(ROOT / "examples/list.csv"))
    visitor.start()
    visitor.wait_for_status("done")
    page.get_by_role("link", name="Drop", exact=True).click()
    page.get_by_text("Download these rows").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    assert download.value.suggested_filename == "list.drop.csv"
    download.value.save_as(tmp_path / "list.csv")
    with (tmp_path / "list.csv").open(encoding="utf-8", newline="") as file:
        lights = {row["light"] for row in csv.DictReader(file)}
    assert lights == {"RED_LIGHT"}
