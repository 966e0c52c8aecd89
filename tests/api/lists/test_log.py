"""What the log says of lists."""

import logging

import pytest
import trio.testing

from tests.api.lists.test_lists import LISTS, ended, many, open_list_shop, send


async def test_a_pause_and_a_cancel_of_a_list_are_a_line_each(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its chunks that were under way had a warning of its own."""
    caplog.set_level(logging.INFO)
    async with open_list_shop("builder") as shop:
        list_id = (await send(shop, many(1_000))).body["list_id"]
        for act in ("pause", "resume", "pause", "resume", "cancel"):
            await trio.sleep(20)
            await shop.request("POST", f"{LISTS}/{list_id}/{act}")
        await trio.sleep(20)
        assert (await ended(shop, list_id))["status"] == "cancelled"
    stopped = [each.getMessage() for each in caplog.records if each.name == "mailprobe.lists"]
    assert len(stopped) == 3
    assert all(f"work on a list stopped: list={list_id} chunks=" in each for each in stopped)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
