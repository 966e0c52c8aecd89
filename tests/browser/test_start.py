"""The first run in a real browser: from the keys to steps that tick themselves off."""

import re

import httpx
from playwright.sync_api import expect

from tests.api.service_process import PATIENCE_S
from tests.browser.pages import BrowserPage


def test_the_first_steps_tick_themselves_off_without_a_reload(ann: BrowserPage) -> None:
    ann.open("/start")
    assert ann.key in ann.page.locator("#curl").inner_text()
    assert ann.page.get_by_text(ann.provisioning_key).count() == 0
    ann.page.get_by_role("button", name="Clean the sample list").click()
    ann.wait_for_status("done")
    ann.open("/start")
    expect(ann.page.locator("#tick-sample")).to_have_class(re.compile("done"))
    expect(ann.page.locator("#tick-verify")).not_to_have_class(re.compile("done"))
    httpx.post(
        f"{ann.service.url}/v1/email/verify",
        json={"email": "ann@mailinator.com"},
        headers={"Authorization": f"Bearer {ann.key}"},
        timeout=PATIENCE_S,
    )
    expect(ann.page.locator("#tick-verify")).to_have_class(re.compile("done"))
    expect(ann.page.get_by_text("2 of 3 done.")).to_be_visible()
