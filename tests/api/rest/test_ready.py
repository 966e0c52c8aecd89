"""A proxy learns from `/health?ready=1` that a service must get no requests."""

import pytest
import trio

from mailprobe.api.store_health import CHECK_EVERY_S
from tests.api.service_fixture import RunningService


@pytest.mark.parametrize("query", ["", "?ready=0", "?ready=1"])
async def test_a_service_whose_store_works_is_well_and_ready(
    autojump_clock: object, shop: RunningService, query: str
) -> None:
    got = await shop.request("GET", f"/health{query}", key=None)
    assert (got.status, set(got.body), got.body["ok"]) == (200, {"ok", "ts"}, True)
    assert "connection" not in got.headers


async def test_a_service_without_its_store_is_not_ready_until_the_store_is_back(
    autojump_clock: object, shop: RunningService
) -> None:
    shop.store.away = True
    ready = await shop.request("GET", "/health?ready=1", key=None)
    assert (ready.status, set(ready.body), ready.body["ok"]) == (503, {"ok", "ts"}, False)
    assert ready.headers["connection"] == "close"
    plain = await shop.request("GET", "/health", key=None)
    assert (plain.status, set(plain.body), plain.body["ok"]) == (200, {"ok", "ts"}, False)
    assert "connection" not in plain.headers
    shop.store.away = False
    await trio.sleep(CHECK_EVERY_S)
    assert (await shop.request("GET", "/health?ready=1", key=None)).status == 200
