"""Two services that share a database keep one connection limit: the lab's hosts count.

Each service has two workers. tests/storage/test_leases.py and
tests/api/quota/test_connection_leases.py check that no permit is used twice at once.
"""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
import trio

from mailprobe.bench.lab import Lab
from mailprobe.engine.verdict import LADDER, Outcome
from tests.api.service_fixture import BATCH
from tests.api.service_process import PATIENCE_S, Credentials, Running, make_place, running
from tests.api.stores import store_settings
from tests.warm_lab import start_lab

LIMIT = 2  # connections to an exchange: fewer than there are workers
LATE = 1  # a busy lab may see the next connection before it sees the end of the last one
BATCHES = 24
BATCH_SIZE = 50
REPEATS_MAX = 30
PLANS = """
[builder]
rate_limit_per_min = 1_000_000
monthly_calls = 1_000_000
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def services(lab: Lab, tmp_path_factory: Any) -> Iterator[list[Running]]:
    folder = tmp_path_factory.mktemp("fleet")
    shared = store_settings() or {"database": str(folder / "shared.db")}
    settings = {**shared, "host_connections": str(LIMIT)}
    places = [make_place(folder / name, lab, PLANS, **settings) for name in ("one", "two")]
    with ExitStack() as stack:
        services = [stack.enter_context(running(place, workers=2)) for place in places]
        yield services
        for service in services:
            service.stop()


@pytest.fixture(scope="module")
def who(services: list[Running]) -> Credentials:
    return services[0].place.make_account("builder")


def expected(lab: Lab) -> dict[str, str]:
    outcomes = (Outcome.DELIVERABLE, Outcome.UNDELIVERABLE)
    return {text: LADDER[each][0] for each in outcomes for text in lab.addresses[each.value]}


async def test_no_host_sees_more_connections_than_the_setting_says(
    lab: Lab, services: list[Running], who: Credentials
):
    truths, rng = expected(lab), random.Random(4)
    reported: list[tuple[str, str]] = []

    async def post(client: httpx.AsyncClient, url: str, texts: list[str]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {who.key}", "Content-Type": "application/json"}
        return await client.post(
            url + BATCH, content=json.dumps({"emails": texts}), headers=headers
        )

    async def verify_batch(url: str, texts: list[str]) -> None:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=PATIENCE_S) as client:
            # A service on a busy machine may say 503; then its client waits as it is told.
            for _ in range(REPEATS_MAX):
                answer = await post(client, url, texts)
                if answer.status_code != 503:
                    break
                await trio.sleep(int(answer.headers["retry-after"]))
        assert answer.status_code == 200, answer.text
        reported.extend((each["email"], each["status"]) for each in answer.json()["results"])

    async with trio.open_nursery() as nursery:
        for number in range(BATCHES):
            texts = rng.sample(sorted(truths), min(BATCH_SIZE, len(truths)))
            nursery.start_soon(verify_batch, services[number % 2].url, texts)
    records = await trio.to_thread.run_sync(lab.records)
    peak = max(host["connections_peak"] for host in records["hosts"].values())
    assert LIMIT <= peak <= LIMIT + LATE
    assert not any(host["mistakes"] for host in records["hosts"].values())
    sure = [(text, status) for text, status in reported if status != "unknown"]
    assert sure, "or nobody was asked"
    for text, status in sure:
        assert status == truths[text]
