"""Keys, limits and jobs in a real browser: light and dark, on a screen and on a phone."""

from typing import Any

import httpx
from playwright.sync_api import expect

from tests.api.service_process import PATIENCE_S
from tests.browser.pages import BrowserPage

PHONE: Any = {"width": 390, "height": 844}
SCREEN: Any = {"width": 1280, "height": 900}
NOWHERE = "https://hooks.nowhere.test:8443/mail"  # the lab has no such host


def looks_right(ann: BrowserPage) -> None:
    """No barrier in either colour scheme, and nothing wider than a phone."""
    schemes: tuple[Any, ...] = ("light", "dark")
    for scheme in schemes:
        # without motion: a link that is changing its colour has too little contrast
        ann.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert ann.barriers() == [], scheme
    ann.page.set_viewport_size(PHONE)
    assert not ann.is_wider_than_the_screen()
    ann.page.set_viewport_size(SCREEN)


def test_keys_show_who_made_them_and_a_wrong_form_keeps_what_was_typed(ann: BrowserPage) -> None:
    headers = {"Authorization": f"Bearer {ann.provisioning_key}"}
    url = f"{ann.service.url}/v1/management/keys"
    assert (
        httpx.post(
            url, json={"label": "by a program"}, headers=headers, timeout=PATIENCE_S
        ).status_code
        == 201
    )
    ann.open("/keys")
    rows = ann.page.get_by_role("region", name="Keys", exact=True).locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="by a program")).to_contain_text("another key")
    managing = ann.page.get_by_role("region", name="Provisioning keys").locator("tbody tr")
    expect(managing).to_contain_text("dashboard")
    expect(managing.get_by_text("Revoke")).to_have_count(0)
    looks_right(ann)
    ann.page.get_by_text("Create a key").click()
    ann.page.get_by_label("Name").fill("newsletter")
    expect(ann.page.get_by_label("Sites, such as")).to_be_hidden()
    ann.page.get_by_label("Form For web pages, on").check()
    ann.page.get_by_label("Sites, such as").fill("shop.example.org")
    ann.page.get_by_role("button", name="Create the key").click()
    expect(ann.page.get_by_role("alert").first).to_contain_text("No key was made")
    ann.faults.clear()  # the browser notes the 400
    expect(ann.page.get_by_label("Name")).to_have_value("newsletter")
    expect(ann.page.get_by_label("Sites, such as")).to_have_value("shop.example.org")
    looks_right(ann)
    ann.page.get_by_label("Name").fill("checkout")
    ann.page.get_by_label("API Verifies").check()
    ann.page.get_by_role("button", name="Create the key").click()
    ann.page.get_by_role("button", name="I have saved it").wait_for()
    looks_right(ann)
    ann.open("/caps")
    ann.page.get_by_label("Soft cap").fill("5")
    ann.page.get_by_label("Hard cap").fill("4")
    ann.page.get_by_role("button", name="Save").click()
    expect(ann.page.get_by_role("alert")).to_contain_text("Nothing was saved")
    ann.faults.clear()  # the browser notes the 400
    expect(ann.page.get_by_label("Hard cap")).to_have_value("4")
    looks_right(ann)
    ann.page.get_by_label("Hard cap").fill("6")
    ann.page.get_by_role("button", name="Save").click()
    expect(ann.page.get_by_role("status")).to_contain_text("Saved")
    looks_right(ann)
    expect(ann.page.get_by_text("This service sends no mail")).to_be_visible()
    looks_right(ann)


def test_a_test_callback_shows_what_was_sent_and_why_it_failed(ann: BrowserPage) -> None:
    ann.open("/jobs")
    expect(ann.page.get_by_role("link", name="How to get callbacks")).to_be_visible()
    looks_right(ann)
    ann.page.get_by_label("Address of the receiver").fill("https://127.0.0.1/")
    ann.page.keyboard.press("Enter")
    expect(ann.page.get_by_role("alert")).to_contain_text("No callback can go there")
    ann.faults.clear()  # the browser notes the 400
    ann.page.get_by_label("Address of the receiver").fill(NOWHERE)
    ann.page.get_by_label("Secret that signs it").fill("a long secret")
    ann.page.keyboard.press("Enter")
    ann.page.wait_for_url("**/jobs/*-*")
    expect(ann.page.locator("#job")).to_contain_text("Failing")
    expect(ann.page.locator("#job")).to_contain_text("no response")
    expect(ann.page.locator("#sent-body")).to_contain_text("deliverable@sandbox.test")
    expect(ann.page.locator("#sent-headers")).to_contain_text("X-Service-Signature: sha256=…")
    assert "a long secret" not in ann.page.content()
    looks_right(ann)
    job_id = ann.page.url.rpartition("/")[2]
    ann.page.get_by_role("button", name="Send it again").click()
    ann.page.wait_for_url(f"**/jobs/{job_id}")

    ann.open()
    ann.page.get_by_role("link", name="Open the job").click()
    ann.page.wait_for_url(f"**/jobs/{job_id}")
    ann.page.get_by_role("link", name="Jobs of hooks.nowhere.test:8443").click()
    expect(ann.page.get_by_label("Receiver", exact=True)).to_have_value("hooks.nowhere.test:8443")
    expect(ann.page.get_by_role("region", name="Jobs").locator("tbody tr")).to_have_count(1)
    looks_right(ann)
    ann.page.get_by_label("State").select_option("Done")
    ann.page.get_by_role("button", name="Show").click()
    ann.page.get_by_role("link", name="Show all jobs").click()
    ann.page.locator("h1").click()
    ann.page.keyboard.press("/")
    ann.page.keyboard.type(job_id)
    ann.page.keyboard.press("Enter")
    ann.page.wait_for_url(f"**/jobs/{job_id}")


def test_a_long_name_leaves_room_for_the_other_columns(ann: BrowserPage) -> None:
    """The keys, the audit log, the lists and what the operator has paused, at the width of a laptop."""
    headers = {"Authorization": f"Bearer {ann.provisioning_key}"}
    ann.page.request.post(
        f"{ann.service.url}/v1/management/keys", headers=headers, data={"label": "W" * 64}
    )
    ann.page.request.post(
        f"{ann.service.url}/v1/lists?start=0&name={'W' * 190}",
        headers={"Authorization": f"Bearer {ann.key}", "Content-Type": "text/plain"},
        data="ann@example.org\n",
    )
    long_domain = ".".join(["W" * 60] * 3) + ".example"
    ann.service.place.mailprobe("pause", "domain", long_domain, "--why", "W" * 200)
    for path in ("/keys", "/audit", "/lists", "/operator"):
        ann.open(path)
        assert "W" * 60 in ann.page.content().upper()
        cut = "tables => tables.filter(each => each.parentElement.scrollWidth > each.parentElement.clientWidth).length"
        assert ann.page.eval_on_selector_all("main table", cut) == 0, path
