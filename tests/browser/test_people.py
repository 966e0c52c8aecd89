"""People in a real browser: an invitation, the sign-in by a link, a viewer, and a stranger's link."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from mailprobe.bench.lab import Lab
from tests.api.service_process import Place, make_place
from tests.browser.conftest import OPERATOR, PLANS, WAIT_MS
from tests.browser.mail_sink import Sink, mail_sink
from tests.browser.pages import BrowserPage
from tests.browser.test_keys_and_jobs import looks_right


@pytest.fixture
def sink() -> Iterator[Sink]:
    with mail_sink() as sink:
        yield sink


@pytest.fixture
def place(tmp_path: Path, lab: Lab, sink: Sink) -> Place:
    """A service that mails."""
    return make_place(tmp_path / "place", lab, PLANS, operator=OPERATOR, alert_smtp_url=sink.url)


@pytest.fixture
def another(browser: Browser, ann: BrowserPage) -> Iterator[BrowserPage]:
    """Another person's browser."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    another = BrowserPage(context.new_page(), ann.service)
    yield another
    assert another.faults == []
    context.close()


PAGES = (
    "", "/start", "/lists", "/try", "/keys", "/caps", "/people", "/audit", "/jobs", "/operator",
    "/operator/accounts",
)  # fmt: skip


def enter(person: BrowserPage, link: str) -> None:
    person.page.goto(link)
    person.page.get_by_role("button", name="Sign in").click()
    person.page.get_by_role("heading", name="Overview").wait_for()


FORMS = "() => [...document.querySelectorAll('form[method=post]')].map((each) => each.getAttribute('action'))"
SEND = """(action) => {
    const form = document.createElement("form"), field = document.createElement("input");
    Object.assign(form, { method: "post", action });
    Object.assign(field, { name: "csrf", value: document.querySelector("meta[name=csrf]").content });
    form.append(field);
    document.body.append(form);
    form.submit();
}"""


def test_a_viewer_changes_nothing_by_any_form(
    ann: BrowserPage, another: BrowserPage, sink: Sink, tmp_path: Path
) -> None:
    """A viewer's browser sends each form that an owner's pages have, with the viewer's own token."""
    file = tmp_path / "list.csv"
    file.write_text("email\nclara.nowak@harbour-books.test\n")
    ann.send_list(file)
    ann.clean()
    done = ann.page.url
    ann.send_list(file)
    survey = ann.page.url
    ann.invite("ann@example.org", "Owner")
    ann.invite("bob@example.org", "Viewer")
    link = sink.next_link("bob@example.org")
    actions: set[str] = set()
    own = [f"{ann.service.url}/dashboard{path}" for path in PAGES]
    for url in (*own, survey, done, f"{done}/share", f"{done}/rows/0/0"):
        ann.page.goto(url)
        ann.page.wait_for_load_state("networkidle")
        actions |= set(ann.page.evaluate(FORMS))
    actions -= {"/dashboard/sign-out"}
    assert len(actions) >= 15, sorted(actions)
    enter(another, link)
    for url in (*own, survey, done):
        another.page.goto(url)
        shown = set(another.page.evaluate(FORMS))
        assert shown == {"/dashboard/sign-out"}, (url, shown)
    for action in sorted(actions):
        another.open()
        with another.page.expect_navigation():
            another.page.evaluate(SEND, action)
        expect(another.page.get_by_text("A viewer may not do this.")).to_be_visible()
    another.faults.clear()  # the browser notes each 403
    ann.page.goto(survey)
    expect(ann.page.get_by_role("button", name="Verify 1 address")).to_be_visible()


def test_a_team_signs_in_by_links(ann: BrowserPage, another: BrowserPage, sink: Sink) -> None:
    ann.invite("ann@example.org", "Owner")
    sink.next()
    ann.sign_out()
    looks_right(ann)
    ann.ask_for_link("ann@example.org")
    again = ann.page.get_by_role("button", name=re.compile(r"^Send again in \d+ s$"))
    expect(again).to_be_disabled()
    looks_right(ann)
    link = sink.next_link("ann@example.org", of="Sign in")
    another.page.goto(link)  # a stranger, who has read the mail
    expect(
        another.page.get_by_text("This link does not work here, or not any more.")
    ).to_be_visible()
    another.faults.clear()  # the browser notes the 403
    ann.page.goto(link)
    looks_right(ann)
    enter(ann, link)
    ann.invite("bob@example.org", "Viewer")
    enter(another, sink.next_link("bob@example.org"))
    another.open("/keys")
    expect(another.page.get_by_role("heading", name="API keys").first).to_be_visible()
    expect(another.page.locator("main form[method=post]")).to_have_count(0)
    another.open("/people")
    looks_right(another)
    ann.open("/people")
    looks_right(ann)
    ann.page.get_by_label("Remove bob@example.org", exact=True).click()
    ann.page.get_by_role("button", name="Remove bob@example.org for good").click()
    expect(ann.page.get_by_role("region", name="People")).not_to_contain_text("bob@example.org")
    another.open("/keys")
    expect(another.page.get_by_role("heading", name="Sign in")).to_be_visible()
