"""Signing in to a running service at an OpenID provider that is not ours."""

from collections.abc import Iterator

import httpx
import pytest
import trio

from mailprobe.bench.lab import Lab
from mailprobe.bench.load.private_postgres import free_port
from mailprobe.storage import open_store
from tests.api.service_process import Place, Running, make_place, running
from tests.peers.programs import oidc_provider

INVITED, UNVERIFIED, STRANGER = "ann@shop.test", "bob@shop.test", "eve@shop.test"


@pytest.fixture(scope="module")
def service(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service of one account, and its provider. Ann and Bob are invited."""
    program = oidc_provider.built()
    if program is None:
        pytest.skip(f"Go, which builds {oidc_provider.MODULE}, is not here or cannot have it")
    folder = tmp_path_factory.mktemp("provider")
    own_port, port = free_port(), free_port()
    redirect_url = f"http://127.0.0.1:{own_port}/dashboard/sign-in/openid/callback"
    users = [
        oidc_provider.user(INVITED, verified=True), oidc_provider.user(STRANGER, verified=True),
        oidc_provider.user(UNVERIFIED, verified=False),
    ]  # fmt: skip
    with oidc_provider.oidc_provider(program, folder, port, redirect_url, users) as issuer:
        place = make_place(
            folder / "place", lab, "", oidc_issuer=issuer, oidc_client_id=oidc_provider.CLIENT_ID,
            oidc_client_secret=oidc_provider.CLIENT_SECRET, log="info",
        )  # fmt: skip
        account_id = place.make_account("free").account_id
        trio.run(invite, place, account_id)
        with running(place, bind=f"127.0.0.1:{own_port}") as service:
            yield service


async def invite(place: Place, account_id: str) -> None:
    async with open_store(place.database, secret_key=place.secret_key) as store:
        for email in (INVITED, UNVERIFIED):
            await store.invite_person(account_id, email, "member")


def come_back(service: Running, browser: httpx.Client, email: str) -> httpx.Response:
    """Leave for the provider, sign in there, and come back."""
    left = browser.get(f"{service.url}/dashboard/sign-in/openid?next=/dashboard/keys")
    assert left.status_code == 303
    return browser.get(oidc_provider.sign_in(left.headers["location"], email))


def test_an_invited_person_signs_in(service: Running) -> None:
    with httpx.Client(trust_env=False) as browser:
        got = come_back(service, browser, INVITED)
        assert (got.status_code, got.headers["location"]) == (303, "/dashboard/keys")
        page = browser.get(f"{service.url}/dashboard/keys")
        assert "Account menu of ann@shop.test" in page.text


@pytest.mark.parametrize(
    ("email", "words"),
    [
        (UNVERIFIED, "did not work."),
        (STRANGER, "Nobody has invited this address."),
    ],
)
def test_an_address_that_is_unverified_or_unknown_stays_outside(
    service: Running, email: str, words: str
) -> None:
    with httpx.Client(trust_env=False) as browser:
        got = come_back(service, browser, email)
        assert got.status_code == 403
        assert words in got.text
        assert browser.get(f"{service.url}/dashboard").status_code == 303


def test_a_code_of_another_browser_is_refused(service: Running) -> None:
    with httpx.Client(trust_env=False) as ann, httpx.Client(trust_env=False) as eve:
        left = ann.get(f"{service.url}/dashboard/sign-in/openid")
        eve.get(f"{service.url}/dashboard/sign-in/openid")
        answer = oidc_provider.sign_in(left.headers["location"], INVITED)
        assert eve.get(answer).status_code == 403
        assert ann.get(answer).status_code == 303
        log = service.place.log.read_text()
        assert httpx.URL(answer).params["code"] not in log
