"""Measures lists on one PostgreSQL: many on one process, then one on one and on three processes.

A reply takes 50 ms, each address has a host of its own, and a process may have few probes under
way. So it waits most of the time,
and what more processes buy does not depend on the cores of this machine. Every answer of the
list is checked, and its bill.
"""

import csv
import io
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from ...harness.figures import RESULTS, Figure, MissingRequirement
from ...load.private_postgres import NoPostgres, private_postgres
from ...load.service_process import PLANS, ServiceProcess, start_service
from ...load.smtp_sink import SmtpSink, start_sink
from . import fleet_lists

PROCESSES = 3
ROWS = 6_000
PROBES = 30  # under way in a process
DELAY_MS = 50.0
JOINED_S = 6.0  # every process has looked for lists once
MEASURED_MAX = 0.9  # of the list: from then on some processes have nothing left
POLL_S = 0.1
LIST_S = 300.0
SECRET = "A" * 43 + "="  # the processes of a database share it


def run() -> list[Figure]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            server = stack.enter_context(private_postgres())
        except NoPostgres as none:
            raise MissingRequirement(str(none)) from none
        of_lists = fleet_lists.run(server.new_database)
        sink = stack.enter_context(start_sink(hosts=ROWS, delay_ms=DELAY_MS, pipelining=False))
        one = _measure(sink, server.new_database(), 1)
        fleet = _measure(sink, server.new_database(), PROCESSES)
    return [
        *of_lists,
        Figure("one process: addresses", one, "a second"),
        Figure(f"{PROCESSES} processes: addresses", fleet, "a second"),
        Figure(f"{PROCESSES} processes, against one", fleet / one, "times"),
    ]


def _measure(sink: SmtpSink, database: str, processes: int) -> float:
    """Return the addresses a second of a list on so many processes; every answer is checked."""
    texts = [sink.mailbox(number, exists=number % 4 > 0) for number in range(ROWS)]
    with start_fleet(sink.env, database, processes) as services:
        headers = {"Authorization": f"Bearer {services[0].key}"}
        with httpx.Client(base_url=services[0].url, headers=headers, trust_env=False) as client:
            list_id = _upload(client, texts)
            rate = _rate(client, list_id)
            _check(client, list_id, texts)
        _check_bill(services[0], len(texts))
    return rate


@contextmanager
def start_fleet(
    lab_env: Mapping[str, str], database: str, processes: int
) -> Iterator[Sequence[ServiceProcess]]:
    """So many services of one database and one account, as long as the block lasts."""
    env = {
        **lab_env,
        "MAILPROBE_DATABASE": database,
        "MAILPROBE_SECRET_KEY": SECRET,
        "MAILPROBE_MAX_PROBES": str(PROBES),
    }
    with ExitStack() as stack:
        services: list[ServiceProcess] = []
        for _ in range(processes):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-", dir=RESULTS))
            account = services[0].account if services else None
            services.append(
                stack.enter_context(start_service(env, Path(folder), plans=PLANS, account=account))
            )
        yield services


def _upload(client: httpx.Client, texts: Sequence[str]) -> str:
    response = client.post(
        "/v1/lists",
        content="email\n" + "\n".join(texts) + "\n",
        headers={"Content-Type": "text/csv"},
    )
    list_id: str = response.raise_for_status().json()["list_id"]
    return list_id


def _rate(client: httpx.Client, list_id: str) -> float:
    """Return the addresses a second while every process takes part; waits until the list is done."""
    seen: list[tuple[float, int]] = []
    starts_at = time.monotonic() + JOINED_S
    ends_at = time.monotonic() + LIST_S
    while (state := _state(client, list_id))["status"] != "done":
        if time.monotonic() > ends_at:
            raise AssertionError(f"the list is not done after {LIST_S:g} s: {state}")
        if time.monotonic() > starts_at and state["answered"] <= MEASURED_MAX * ROWS:
            seen.append((time.monotonic(), state["answered"]))
        time.sleep(POLL_S)
    (began, first), (ended, last) = seen[0], seen[-1]
    return (last - first) / (ended - began)


def _state(client: httpx.Client, list_id: str) -> dict[str, Any]:
    state: dict[str, Any] = client.get(f"/v1/lists/{list_id}").raise_for_status().json()
    return state


def _check(client: httpx.Client, list_id: str, texts: Sequence[str]) -> None:
    """Check that each row is answered once, rightly, and billed once."""
    response = client.get(f"/v1/lists/{list_id}/results", params={"format": "csv"})
    rows = list(csv.DictReader(io.StringIO(response.raise_for_status().text)))
    assert [row["email"] for row in rows] == list(texts)
    for row in rows:
        expected = "deliverable" if row["email"].startswith("ok") else "undeliverable"
        if row["status"] != expected:
            raise AssertionError(f"{row['email']}: {row}")


def _check_bill(service: ServiceProcess, addresses: int) -> None:
    headers = {"Authorization": f"Bearer {service.account['provisioning_key']}"}
    url = f"{service.url}/v1/management/account"
    response = httpx.get(url, headers=headers, trust_env=False).raise_for_status()
    if (billed := response.json()["usage_this_month"]) != addresses:
        raise AssertionError(f"{addresses} addresses were billed as {billed}")
