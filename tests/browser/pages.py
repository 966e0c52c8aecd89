"""What a person does in the dashboard, as methods."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Page, Request, expect

from tests.api.service_process import Running

CHROMIUM = "/usr/bin/chromium"
LIST_S = 120.0  # the longest wait for a list, on a busy machine


@dataclass
class BrowserPage:
    """A browser's page; `faults` are console errors, and requests to other hosts."""

    page: Page
    service: Running
    faults: list[str] = field(default_factory=list)
    key: str = ""
    provisioning_key: str = ""

    def __post_init__(self) -> None:
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", self._see)
        self.page.on("dialog", lambda dialog: dialog.accept())

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.text} ({message.location})")

    def _see(self, request: Request) -> None:
        if not request.url.startswith((self.service.url, "data:")):
            self.faults.append(f"a request to {request.url}")

    def open(self, path: str = "") -> None:
        self.page.goto(f"{self.service.url}/dashboard{path}")

    @property
    def welcome_url(self) -> str:
        """The link of the first start."""
        found = re.search(
            r"http://\S+/dashboard/welcome\?token=\S+", self.service.place.log.read_text()
        )
        assert found is not None
        return found[0]

    def begin(self) -> None:
        """Follow the link of the first start and make an account."""
        self.page.goto(self.welcome_url)
        self.page.get_by_label("E-mail address").fill("ann@example.org")
        if (own := self.page.get_by_label("My own account")).count():  # not beside Stripe
            own.uncheck()  # the tests are of a customer's
        self.page.get_by_role("button", name="Make the account").click()
        self.key = self.page.locator("#key").inner_text()
        self.provisioning_key = self.page.locator("#provisioning_key").inner_text()
        self.page.get_by_role("button", name="I have saved them").click()
        self.page.get_by_role("link", name="Go to the overview").click()
        self.page.get_by_role("heading", name="Overview").wait_for()

    def sign_out(self) -> None:
        """By the account's menu."""
        self.page.get_by_label("Account menu").click()
        self.page.get_by_role("button", name="Sign out").click()
        self.page.get_by_role("heading", name="Sign in").wait_for()

    def invite(self, email: str, role: str) -> None:
        self.open("/people")
        if not self.page.get_by_label("E-mail address").is_visible():
            self.page.get_by_text("Invite a person").click()
        self.page.get_by_label("E-mail address").fill(email)
        self.page.get_by_label(role, exact=False).check()
        self.page.get_by_role("button", name="Send the invitation").click()
        expect(self.page.get_by_role("region", name="People")).to_contain_text(email)

    def ask_for_link(self, email: str) -> None:
        self.open("/sign-in")
        self.page.get_by_label("E-mail address").fill(email)
        self.page.get_by_role("button", name="Send me a link").click()
        expect(self.page.get_by_role("heading", name="Check your mail")).to_be_visible()

    def heading(self) -> str:
        return self.page.locator("h1").inner_text()

    def send_list(self, file: Path, *, rechecks: bool = False) -> None:
        """Choose a file and see its preview."""
        self.open("/lists")
        self.page.get_by_text("Options", exact=True).click()
        self.page.get_by_label("Ask again").set_checked(rechecks)
        self.page.set_input_files("#file", str(file))  # which sends it
        self.page.wait_for_url("**/lists/*-*")

    def start(self) -> None:
        """Start the list that is shown."""
        self.page.get_by_role("button", name=re.compile(r"^Verify [\d,]+ address")).click()

    def clean(self) -> None:
        """Start the list that is shown, and wait for its end."""
        self.start()
        self.wait_for_status("done")

    def wait_for_status(self, status: str) -> None:
        """Wait until the list that is shown has this status, and its page has loaded itself anew for it.

        Until then its title shows per cent, and what a test did would be lost.
        """
        self.page.wait_for_function(
            "(status) => document.querySelector(`[data-status=${status}]`)"
            " && !document.title.includes(' % – ')",
            arg=status,
            timeout=LIST_S * 1000,
        )

    def barriers(self) -> list[Any]:
        """What axe-core finds, of any level."""
        found = Axe().run(self.page).response["violations"]
        return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]

    def is_wider_than_the_screen(self) -> bool:
        script = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        return bool(self.page.evaluate(script))
