"""Reads the pages of a service, as a person who is signed in: over HTTP, and in Chromium."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import httpx
from msgspec import Struct

from ...harness.figures import MissingRequirement
from ..service_process import ServiceFailed, ServiceProcess

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

CHROMIUM = Path("/usr/bin/chromium")
SESSION = "mailprobe_session"
PATIENCE_S = 60.0
# The policy of our pages forbids Playwright to poll for it.
PAINTED = """() => new Promise((found) => new PerformanceObserver((list) => {
  for (const each of list.getEntriesByName("first-contentful-paint")) found(each.startTime);
}).observe({ type: "paint", buffered: true }))"""


class ReadTime(Struct, frozen=True):
    """The medians of what a page took: by the clock, and of the service's processor time."""

    ms: float
    cpu_ms: float


class PageReader(Struct, frozen=True):
    """A session of the dashboard."""

    client: httpx.Client
    service: ServiceProcess

    def time_of(self, path: str, rounds: int) -> ReadTime:
        """How long it takes to the whole page."""
        took = [self._time_of(path) for _ in range(rounds)]
        return ReadTime(median(each.ms for each in took), median(each.cpu_ms for each in took))

    def _time_of(self, path: str) -> ReadTime:
        cpu_s, began = self.service.cpu_s(), time.perf_counter()
        got = self.client.get(path)
        took_ms = (time.perf_counter() - began) * 1000
        if got.status_code != 200:
            raise ServiceFailed(f"{path}: {got.status_code}")
        return ReadTime(took_ms, (self.service.cpu_s() - cpu_s) * 1000)


@contextmanager
def signed_in(service: ServiceProcess) -> Iterator[PageReader]:
    with httpx.Client(base_url=service.url, trust_env=False, timeout=PATIENCE_S) as client:
        form = {"key": service.account["provisioning_key"]}
        got = client.post("/dashboard/sign-in", data=form, headers={"Origin": service.url})
        if got.status_code != 303:
            raise ServiceFailed(f"the sign-in: {got.status_code}")
        yield PageReader(client, service)


@contextmanager
def open_browser(service: ServiceProcess, reader: PageReader) -> Iterator["BrowserContext"]:
    """Chromium with the reader's session. Raises MissingRequirement."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise MissingRequirement(
            "playwright is not installed: pip install '.[bench]' in the checkout"
        ) from None
    if not CHROMIUM.exists():
        raise MissingRequirement(f"there is no {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context()
        cookie = reader.client.cookies[SESSION]
        context.add_cookies([{"name": SESSION, "value": cookie, "url": service.url}])
        yield context
        browser.close()


def painted_ms(context: "BrowserContext", urls: Sequence[str], rounds: int) -> dict[str, float]:
    """The median of the milliseconds from the request of each page to its first content."""
    page = context.new_page()
    found: dict[str, list[float]] = {url: [] for url in urls}
    for _ in range(rounds):
        for url in urls:
            page.goto(url)
            found[url].append(float(page.evaluate(PAINTED)))
    page.close()
    return {url: median(each) for url, each in found.items()}
