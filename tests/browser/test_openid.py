"""Signing in at an OpenID provider that is not ours, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from playwright.sync_api import BrowserContext, expect

from mailprobe.bench.lab import Lab
from mailprobe.bench.load.private_postgres import free_port
from mailprobe.storage import open_store
from tests.api.service_process import Place, Running, make_place, running
from tests.browser.conftest import PLANS
from tests.browser.pages import BrowserPage
from tests.browser.test_keys_and_jobs import looks_right
from tests.peers.programs import oidc_provider

INVITED, STRANGER = "bob@example.org", "eve@example.org"


@pytest.fixture
def service(tmp_path: Path, lab: Lab) -> Iterator[Running]:
    """A service of one account, into which Bob is invited, and its provider."""
    program = oidc_provider.built()
    if program is None:
        pytest.skip(f"Go, which builds {oidc_provider.MODULE}, is not here or cannot have it")
    own_port, port = free_port(), free_port()
    redirect_url = f"http://127.0.0.1:{own_port}/dashboard/sign-in/openid/callback"
    users = [oidc_provider.user(email, verified=True) for email in (INVITED, STRANGER)]
    with oidc_provider.oidc_provider(program, tmp_path, port, redirect_url, users) as issuer:
        place = make_place(
            tmp_path / "place", lab, PLANS, oidc_issuer=issuer,
            oidc_client_id=oidc_provider.CLIENT_ID,
            oidc_client_secret=oidc_provider.CLIENT_SECRET,
        )  # fmt: skip
        trio.run(invite, place, place.make_account("free").account_id)
        with running(place, bind=f"127.0.0.1:{own_port}") as service:
            yield service


async def invite(place: Place, account_id: str) -> None:
    async with open_store(place.database, secret_key=place.secret_key) as store:
        await store.invite_person(account_id, INVITED, "member")


@pytest.fixture
def person(service: Running, context: BrowserContext) -> BrowserPage:
    """A person in front of the browser, which goes to the provider and comes back."""
    return BrowserPage(context.new_page(), service)


def sign_in(person: BrowserPage, email: str) -> None:
    """Leave by the button, sign in at the provider's own page, and come back."""
    person.open("/keys")  # a page that only people see
    person.page.get_by_role("link", name="Sign in with localhost").click()
    person.page.locator("[name=username]").fill(email)
    person.page.locator("[name=password]").fill(oidc_provider.PASSWORD)
    person.page.locator("[type=submit], button").first.click()
    person.page.wait_for_url(f"{person.service.url}/**")


def test_an_invited_person_signs_in_and_comes_to_the_page_that_was_wanted(
    person: BrowserPage,
) -> None:
    person.open("/sign-in")
    looks_right(person)
    sign_in(person, INVITED)
    expect(person.page.get_by_role("heading", level=1)).to_have_text("API keys")
    expect(person.page.get_by_label(f"Account menu of {INVITED}")).to_be_visible()
    person.sign_out()


def test_a_stranger_stays_outside_and_learns_what_to_do(person: BrowserPage) -> None:
    sign_in(person, STRANGER)
    expect(person.page.get_by_text("Nobody has invited this address.")).to_be_visible()
    person.page.get_by_role("link", name="Go to the sign-in").click()
    expect(person.page.get_by_role("heading", name="Sign in")).to_be_visible()
    person.open("/keys")
    expect(person.page.get_by_role("heading", name="Sign in")).to_be_visible()
