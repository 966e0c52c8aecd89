"""The service behind nginx as deploy/nginx.conf has it: HTTP/2 outside, persistent HTTP/1.1 inside."""

import json
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from mailprobe.bench.lab import Lab
from tests.api.service_fixture import BATCH, STREAM, VERIFY
from tests.api.service_process import Credentials, Running, free_bind, make_place, running
from tests.peers.programs.nginx import open_nginx
from tests.peers.programs.shipped_proxy import NAME, Proxy

WIDE = "[free]\nrate_limit_per_min = 1_000_000\nmonthly_calls = 1_000_000\n"
TIMEOUT_S = 60.0
ESTABLISHED = "01"
APART_S = 0.3  # the last line is made a second or more after the first


@dataclass(frozen=True)
class Front:
    """The service, nginx in front of it, and the credentials of an account."""

    service: Running
    proxy: Proxy
    credentials: Credentials


@pytest.fixture(scope="module")
def front(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    place = make_place(tmp_path_factory.mktemp("service") / "place", lab, WIDE)
    credentials = place.make_account("free")  # all its units are counted
    with running(place, bind=free_bind()) as service, open_nginx(service.port) as proxy:
        yield Front(service, proxy, credentials)


class Client:
    """An HTTP/2 client of nginx. It expects the name in nginx's certificate."""

    def __init__(self, http: httpx.AsyncClient, front: Front) -> None:
        self._http = http
        self._front = front

    def _build(self, method: str, path: str, **more: Any) -> httpx.Request:
        headers = {"host": NAME, "authorization": f"Bearer {self._front.credentials.key}"}
        headers.update(more.pop("headers", {}))
        return self._http.build_request(
            method,
            f"https://127.0.0.1:{self._front.proxy.port}{path}",
            headers=headers,
            extensions={"sni_hostname": NAME},
            **more,
        )

    async def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        response = await self._http.send(self._build(method, path, **more))
        assert response.http_version == "HTTP/2"
        return response

    async def hang_up(self) -> None:
        """Close the connection with all its streams."""
        await self._http.aclose()

    async def stream(self, emails: list[str]) -> httpx.Response:
        request = self._build("POST", STREAM, json={"emails": emails})
        return await self._http.send(request, stream=True)


@pytest.fixture
async def client(front) -> AsyncIterator[Client]:
    trusted = ssl.create_default_context(cafile=str(front.proxy.authority))
    async with httpx.AsyncClient(
        http2=True, verify=trusted, trust_env=False, timeout=TIMEOUT_S
    ) as http:
        yield Client(http, front)


def slow_and_quick(lab: Lab) -> list[str]:
    """An address that needs no network, and addresses whose hosts time out."""
    return ["no address", *lab.addresses["timed_out"]]


async def test_a_stream_comes_line_by_line(front, client, lab):
    emails = slow_and_quick(lab)
    arrived_at: dict[str, float] = {}
    response = await client.stream(emails)
    assert (response.status_code, response.http_version) == (200, "HTTP/2")
    async for line in response.aiter_lines():
        arrived_at[json.loads(line)["email"]] = trio.current_time()
    assert arrived_at.keys() == set(emails)
    assert max(arrived_at.values()) - arrived_at["no address"] > APART_S


async def test_a_service_that_is_away_costs_no_request(front, client):
    """nginx began without it, sends it a request now and then, and asks the other one."""
    for _ in range(10):
        response = await client.request("POST", VERIFY, json={"email": "ann@gmial.com"})
        assert response.status_code == 200
    front.proxy.program.wait_for_log(
        f"127.0.0.1:{front.proxy.away_port}, 127.0.0.1:{front.service.port}\n"
    )


async def test_one_connection_to_the_service_is_used_again(front, client, lab):
    for _ in range(20):
        response = await client.request("POST", VERIFY, json={"email": "ann@gmial.com"})
        assert response.status_code == 200
    response = await client.request(
        "POST", BATCH, json={"emails": lab.addresses["deliverable"][:5]}
    )
    assert {each["status"] for each in response.json()["results"]} == {"deliverable"}
    assert states_of_connections_to(front.service.port) == [ESTABLISHED]


def states_of_connections_to(port: int) -> list[str]:
    """The states of the TCP connections from this machine to that port, in TIME_WAIT too."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[3] for row in rows if int(row[2].partition(":")[2], 16) == port]


async def test_a_body_that_is_too_large_is_refused_with_the_services_error(front, client):
    response = await client.request("POST", VERIFY, content=b" " * (2 * 1024 * 1024 + 100))
    assert_refused(response, 413, "payload_too_large")
    response = await client.request("POST", VERIFY, json={"email": "ann@gmial.com"})
    assert response.status_code == 200


async def test_refusals_pass_through_whole(front, client):
    body = {"email": "ann@gmial.com"}
    unknown_key = {"authorization": "Bearer sk_live_nobody"}
    assert_refused(
        await client.request("POST", VERIFY, json=body, headers=unknown_key), 401, "invalid_api_key"
    )
    assert_refused(await client.request("POST", VERIFY, json={}), 400, "invalid_request")
    assert_refused(await client.request("POST", "/nowhere", json=body), 404, "not_found")
    refused = await client.request("GET", VERIFY)
    assert_refused(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "POST"


def assert_refused(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    fields = response.json()
    assert fields.keys() == {"error", "message", "action", "docs"}
    assert fields["error"] == code
    assert response.headers["x-request-id"]


# httpx leaves its generators behind if a client stops in the middle of a body.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
async def test_a_client_that_hangs_up_stops_the_work_and_is_not_billed_for_it(front, client, lab):
    """The last test here: it stops the service."""
    emails = slow_and_quick(lab)
    before = await trio.to_thread.run_sync(front.service.manage, front.credentials, "/account")
    response = await client.stream(emails)
    async for line in response.aiter_lines():
        assert json.loads(line)["email"] == "no address"
        break
    await client.hang_up()
    await trio.to_thread.run_sync(front.service.stop)  # it ends open requests, and settles them
    with running(front.service.place) as again:
        after = await trio.to_thread.run_sync(again.manage, front.credentials, "/account")
    assert after["usage_this_month"] - before["usage_this_month"] < len(emails)
