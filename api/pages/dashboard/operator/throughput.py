"""The throughput on the operator's page: four figures, a line and its numbers. Pure but for the reading."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from ....observability.throughput import MINUTE_S, Counted, Throughput, summed
from ...icons import line_of_counts


class ChartSpan(Struct, frozen=True):
    """A time that the page shows, and the minutes of each point of its line."""

    hours: int
    name: str
    step: int


CHART = "Addresses answered in a minute: the table below has the numbers"
SPANS = (ChartSpan(1, "1 hour", 1), ChartSpan(24, "24 hours", 15))


class Point(Struct, frozen=True):
    """Some minutes of the line that have ended."""

    at: datetime  # they began
    counted: Counted | None  # None: the service had not begun
    minutes: int

    @property
    def a_minute(self) -> float:
        """Addresses, on average."""
        return self.counted.answers / self.minutes if self.counted else 0.0


class Shown(Struct, frozen=True):
    """What the page shows of a span."""

    points: Sequence[Point]
    total: Counted  # of the span, and of the minute that has not ended
    latest: int | None  # addresses of the last whole minute; None before there is one
    peak: int
    peak_at: datetime | None

    @property
    def known(self) -> Sequence[Point]:
        return [point for point in self.points if point.counted]


def shown(minutes: Sequence[Counted], now_minute: int, first_minute: int, step: int) -> Shown:
    """Of these minutes up to `now_minute`, which has not ended; those before `first_minute` are none.

    A point has `step` minutes; of the point in which the service began, only those of the service
    count.
    """
    *whole, _ = minutes
    began = now_minute - len(whole)
    points = []
    for start in range(0, len(whole), step):
        of_service = max(start, min(start + step, first_minute - began))
        counted = whole[of_service : start + step]
        points.append(
            Point(_instant(began + start), summed(counted) if counted else None, len(counted))
        )
    known = range(max(0, first_minute - began), len(whole))
    peak = max(known, key=lambda place: whole[place].answers, default=None)
    return Shown(
        points, summed(minutes), whole[-1].answers if known else None,
        0 if peak is None else whole[peak].answers,
        None if peak is None else _instant(began + peak),
    )  # fmt: skip


def _instant(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * MINUTE_S, UTC)


def duration_of(seconds: float | None) -> str:
    """`210 ms`, `2.3 s`: two figures, as what they are made of tells no more; `–` for None."""
    if seconds is None:
        return "–"
    if seconds >= 0.995:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{float(f'{1000 * seconds:.2g}'):g} ms"


def throughput_of(throughput: Throughput, now: datetime, wanted: str | None) -> dict[str, object]:
    """What the section needs: of the span that is wanted, in hours, or the first one."""
    span = next((each for each in SPANS if str(each.hours) == wanted), SPANS[0])
    minute = int(now.timestamp()) // MINUTE_S
    minutes = throughput.minutes(minute - 60 * span.hours, minute)
    found = shown(minutes, minute, throughput.first_minute, span.step)
    started_at = datetime.fromtimestamp(throughput.started_at, UTC)
    return {
        "span": span,
        "spans": SPANS,
        "shown": found,
        "median": duration_of(found.total.time_s(0.5)),
        "nearly_all": duration_of(found.total.time_s(0.99)),
        "started_at": started_at,
        "is_whole": started_at <= now - timedelta(hours=span.hours),
        "chart": line_of_counts(
            [(point.at, point.a_minute if point.counted else None) for point in found.points], CHART
        ) if len(found.known) > 1 else "",
    }  # fmt: skip
