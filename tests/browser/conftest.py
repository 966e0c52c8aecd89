"""A service with the lab, and a browser that fails a test for errors and outside requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from mailprobe.bench.lab import Lab, start_lab
from tests.api.service_process import Place, Running, make_place, running
from tests.browser.pages import CHROMIUM, BrowserPage

PLANS = "[scale]\nrate_limit_per_min = 1000000\n"
OPERATOR = "ann@example.org"
WAIT_MS = 30_000  # the longest wait for a page, on a busy machine

expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        yield browser
        browser.close()


@pytest.fixture
def place(tmp_path: Path, lab: Lab) -> Place:
    # Its subject is the pages, and mail hosts are waited for in minutes.
    return make_place(tmp_path / "place", lab, PLANS, operator=OPERATOR, patience="0")


@pytest.fixture
def service(place: Place) -> Iterator[Running]:
    """A service without any account."""
    with running(place) as service:
        yield service


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    # Without motion: a link that is changing its colour has too little contrast.
    context = browser.new_context(viewport={"width": 1200, "height": 900}, reduced_motion="reduce")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture
def visitor(service: Running, context: BrowserContext) -> Iterator[BrowserPage]:
    """A person in front of the browser, who has not signed in."""
    visitor = BrowserPage(context.new_page(), service)
    yield visitor
    assert visitor.faults == []


@pytest.fixture
def ann(visitor: BrowserPage) -> BrowserPage:
    """The person who has made the first account by the link, and sees the overview."""
    visitor.begin()
    return visitor
