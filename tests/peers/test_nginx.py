"""The service behind nginx as docs/operating.md has it: HTTP/2 outside, HTTP/1.1 kept alive inside."""

import json
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trio

from mailprobe.bench.lab import Lab, start_lab
from tests.api.service_fixture import BATCH, STREAM, VERIFY
from tests.api.service_process import Credentials, Running, free_bind, make_place, running
from tests.peers.nginx import NAME, Nginx, nginx

WIDE = "[free]\nrate_limit_per_min = 1_000_000\nmonthly_calls = 1_000_000\n"
PATIENCE_S = 60.0
ESTABLISHED, TIME_WAIT = "01", "06"
APART_S = 0.3  # the last line is made a second or more after the first


@dataclass(frozen=True)
class Front:
    """The service, nginx before it, and who may ask."""

    service: Running
    proxy: Nginx
    who: Credentials


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def front(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    place = make_place(tmp_path_factory.mktemp("service") / "place", lab, WIDE)
    who = place.make_account("free")  # whose every unit is counted
    with running(place, bind=free_bind()) as service, nginx(service.port) as proxy:
        yield Front(service, proxy, who)


class Client:
    """One HTTP/2 client of nginx's, with the name that its certificate bears."""

    def __init__(self, http: httpx.AsyncClient, front: Front) -> None:
        self._http = http
        self._front = front

    def request(self, method: str, path: str, **more: object) -> httpx.Request:
        headers = {"host": NAME, "authorization": f"Bearer {self._front.who.key}"}
        headers.update(more.pop("headers", {}))
        return self._http.build_request(
            method,
            f"https://127.0.0.1:{self._front.proxy.port}{path}",
            headers=headers,
            extensions={"sni_hostname": NAME},
            **more,
        )

    async def ask(self, method: str, path: str, **more: object) -> httpx.Response:
        answer = await self._http.send(self.request(method, path, **more))
        assert answer.http_version == "HTTP/2"
        return answer

    async def hang_up(self) -> None:
        """Close the connection, whatever is open on it."""
        await self._http.aclose()

    async def stream(self, emails: list[str]) -> httpx.Response:
        asked = self.request("POST", STREAM, json={"emails": emails})
        return await self._http.send(asked, stream=True)


@pytest.fixture
async def client(front) -> AsyncIterator[Client]:
    trusted = ssl.create_default_context(cafile=str(front.proxy.authority))
    async with httpx.AsyncClient(
        http2=True, verify=trusted, trust_env=False, timeout=PATIENCE_S
    ) as http:
        yield Client(http, front)


def slow_and_quick(lab: Lab) -> list[str]:
    """An address that needs no asking, and those whose hosts outlast a clock."""
    return ["no address", *lab.addresses["timed_out"]]


async def test_a_stream_comes_line_by_line(front, client, lab):
    emails = slow_and_quick(lab)
    came: dict[str, float] = {}
    answer = await client.stream(emails)
    assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
    async for line in answer.aiter_lines():
        came[json.loads(line)["email"]] = trio.current_time()
    assert came.keys() == set(emails)
    assert max(came.values()) - came["no address"] > APART_S


async def test_one_connection_to_the_service_is_used_again(front, client, lab):
    for _ in range(20):
        answer = await client.ask("POST", VERIFY, json={"email": "ann@gmial.com"})
        assert answer.status_code == 200
    answer = await client.ask("POST", BATCH, json={"emails": lab.addresses["deliverable"][:5]})
    assert {each["status"] for each in answer.json()["results"]} == {"deliverable"}
    assert states_of_connections_to(front.service.port) == [ESTABLISHED]


def states_of_connections_to(port: int) -> list[str]:
    """TCP connections from this machine to that port, those too that were closed a while ago."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[3] for row in rows if int(row[2].partition(":")[2], 16) == port]


async def test_a_body_that_is_too_large_is_refused_in_the_services_words(front, client):
    answer = await client.ask("POST", VERIFY, content=b" " * (2 * 1024 * 1024 + 100))
    assert_refused(answer, 413, "payload_too_large")
    answer = await client.ask("POST", VERIFY, json={"email": "ann@gmial.com"})
    assert answer.status_code == 200


async def test_refusals_pass_through_whole(front, client):
    asked = {"email": "ann@gmial.com"}
    nobody = {"authorization": "Bearer sk_live_nobody"}
    assert_refused(
        await client.ask("POST", VERIFY, json=asked, headers=nobody), 401, "invalid_api_key"
    )
    assert_refused(await client.ask("POST", VERIFY, json={}), 400, "invalid_request")
    assert_refused(await client.ask("POST", "/nowhere", json=asked), 404, "not_found")
    refused = await client.ask("GET", VERIFY)
    assert_refused(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "POST"


def assert_refused(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    fields = answer.json()
    assert fields.keys() == {"error", "message", "action", "docs"}
    assert fields["error"] == code
    assert answer.headers["x-request-id"]


# Whoever leaves httpx in the middle of a body leaves its generators behind.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
async def test_a_client_that_hangs_up_stops_the_work_and_is_not_billed_for_it(front, client, lab):
    """The last test here: it stops the service."""
    emails = slow_and_quick(lab)
    before = await trio.to_thread.run_sync(front.service.manage, front.who, "/account")
    answer = await client.stream(emails)
    async for line in answer.aiter_lines():
        assert json.loads(line)["email"] == "no address"
        break
    await client.hang_up()
    await trio.to_thread.run_sync(front.service.stop)  # it ends what is open, and counts it
    with running(front.service.place) as again:
        after = await trio.to_thread.run_sync(again.manage, front.who, "/account")
    assert after["usage_this_month"] - before["usage_this_month"] < len(emails)
