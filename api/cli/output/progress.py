"""Shows the progress of a list on standard error while it is verified.

On a terminal a progress bar; elsewhere a line every few seconds if something has changed.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import trio

from ...errors import print_error
from ...results.counts import ProgressRate, ResultCounts, duration

if TYPE_CHECKING:
    from rich.console import RenderableType

REDRAW_S = 0.2
LINE_S = 5.0
WAITING_LINE_S = 60.0  # while nothing changes: a log of a wait for hours is not filled
BAR_COLUMNS = 24


@asynccontextmanager
async def show_progress(counts: ResultCounts, total: int) -> AsyncIterator[None]:
    """Show the progress of `counts` towards `total` while the block runs."""
    show = _bar if sys.stderr.isatty() else _lines
    async with trio.open_nursery() as nursery:
        nursery.start_soon(show, counts, total)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()


async def _lines(counts: ResultCounts, total: int) -> None:
    pace = ProgressRate()
    pace.mark(trio.current_time(), counts.done)
    printed, printed_at = "", trio.current_time()
    while True:
        await trio.sleep(LINE_S)
        now = trio.current_time()
        pace.mark(now, counts.done)
        known = f"{counts.done} {waits_until(counts.goes_on_at)} {statuses(counts)}"
        if known == printed and now - printed_at < WAITING_LINE_S:
            continue
        printed, printed_at = known, now
        share = 100 * counts.done // total
        what = f": {statuses(counts)}" if counts.done else ""
        print_error(
            f"{counts.done:,} of {total:,} ({share} %), {standing(counts.goes_on_at, pace, total)}{what}"
        )


async def _bar(counts: ResultCounts, total: int) -> None:
    from rich.console import Console
    from rich.live import Live

    pace = ProgressRate()
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        while True:
            pace.mark(trio.current_time(), counts.done)
            live.update(_drawn(counts, total, pace), refresh=True)
            await trio.sleep(REDRAW_S)


def _drawn(counts: ResultCounts, total: int, pace: ProgressRate) -> "RenderableType":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=total, completed=counts.done, width=BAR_COLUMNS),
        Text(f"{counts.done:,} of {total:,}, {standing(counts.goes_on_at, pace, total)}"),
    )
    return Group(line, Text(statuses(counts), style="dim"))


def standing(goes_on_at: datetime | None, pace: ProgressRate, total: int) -> str:
    """How fast it goes, or `waits until 14:40` where nothing goes before."""
    return waits_until(goes_on_at) or speed(pace, total)


def waits_until(goes_on_at: datetime | None) -> str:
    """`waits until 14:40`; "" where something is under way."""
    return "" if goes_on_at is None else f"waits until {goes_on_at.astimezone():%H:%M}"


def speed(pace: ProgressRate, total: int) -> str:
    """`240/s, 37 s left`."""
    per_s = pace.per_s
    rate = f"{per_s:,.0f}/s" if per_s >= 10 or not per_s else f"{per_s:.1f}/s"
    left = pace.left_s(total)
    return rate if left is None else f"{rate}, {duration(left)} left"


def statuses(counts: ResultCounts) -> str:
    """`812 deliverable, 40 unknown`, most first."""
    return ", ".join(f"{count:,} {status}" for status, count in counts.statuses.most_common())
