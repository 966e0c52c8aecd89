"""The progress of `clean` where there is no terminal: a line when something has changed."""

from datetime import UTC, datetime, timedelta

import pytest
import trio
from trio.testing import MockClock

from mailprobe.api.cli.output.progress import LINE_S, WAITING_LINE_S, show_progress
from mailprobe.api.results.counts import ResultCounts
from tests.api.fake_source import result_of

HOUR_S = 3600.0


async def test_a_wait_for_mail_hosts_prints_at_most_one_line_a_minute(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = ResultCounts()
    counts.count(result_of("ann@shop.test"))
    counts.note_wait(datetime.now(UTC) + timedelta(hours=1))
    async with show_progress(counts, 2):
        await trio.sleep(HOUR_S)
    lines = capsys.readouterr().err.splitlines()
    assert 50 <= len(lines) <= HOUR_S / WAITING_LINE_S
    assert all("1 of 2 (50 %), waits until " in line for line in lines)


async def test_a_change_is_printed_within_seconds(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = ResultCounts()
    async with show_progress(counts, 10):
        await trio.sleep(LINE_S + 1)
        for number in range(3):
            counts.count(result_of(f"ann{number}@shop.test"))
            await trio.sleep(LINE_S)
        counts.note_wait(datetime.now(UTC) + timedelta(hours=1))
        await trio.sleep(LINE_S)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[1] for line in lines] == ["0", "1", "2", "3", "3"]
    assert "waits until" in lines[-1]
