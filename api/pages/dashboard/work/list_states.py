"""What a list is doing, what it waits for, and what its answers are, in words and numbers. Pure."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from math import ceil

from msgspec import Struct

from mailprobe.engine.verdict import Reason
from mailprobe.storage.list_records import StoredList

from ....lists.stages import WaitingHost
from ....operations.list_jobs import ListResponse, summary_of
from ....results.advice import ANSWERS, AnswerWords, capital, reason_words
from ....results.lights import WORDS
from ....results.marks import ResultKind, passing_of
from ..health import words_of_cause

# What lets addresses wait, but for mail hosts, which are named one by one.
CAUSES = {
    "minute": "The limit of a minute is used up.",
    "plan": "The month's verifications are used up.",
    "self_protection": "The service reaches no mail host, and looks again.",
    "paused": "The operator of the service has paused what is left.",
}


class ShownState(Struct, frozen=True):
    """Where a list is: in words, which an instant may end, with an icon."""

    words: str
    icon: str
    until: datetime | None = None

    @property
    def text(self) -> str:
        """The same where no time element can be."""
        return f"{self.words} {self.until:%H:%M} UTC" if self.until else self.words


class ShownWait(Struct, frozen=True):
    """How many addresses wait for what, and until when: in words, which an instant may end."""

    addresses: int
    what: str
    then: str = ""
    at: datetime | None = None


class AnswerCount(Struct, frozen=True):
    """How many of the answered addresses have an answer, and their share."""

    answer: AnswerWords
    light: str
    count: int
    share: float


class ReasonCount(Struct, frozen=True):
    """How many addresses have a reason, and the answer that it leads to."""

    answer: AnswerWords
    reason: Reason
    light: str
    words: str
    count: int


def is_unstarted(found: ListResponse) -> bool:
    """Whether a list was sent and never started."""
    return found.status == "paused" and not found.answered and not found.cause


def state_of(found: ListResponse) -> ShownState:
    """Paused is said with by whom, waiting with until when, stopped with how far."""
    share = 100 * found.answered // max(1, found.addresses)
    if is_unstarted(found):
        return ShownState("Not started", "file-search")
    match found.status:
        case "reading":
            return ShownState("Reading the file", "loader")
        case "paused" if found.cause:
            return ShownState(f"Paused at {share} %: {words_of_cause(found.cause)}", "pause")
        case "paused":
            return ShownState(f"Paused by you at {share} %", "pause")
        case "done":
            return ShownState("Done", "circle-check")
        case "failed":
            return ShownState(f"Failed: {words_of_cause(found.cause)}", "circle-alert")
        case "cancelled":
            return ShownState(f"Stopped at {share} %", "square")
    if found.answered == found.addresses:
        return ShownState("All answered", "circle-check")
    if found.stage == "waiting":
        words = "Waiting until" if found.waits_until else "Waiting"
        return ShownState(words, "clock", found.waits_until)
    return ShownState(f"Asking mail hosts, {share} %", "loader")


def waits_of(found: ListResponse, again: Counter[Reason], now: datetime) -> list[ShownWait]:
    """What addresses wait for, one line for each cause; `again`: those that are asked again, by reason."""
    waits: list[ShownWait] = []
    for each in found.waits_for:
        if each.cause == "hosts":
            waits += [_at_host(host) for host in each.hosts]
            if more := each.hosts_count - len(each.hosts):
                left = each.addresses - sum(host.addresses for host in each.hosts)
                waits.append(ShownWait(left, f"At {more:,} more mail hosts."))
        elif each.cause != "recheck":
            goes_on = "goes on at" if each.until else ""
            waits.append(ShownWait(each.addresses, CAUSES[each.cause], goes_on, each.until))
    if found.status == "running" and found.answered == found.addresses and found.recheck_at:
        is_later = found.recheck_at > now
        then, at = ("asked again at", found.recheck_at) if is_later else ("asked again now", None)
        waits += [
            ShownWait(count, f"{capital(WORDS[reason])}.", then, at)
            for reason, count in again.most_common()
        ]
    return waits


def _at_host(host: WaitingHost) -> ShownWait:
    if host.refusals_in_10_min:
        what = f"{host.host} takes {host.refusals_in_10_min} refusals in 10 minutes."
        return ShownWait(host.addresses, what, "done about", host.done_about)
    what = f"{host.host}: {WORDS.get(host.reason, host.reason)}."
    return ShownWait(host.addresses, what, "goes on at", host.until)


def answers_of(lights: Mapping[str, int]) -> list[AnswerCount]:
    """Keep, Confirm and Drop, with their share of what is answered."""
    total = max(1, sum(lights.values()))
    return [
        AnswerCount(answer, light, lights[light], lights[light] / total)
        for light, answer in ANSWERS.items()
    ]


def reasons_of(counts: Counter[ResultKind]) -> list[ReasonCount]:
    """Why, by answer: the most frequent reasons first."""
    found = Counter[tuple[str, Reason]]()
    for kind, count in counts.items():
        found[kind.light, kind.reason] += count
    return [
        ReasonCount(answer, reason, light, reason_words(reason, light), count)
        for light, answer in ANSWERS.items()
        for (of, reason), count in found.most_common()
        if of == light
    ]


def progress_values(
    stored: StoredList, found: ListResponse, counts: Counter[ResultKind], now: datetime
) -> dict[str, object]:
    """What the progress of a list shows beside what the API says of it."""
    left_s = found.left_s
    return {
        "state": state_of(found),
        "waits": waits_of(found, passing_of(counts), now),
        "counted": answers_of(summary_of(stored, counts).lights),
        "left": "" if left_s is None else rough_duration(left_s),
    }


def rough_duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`: an estimate is not more exact."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = ceil(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
