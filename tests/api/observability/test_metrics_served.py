"""Metrics of a service in its own processes: the numbers match the requests sent."""

import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from mailprobe.bench.lab import Lab
from tests.api.cli.test_serve import Served, mailprobe, make_account, served
from tests.api.observability.counting import Read
from tests.api.service_fixture import BATCH, STREAM, VERIFY
from tests.api.service_process import free_bind
from tests.warm_lab import start_lab

PATIENCE_S = 20.0  # the longest wait; a busy machine takes seconds


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


@dataclass
class Measured:
    """A service and the URL of its metrics."""

    service: Served
    url: str

    def read(self) -> Read:
        answer = httpx.get(f"{self.url}/metrics", trust_env=False, verify=False, timeout=PATIENCE_S)
        assert answer.status_code == 200
        return Read(answer.text)

    def until(self, enough: Callable[[Read], bool]) -> Read:
        """Return the first page for which the condition holds."""
        end = time.monotonic() + PATIENCE_S
        while not enough(reported := self.read()):
            assert time.monotonic() < end, reported.text
        return reported


@contextmanager
def measured(place: Path, lab: Lab, *words: str) -> Iterator[Measured]:
    (place / "mailprobe.toml").write_text('metrics_bind = "127.0.0.1:0"\n')
    with served(place, lab, *words) as service:
        found = re.search(
            r"^mailprobe: metrics on (http://127.0.0.1:\d+)/metrics$", service.said, re.M
        )
        assert found, service.said
        yield Measured(service, found[1])


def workers_of(service: Served) -> list[int]:
    pid = service.process.pid
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def verify_everywhere(url: str, key: str, texts: list[str]) -> Counter[str]:
    """Verify all texts by single, batch and stream; count the statuses of the results."""
    headers = {"Authorization": f"Bearer {key}"}

    def post(path: str, body: object) -> httpx.Response:
        got = httpx.post(
            url + path, json=body, headers=headers, trust_env=False, timeout=PATIENCE_S
        )
        assert got.status_code == 200, got.text
        return got

    results = [post(VERIFY, {"email": text}).json() for text in texts]
    results += post(BATCH, {"emails": texts}).json()["results"]
    lines = post(STREAM, {"emails": texts}).text.splitlines()
    results += [httpx.Response(200, text=line).json() for line in lines]
    return Counter(each["status"] for each in results)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_metrics_page_counts_the_requests_of_all_workers(
    tmp_path: Path, lab: Lab, workers: str
) -> None:
    texts = [text for some in lab.addresses.values() for text in some[:2]]
    key = make_account(tmp_path, "scale")["key"]
    with measured(tmp_path, lab, "--workers", workers) as watched:
        url = watched.service.url
        statuses = verify_everywhere(url, key, texts)
        assert httpx.post(url + VERIFY, trust_env=False).status_code == 401
        assert httpx.get(f"{url}/metrics", trust_env=False).status_code == 404
        asked = len(texts) + 4
        watched.until(lambda reported: reported("mailprobe_requests_total") == asked)
        pages = [watched.read() for _ in range(6)]
        for reported in pages:
            verdicts = Counter[str]()
            for each in reported.shown("mailprobe_verdicts_total"):
                verdicts[each["status"]] += int(reported("mailprobe_verdicts_total", **each))
            assert verdicts == statuses
            assert reported("mailprobe_addresses_asked_total", operation="verify_email") == len(
                texts
            )
            assert reported("mailprobe_addresses_asked_total", operation="verify_batch") == len(
                texts
            )
            assert reported("mailprobe_addresses_asked_total", operation="verify_stream") == len(
                texts
            )
            assert reported("mailprobe_requests_total", status="200", operation="verify_batch") == 1
            assert reported("mailprobe_refusals_total", code="missing_api_key") == 1
            assert reported("mailprobe_requests_total", operation="none", status="404") == 1
            assert reported("mailprobe_workers") == int(workers)
            assert reported("mailprobe_requests_in_flight") == 0
        with httpx.Client(trust_env=False) as client:
            assert client.get(f"{watched.url}/v1/email/verify").status_code == 404
            assert client.get(watched.url).status_code == 404
        text = pages[0].text
        assert key[8:] not in text
        assert not [each for each in texts if (each.partition("@")[2] or each) in text]
        watched.service.stop()
        with pytest.raises(httpx.ConnectError):
            watched.read()


def is_replaced(reported: Read, started: float) -> bool:
    """Say whether both workers are up and more than `started` have been started."""
    return (
        reported("mailprobe_workers") == 2 and reported("mailprobe_workers_started_total") > started
    )


def test_a_workers_counters_outlive_it(tmp_path: Path, lab: Lab) -> None:
    key = make_account(tmp_path, "scale")["key"]
    with measured(tmp_path, lab, "--workers", "2") as watched:
        verify_everywhere(watched.service.url, key, ["nobody"] * 20)
        reported = watched.until(lambda reported: reported("mailprobe_workers") == 2)
        for pid in workers_of(watched.service):
            os.kill(pid, signal.SIGKILL)
            reported = watched.until(  # every live worker has published its states
                partial(is_replaced, started=reported("mailprobe_workers_started_total"))
            )
        assert reported("mailprobe_verdicts_total") == 60
        assert reported("mailprobe_requests_total") == 22
        assert reported("mailprobe_workers_started_total") == 4
        assert reported("mailprobe_addresses_under_way_max") == 2000
        assert watched.service.stop().count("exit=SIGKILL") == 2


def test_refusals_of_the_http_server_are_counted(tmp_path: Path, lab: Lab) -> None:
    with measured(tmp_path, lab) as watched:
        port = httpx.URL(watched.service.url).port
        with socket.create_connection(("127.0.0.1", port or 0)) as raw:
            raw.sendall(b"GET / HTTP/9.9\r\n\r\n")
            assert raw.recv(12) == b"HTTP/1.1 400"
        reported = watched.read()
        assert reported("mailprobe_refusals_total", operation="none", code="invalid_request") == 1
        assert reported("mailprobe_requests_total", operation="none", status="400") == 1
        said = watched.service.stop()
        assert '"code":"invalid_request"' in said


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_address_that_is_taken_is_one_line_that_names_the_setting(
    tmp_path: Path, workers: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "mailprobe.toml").write_text(f'metrics_bind = "{bind}"\n')
        done = mailprobe(tmp_path, "serve", "--bind", "127.0.0.1:0", "--workers", workers)
    assert done.returncode == 2
    assert done.stderr == (
        f"mailprobe: {bind} cannot be listened on for the metrics: Address already in use; "
        "name another address with MAILPROBE_METRICS_BIND, or turn it off with "
        "MAILPROBE_METRICS_BIND=\n"
    )
    assert not (tmp_path / "data").exists()


def test_the_metrics_have_an_address_of_their_own(tmp_path: Path) -> None:
    bind = free_bind()
    (tmp_path / "mailprobe.toml").write_text(f'metrics_bind = "{bind}"\n')
    done = mailprobe(tmp_path, "serve", "--bind", bind)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_without_an_address_nothing_is_measured(tmp_path: Path, lab: Lab) -> None:
    with served(tmp_path, lab) as service:
        assert "metrics" not in service.said
        assert "no effect" not in service.said
        service.stop()
