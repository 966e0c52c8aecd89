"""Words about the addresses of a list that wait for their mail hosts. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from mailprobe.api.results.lights import WORDS
from mailprobe.api.results.row_result import RowResult
from mailprobe.api.terminal import plain

HOSTS_SHOWN = 3  # those at which most wait


def clock(at: float) -> str:
    """Unix time as the local time of the day."""
    return f"{datetime.fromtimestamp(at).astimezone():%H:%M}"


def patient(command: str) -> str:
    """The command that continues a run, with more patience."""
    return command if "--patience" in command else f"{command} --patience 4h"


def waiting_words(waiting: Sequence[RowResult], total: int) -> str:
    """Say how many of the list's `total` addresses wait, at which hosts, why and until when.

    412 of 20,000 addresses wait at 3 hosts: mx.hoster.net takes 16 refusals in 10 minutes
    (41 wait until 14:50), ...
    """
    by_host: dict[str, list[RowResult]] = {}
    for result in waiting:
        by_host.setdefault(result.host, []).append(result)
    most = sorted(by_host.items(), key=lambda each: (-len(each[1]), each[0]))
    hosts = "1 host" if len(by_host) == 1 else f"{len(by_host):,} hosts"
    wait = "address waits" if len(waiting) == 1 else "addresses wait"
    shown = ", ".join(_host_words(host, results) for host, results in most[:HOSTS_SHOWN])
    more = len(most) - HOSTS_SHOWN
    rest = f", and {more:,} more" if more > 0 else ""
    return f"{len(waiting):,} of {total:,} {wait} at {hosts}: {shown}{rest}"


def _host_words(host: str, results: Iterable[RowResult]) -> str:
    results = list(results)
    until = clock(max(result.retry_at for result in results))
    takes = max(result.takes for result in results)
    why = f"takes {takes} refusals in 10 minutes" if takes else WORDS[results[0].reason]
    wait = "waits" if len(results) == 1 else "wait"
    return f"{plain(host)}: {why} ({len(results):,} {wait} until {until})"
