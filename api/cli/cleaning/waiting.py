"""Lines of the command line about addresses that wait for their mail hosts. Pure."""

from collections.abc import Sequence
from datetime import datetime

from ...results.row_result import RowResult
from ...results.waiting import HostStanding, waiting_words


def clock(at: float | datetime) -> str:
    """Unix time, or an instant, as the local time of the day."""
    instant = at if isinstance(at, datetime) else datetime.fromtimestamp(at).astimezone()
    return f"{instant.astimezone():%H:%M}"


def patient(command: str) -> str:
    """The command that continues a run, with more patience."""
    return command if "--patience" in command else f"{command} --patience 4h"


def words_of_results(waiting: Sequence[RowResult], total: int, share: float) -> str:
    """Say it of the answers that wait; `share` of the list's addresses are refused."""
    by_host: dict[str, list[RowResult]] = {}
    for result in waiting:
        by_host.setdefault(result.host, []).append(result)
    most = sorted(by_host.items(), key=lambda each: (-len(each[1]), each[0]))
    hosts = [_standing(host, results) for host, results in most]
    return waiting_words(len(waiting), total, len(hosts), hosts, clock=clock, share=share)


def _standing(host: str, results: Sequence[RowResult]) -> HostStanding:
    takes = max(result.takes for result in results)
    until = datetime.fromtimestamp(max(result.retry_at for result in results)).astimezone()
    return HostStanding(host, results[0].reason, takes, len(results), until)
