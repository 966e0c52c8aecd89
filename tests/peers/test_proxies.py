"""Each shipped proxy passes on a large list, a stream, a live socket and the dashboard."""

import json
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import wrap_client_stream

from tests.api.service_fixture import STREAM, VERIFY
from tests.api.service_process import Credentials, Running, free_bind, make_place, running
from tests.peers.programs.caddy import open_caddy
from tests.peers.programs.nginx import open_nginx
from tests.peers.programs.shipped_proxy import NAME, Proxy

WIDE = "[builder]\nrate_limit_per_min = 1_000_000\nmonthly_calls = 1_000_000\n"
TIMEOUT_S = 60.0
LIST_OCTETS = 20 * 1024 * 1024
ROW_CHARACTERS = 24_000
LIVE = "/v1/email/verify/live"
PROXIES = {"nginx": open_nginx, "caddy": open_caddy}


@dataclass(frozen=True)
class Front:
    """The service behind a proxy, an account of it, and a client that trusts the proxy."""

    service: Running
    proxy: Proxy
    credentials: Credentials
    http: httpx.Client

    def url(self, path: str) -> str:
        return f"https://127.0.0.1:{self.proxy.port}{path}"

    def request(self, method: str, path: str, **more: object) -> httpx.Response:
        headers = {"host": self.proxy.host, **more.pop("headers", {})}  # type: ignore[dict-item]
        sni = {"sni_hostname": NAME}
        return self.http.request(method, self.url(path), headers=headers, extensions=sni, **more)  # type: ignore[arg-type]

    def refusal(self, path: str, content: bytes) -> tuple[str, str]:
        """The status and the error of a request that is answered before its body was sent.

        By curl: over HTTP/2, httpx waits for a window that a stream with an answer never opens.
        """
        target = [
            "--connect-to",
            f"{NAME}::127.0.0.1:{self.proxy.port}",
            f"https://{self.proxy.host}",
        ]
        target[-1] += path
        field = f"Authorization: {self.key['authorization']}"
        command = ["curl", "-sS", "--http2", "--cacert", str(self.proxy.authority), "-H", field]
        command += ["--data-binary", "@-", "-w", "\n%{http_code}", *target]
        done = subprocess.run(command, input=content, capture_output=True, timeout=TIMEOUT_S)
        body, _, status = done.stdout.decode().rpartition("\n")
        assert body, done.stderr
        return status, json.loads(body)["error"]

    @property
    def key(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.credentials.key}"}


@pytest.fixture(scope="module", params=PROXIES)
def front(request, lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("service") / "place"
    place = make_place(folder, lab, WIDE, base_url=f"https://{NAME}")
    credentials = place.make_account("builder")  # 20 MB are too much for `free`
    with (
        running(place, bind=free_bind()) as service,
        PROXIES[request.param](service.port) as proxy,
        httpx.Client(
            http2=True,
            verify=ssl.create_default_context(cafile=str(proxy.authority)),
            trust_env=False,
            timeout=TIMEOUT_S,
        ) as http,
    ):
        yield Front(service, proxy, credentials, http)


def large_list() -> tuple[bytes, int]:
    """Wide rows of few addresses: what is tried is the way of the octets."""
    row = f"ann@mailinator.com,{'n' * ROW_CHARACTERS}\n"
    rows = LIST_OCTETS // len(row)
    return ("email,note\n" + row * rows).encode(), rows


def test_a_list_of_20_mb_arrives_and_too_large_a_body_gets_the_services_error(front: Front) -> None:
    content, rows = large_list()
    made = front.request("POST", "/v1/lists?name=wide.csv", headers=front.key, content=content)
    assert (made.status_code, made.http_version) == (202, "HTTP/2"), made.text
    assert made.json()["rows"] == rows
    many = b" " * (2 * 1024 * 1024 + 100)
    assert front.refusal(VERIFY, many) == ("413", "payload_too_large")


def test_a_streams_lines_come_as_they_are_made(front: Front, lab) -> None:
    emails = ["no address", *lab.addresses["timed_out"][:3]]
    with front.http.stream(
        "POST",
        front.url(STREAM),
        headers={"host": front.proxy.host, **front.key},
        json={"emails": emails},
        extensions={"sni_hostname": NAME},
    ) as response:
        came = [(json.loads(line)["email"], time.monotonic()) for line in response.iter_lines()]
    assert {email for email, _ in came} == set(emails)
    assert came[0][0] == "no address"
    assert came[-1][1] - came[0][1] > 0.3  # the last line is made a second or more after the first


async def socket_lines(
    front: Front, sent: list[str], headers: dict[str, str], last: str
) -> list[dict[str, Any]]:
    """Open a live socket through the proxy; send these lines, and read until a line of this type."""
    trusted = ssl.create_default_context(cafile=str(front.proxy.authority))
    lines: list[dict[str, Any]] = []
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    with trio.fail_after(TIMEOUT_S):
        tcp = await trio.open_tcp_stream("127.0.0.1", front.proxy.port)
        async with (
            trio.SSLStream(tcp, trusted, server_hostname=NAME) as tls,
            trio.open_nursery() as nursery,
        ):
            socket = await wrap_client_stream(
                nursery, tls, front.proxy.host, LIVE, extra_headers=given
            )
            await socket.send_message("\n".join(sent))
            while not any(line["type"] in (last, "error") for line in lines):
                message = str(await socket.get_message())
                lines += [json.loads(line) for line in message.split("\n")]
            await socket.aclose()
            nursery.cancel_scope.cancel()
    return lines


async def test_a_live_socket_opens_and_answers(front: Front) -> None:
    lines = await socket_lines(front, ["ann@mailinator.com"], front.key, "result")
    assert [line["status"] for line in lines if line["type"] == "result"] == ["invalid"]


def test_a_person_signs_in_sends_a_list_and_sees_it(front: Front) -> None:
    """The dashboard compares Origin and Host, ports and all."""
    origin = {"origin": f"https://{front.proxy.host}"}
    form = {"key": front.credentials.provisioning_key}
    entered = front.request("POST", "/dashboard/sign-in", headers=origin, data=form)
    assert entered.status_code == 303, entered.text
    cookie = entered.headers["set-cookie"].partition(";")[0]
    page = front.request("GET", "/dashboard/lists", headers={"cookie": cookie})
    assert page.status_code == 200
    [csrf] = re.findall(r'<meta name="csrf" content="([^"]+)">', page.text)
    content, _ = large_list()
    ours = {"cookie": cookie, "x-csrf-token": csrf, **origin}
    kind = {"content-type": "application/octet-stream"}
    sent = front.request(
        "POST",
        "/dashboard/lists?name=a.csv&column=&recheck=0",
        headers=ours | kind,
        content=content,
    )
    assert sent.status_code == 201, sent.text
    number = sent.headers["location"].rpartition("/")[2]
    with front.http.stream(
        "GET",
        front.url(f"/dashboard/lists/{number}/events"),
        headers={"host": front.proxy.host, "cookie": cookie},
        extensions={"sni_hostname": NAME},
    ) as events:
        assert next(events.iter_lines()) == "event: progress"


def test_the_log_has_neither_queries_nor_headers(front: Front) -> None:
    front.request("GET", "/dashboard/welcome?token=s3cret", headers={"cookie": "c00kie=1"})
    front.proxy.program.wait_for_log("/dashboard/welcome")
    log = (front.proxy.program.folder / "access.log").read_text("utf-8")
    assert "s3cret" not in log
    assert "c00kie" not in log
