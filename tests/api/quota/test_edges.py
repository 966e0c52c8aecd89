"""Sixty concurrent requests at each limit: the service grants exactly the units that remain.

Real processes and real sockets. The test sends all but the last octet of every
request before it completes any, so that one worker, or two that share the limits,
check them all at about the same instant. The answers must come within the minute
of the window.
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import trio

from mailprobe.api.keys import key_hash
from mailprobe.storage import open_store
from mailprobe.storage.records import Caller
from tests.api.raw_http import Answer, Raw, connected
from tests.api.service_fixture import BATCH, STREAM, VERIFY
from tests.api.service_process import Credentials, Running, make_place, running
from tests.warm_lab import start_lab

RACERS = 60
LIMIT = 40  # units; each limit below allows as many

# each tier can reach one limit, and is far from the others
PLANS = """
[free]
rate_limit_per_min = 1_000_000
monthly_calls = 40
max_keys = 20
[builder]
rate_limit_per_min = 40
monthly_calls = 1_000_000
[scale]
rate_limit_per_min = 1_000_000
monthly_calls = 15
price_eur_per_call = "0.004"
"""
HARD_CAP = "0.10"  # EUR: 25 calls beyond the 15 included
KEYS_MAX = 20

CHEAP = "ann@mailinator.com"  # disposable: certain without a probe, counts as a unit, billable


@pytest.fixture(scope="module", params=[1, 2], ids=["1 worker", "2 workers"])
def service(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Running]:
    with start_lab() as lab:
        place = make_place(tmp_path_factory.mktemp("edges"), lab, PLANS)
        with running(place, workers=request.param) as service:
            yield service
            service.stop()


# == the race =================================================================================


@dataclass(frozen=True)
class Racer:
    """One request, and the units that it costs."""

    path: str
    body: bytes
    units: int
    key: str

    def octets(self) -> bytes:
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


def single(key: str) -> Racer:
    return Racer(VERIFY, json.dumps({"email": CHEAP}).encode(), 1, key)


def malformed(key: str) -> Racer:
    """A single verification that gets 400; it counts as a unit while the quota allows."""
    return Racer(VERIFY, b'{"email": 5}', 1, key)


def several(path: str, units: int, key: str) -> Racer:
    return Racer(path, json.dumps({"emails": [CHEAP] * units}).encode(), units, key)


def singles(keys: Sequence[str]) -> list[Racer]:
    return [single(keys[n % len(keys)]) for n in range(RACERS)]


def batches(keys: Sequence[str]) -> list[Racer]:
    return [several(BATCH, 7, keys[n % len(keys)]) for n in range(RACERS)]


def streams(keys: Sequence[str]) -> list[Racer]:
    return [several(STREAM, 3, keys[n % len(keys)]) for n in range(RACERS)]


def mixed(keys: Sequence[str]) -> list[Racer]:
    """Requests of each kind, in a random order from a fixed seed."""
    rng = random.Random(60)
    return [
        rng.choice([single(key), several(BATCH, rng.randint(2, 9), key), several(STREAM, 5, key)])
        for key in (keys[n % len(keys)] for n in range(RACERS))
    ]


FIELDS = [singles, batches, streams, mixed]


async def race(port: int, racers: Sequence[Racer]) -> list[Answer]:
    """Send all at once: no request is completed before all but the last octet of each is sent."""
    answers: dict[int, Answer] = {}

    async def spend(place: int, raw: Raw) -> None:
        answers[place] = await raw.answer()

    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        raws = [await stack.enter_async_context(connected(port)) for _ in racers]
        for raw, racer in zip(raws, racers, strict=True):
            await raw.send(racer.octets()[:-1])
        for raw, racer in zip(raws, racers, strict=True):
            await raw.send(racer.octets()[-1:])
        for place, raw in enumerate(raws):
            nursery.start_soon(spend, place, raw)
    return [answers[place] for place in range(len(racers))]


def granted(racers: Sequence[Racer], answers: Sequence[Answer], refusal: tuple[int, str]) -> int:
    """Return the units of the requests with results; all others must have this refusal."""
    units = 0
    for racer, answer in zip(racers, answers, strict=True):
        if answer.status == 200:
            assert results(racer, answer) == [CHEAP] * racer.units
            units += racer.units
        else:
            assert (answer.status, json.loads(answer.body)["error"]) == refusal
    return units


def results(racer: Racer, answer: Answer) -> list[str]:
    """Return the addresses that the answer has results for."""
    match racer.path:
        case "/v1/email/verify/stream":
            found = [json.loads(line) for line in answer.body.splitlines()]
        case "/v1/email/verify/batch":
            found = json.loads(answer.body)["results"]
        case _:
            found = [json.loads(answer.body)]
    return [result["email"] for result in found]


def assert_reached_and_never_passed(
    limit: int, units: int, racers: Sequence[Racer], answers: Sequence[Answer]
) -> None:
    """No refused request would fit into what is left; single verifications use every unit."""
    refused = [r.units for r, answer in zip(racers, answers, strict=True) if answer.status != 200]
    assert refused
    assert units <= limit < units + min(refused)
    if all(racer.units == 1 for racer in racers):
        assert units == limit


def used(service: Running, who: Credentials) -> int:
    """Return this month's usage; both routes of the management API must agree."""
    said: int = service.manage(who, "/account")["usage_this_month"]
    assert said == service.manage(who, "/usage/summary")["calls_used"]
    return said


