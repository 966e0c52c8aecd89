"""Makes the pictures of the README and of every page anew, and of a run in a terminal.

make shots
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.text import Text

from mailprobe.bench.lab import Lab, start_lab
from tests.api.service_process import COMMAND, Place, make_place, running
from tests.browser.mail_sink import Sink, mail_sink
from tests.browser.pages import CHROMIUM, BrowserPage

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "dev/pictures"
LIST = ROOT / "examples/list.csv"
ADDRESS = "clara.nowak@harbour-books.test"
ADDRESSES = (ADDRESS, "vera.garcia-84@harbour-books.test", "ann@gmial.com", "a.young@gmail.com")
COLUMNS = 134
SIZE = {"width": 1100, "height": 720}
PAGES = {
    "overview": "/dashboard",
    "try": f"/dashboard/try?email={ADDRESS}",
    "lists": "/dashboard/lists",
    "jobs": "/dashboard/jobs",
    "keys": "/dashboard/keys",
    "limits": "/dashboard/caps",
    "people": "/dashboard/people",
    "audit": "/dashboard/audit",
    "first-steps": "/dashboard/start",
    "operator": "/dashboard/operator",
    "accounts": "/dashboard/operator/accounts",
    "docs": "/docs",
    "reference": "/docs/reference",
}
SIZES = ({"width": 1280, "height": 800}, {"width": 390, "height": 844})
QUALITY = 60  # of JPEG, in per cent: some 40 KB each
_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # its file would come from elsewhere


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, start_lab() as lab:
        record_terminal(lab, Path(folder))
        take_shots(lab, Path(folder) / "place")


def record_terminal(lab: Lab, folder: Path) -> None:
    """Run two commands as in a terminal with colours, and keep what they print as SVG."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    list_file = shutil.copytree(LIST.parent, folder / "examples") / LIST.name
    source = str(list_file.relative_to(folder))
    for words in (["verify", *ADDRESSES], ["clean", source, "-o", "out.csv", "--recheck", "0"]):
        console.print(Text(f"$ mailprobe {' '.join(words)}", style="bold"))
        env = {**os.environ, **lab.env, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
        done = subprocess.run(
            [*COMMAND, *words], cwd=folder, env={**env, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        printed = done.stdout + _without_progress(done.stderr)
        console.print(Text.from_ansi(printed.replace(f"{folder.resolve()}/", "")))
    svg = _FONT.sub("", console.export_svg(title="mailprobe"))
    (PICTURES / "terminal.svg").write_text(svg, "utf-8")


def _without_progress(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not re.search(r"\d+/s,", line))


def take_shots(lab: Lab, path: Path) -> None:
    """Photograph the overview, a cleaned list, and an address that was tried."""
    # What mail hosts take is waited for in minutes, which no picture shows.
    with mail_sink() as sink:
        place = make_place(
            path, lab, "[scale]\nrate_limit_per_min = 1000000\n", patience="0",
            alert_smtp_url=sink.url,
        )  # fmt: skip
        take_shots_of(place, sink)


def take_shots_of(place: Place, sink: Sink) -> None:
    with running(place) as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        ann = BrowserPage(browser.new_page(viewport=SIZE), service)  # type: ignore[arg-type]
        take_welcome(ann)
        ann.begin()
        take_pages(ann.page, {"overview-empty": f"{service.url}/dashboard"})
        # Before the list, whose refused addresses its host counts.
        ann.open("/try")
        ann.page.get_by_label("E-mail address").fill(ADDRESS)
        ann.page.keyboard.press("Enter")
        ann.page.get_by_role("region", name="Conversation").wait_for()
        ann.page.screenshot(path=PICTURES / "try.png")
        ann.send_list(LIST)
        take_pages(ann.page, {"survey": ann.page.url})
        ann.clean()
        ann.page.set_viewport_size(SIZE)  # type: ignore[arg-type]
        ann.page.emulate_media(color_scheme="light")
        cleaned = ann.page.url
        ann.page.screenshot(path=PICTURES / "list.png")
        ann.open()
        ann.page.screenshot(path=PICTURES / "overview.png")
        ann.invite("ann@example.org", "Owner")
        ann.invite("bob@example.org", "Viewer")
        take_pages(ann.page, {name: service.url + path for name, path in PAGES.items()})
        take_pages(ann.page, {"list": cleaned, "share": f"{cleaned}/share"})
        take_row(ann, cleaned)
        ann.page.goto(f"{cleaned}/share")
        ann.page.get_by_role("button", name="Make a link").click()
        report = ann.page.locator("#link").inner_text()
        ann.sign_out()
        take_pages(ann.page, {"report": report, "sign-in": f"{service.url}/dashboard/sign-in"})
        take_signing_in(ann, sink)
        browser.close()


def take_welcome(ann: BrowserPage) -> None:
    """The page of the first start's link."""
    take_pages(ann.page, {"welcome": ann.welcome_url})


def take_row(ann: BrowserPage, cleaned: str) -> None:
    """The panel of a row."""
    ann.page.set_viewport_size(SIZES[0])  # type: ignore[arg-type]
    ann.page.goto(cleaned)
    ann.page.locator(".results tbody a").nth(1).click()
    ann.page.get_by_role("complementary", name="Row").wait_for()
    take_page(ann.page, "row")


def take_signing_in(ann: BrowserPage, sink: Sink) -> None:
    """What follows the page of the sign-in, as far as the button of the link."""
    ann.ask_for_link("bob@example.org")
    take_page(ann.page, "sign-in-sent")
    ann.page.goto(sink.next_link("bob@example.org", of="Sign in"))
    take_page(ann.page, "sign-in-link")


def take_pages(page: Page, urls: Mapping[str, str]) -> None:
    """Photograph each page in light and dark, on a screen and on a phone."""
    (PICTURES / "pages").mkdir(exist_ok=True)
    for name, url in urls.items():
        page.goto(url)
        take_page(page, name)


def take_page(page: Page, name: str) -> None:
    """Photograph the page that is shown."""
    for size in SIZES:
        page.set_viewport_size(size)  # type: ignore[arg-type]
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            file = PICTURES / "pages" / f"{name}-{size['width']}-{scheme}.jpg"
            page.screenshot(path=file, type="jpeg", quality=QUALITY, animations="disabled")


if __name__ == "__main__":
    main()
