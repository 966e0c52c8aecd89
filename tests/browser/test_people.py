"""People in a real browser: an invitation, the sign-in by a link, a viewer, and a stranger's link."""

import re
from collections.abc import Iterator
from email.message import EmailMessage
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


def link_in(mail: EmailMessage) -> str:
    found = re.search(r"http://\S+/sign-in/link\?token=\S+", mail.get_content())
    assert found is not None
    return found[0]


def invite(ann: BrowserPage, email: str, role: str) -> None:
    ann.open("/people")
    if not ann.page.get_by_label("E-mail address").is_visible():
        ann.page.get_by_text("Invite a person").click()
    ann.page.get_by_label("E-mail address").fill(email)
    ann.page.get_by_label(role, exact=False).check()
    ann.page.get_by_role("button", name="Send the invitation").click()
    expect(ann.page.get_by_role("region", name="People")).to_contain_text(email)


def ask_for_link(person: BrowserPage, email: str) -> None:
    person.open("/sign-in")
    person.page.get_by_label("E-mail address").fill(email)
    person.page.get_by_role("button", name="Send me a link").click()
    expect(person.page.get_by_role("heading", name="Check your mail")).to_be_visible()


def enter(person: BrowserPage, link: str) -> None:
    person.page.goto(link)
    person.page.get_by_role("button", name="Sign in").click()
    person.page.get_by_role("heading", name="Overview").wait_for()


def test_a_team_signs_in_by_links(ann: BrowserPage, another: BrowserPage, sink: Sink) -> None:
    invite(ann, "ann@example.org", "Owner")
    sink.next()
    ann.sign_out()
    looks_right(ann)
    ask_for_link(ann, "ann@example.org")
    looks_right(ann)
    link = link_in(sink.next())
    another.page.goto(link)  # a stranger, who has read the mail
    expect(another.page.get_by_text("This link signs nobody in.")).to_be_visible()
    another.faults.clear()  # the browser notes the 403
    ann.page.goto(link)
    looks_right(ann)
    enter(ann, link)
    invite(ann, "bob@example.org", "Viewer")
    enter(another, link_in(sink.next()))
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