async def more_keys(service: Running, who: Credentials, count: int) -> list[str]:
    """Return `count` keys of the account; all of them share its limits."""
    raws = [who.key]
    headers = {"Authorization": f"Bearer {who.provisioning_key}"}
    async with httpx.AsyncClient(
        base_url=service.url, headers=headers, trust_env=False, verify=False
    ) as client:
        while len(raws) < count:
            made = await client.post("/v1/management/keys")
            assert made.status_code == 201, made.text
            raws.append(made.json()["key"])
    return raws


# == the edges ================================================================================


@pytest.mark.parametrize("field", FIELDS)
async def test_the_limit_a_minute(service: Running, field: Any) -> None:
    who = service.place.make_account("builder")
    racers = field([who.key])
    answers = await race(service.port, racers)
    units = granted(racers, answers, (429, "rate_limit_exceeded"))
    assert_reached_and_never_passed(LIMIT, units, racers, answers)
    assert used(service, who) == units


@pytest.mark.parametrize("field", FIELDS)
async def test_the_free_tiers_month(service: Running, field: Any) -> None:
    """Three keys share the quota."""
    who = service.place.make_account("free")
    racers = field(await more_keys(service, who, 3))
    answers = await race(service.port, racers)
    units = granted(racers, answers, (429, "monthly_quota_exceeded"))
    assert_reached_and_never_passed(LIMIT, units, racers, answers)
    assert used(service, who) == units
    assert service.manage(who, "/usage/summary")["calls_remaining"] == LIMIT - units


async def test_malformed_requests_use_the_month_up_and_never_more(service: Running) -> None:
    who = service.place.make_account("free")
    racers = [malformed(who.key)] * RACERS
    answers = await race(service.port, racers)
    assert {answer.status for answer in answers} == {400}
    assert used(service, who) == LIMIT


@pytest.mark.parametrize("field", FIELDS)
async def test_the_hard_cap(service: Running, field: Any) -> None:
    """Three keys share the cap; the amount spent never exceeds it."""
    who = service.place.make_account("scale")
    service.place.mailprobe("account", "set", who.account_id, "--hard-cap", HARD_CAP)
    racers = field(await more_keys(service, who, 3))
    answers = await race(service.port, racers)
    units = granted(racers, answers, (402, "payment_required"))
    assert_reached_and_never_passed(LIMIT, units, racers, answers)
    assert used(service, who) == units
    summary = service.manage(who, "/usage/summary")
    assert summary["estimated_cost_eur"] <= float(HARD_CAP)
    days = service.manage(who, "/usage")["days"]
    assert sum(day["calls"] for day in days) == units


async def test_keys_of_an_account(service: Running) -> None:
    """The account comes with one key; every key created during the race can be used."""
    who = service.place.make_account("free")
    racers = [Racer("/v1/management/keys", b"{}", 1, who.provisioning_key)] * RACERS
    answers = await race(service.port, racers)
    made = [json.loads(answer.body)["key"] for answer in answers if answer.status == 201]
    assert len(set(made)) == len(made) == KEYS_MAX - 1
    refused = [json.loads(answer.body)["error"] for answer in answers if answer.status != 201]
    assert refused == ["key_limit_reached"] * (RACERS - len(made))
    assert service.manage(who, "/keys")["count"] == KEYS_MAX
    answers = await race(service.port, [single(key) for key in made])
    assert {answer.status for answer in answers} == {200}


# == Retry-After ==============================================================================


async def grant_before(
    service: Running, keys: Sequence[str], units: int, *, ago: timedelta
) -> None:
    """Reserve `units` in each key's window, dated `ago` before now."""
    at, place = datetime.now(UTC) - ago, service.place
    async with open_store(place.database, secret_key=place.secret_key, now=lambda: at) as store:
        for key in keys:
            caller = await store.caller(key_hash(key))
            assert isinstance(caller, Caller)
            await store.reserve(caller, units, lambda ledger: None, lease_s=1)


async def test_waiting_retry_after_is_always_enough(service: Running) -> None:
    """Three keys whose windows were filled most of a minute ago, so that the wait is short.

    The units that the single verification and the batch wait for leave the window
    first. Those that the stream waits for leave it two seconds later.
    """
    who = service.place.make_account("builder")
    keys = await more_keys(service, who, 3)
    racers = [single(keys[0]), several(BATCH, 18, keys[1]), several(STREAM, 19, keys[2])]
    await grant_before(service, keys, 18, ago=timedelta(seconds=50))
    await grant_before(service, keys, 22, ago=timedelta(seconds=48))
    answers = await race(service.port, racers)
    assert granted(racers, answers, (429, "rate_limit_exceeded")) == 0
    waits = [int(answer.headers["retry-after"]) for answer in answers]
    assert max(waits[:2]) <= 10
    assert waits[2] <= 12

    async def wait_it_out(racer: Racer, wait_s: int) -> None:
        await trio.sleep(wait_s)  # real time: the test is whether Retry-After is long enough
        (answer,) = await race(service.port, [racer])
        assert answer.status == 200, answer.body

    async with trio.open_nursery() as nursery:
        for racer, wait_s in zip(racers, waits, strict=True):
            nursery.start_soon(wait_it_out, racer, wait_s)
