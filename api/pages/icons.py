"""The icons of the pages, and the bars and charts that are drawn as SVG. Pure.

An icon stands beside a word or in a button with a label, so screen readers skip it. Widths are
attributes of SVG, which the policy of the pages allows; inline styles it does not.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import cache
from math import ceil, floor, log10
from pathlib import Path

from markupsafe import Markup
from msgspec import Struct

from ..results.advice import ANSWERS

SPRITE = Path(__file__).parent / "dashboard/static/vendor/lucide.svg"
KINDS = tuple(answer.kind for answer in ANSWERS.values())
WORDS: Mapping[str, str] = {answer.kind: answer.word for answer in ANSWERS.values()}
LEAST_PER_CENT = 0.6  # a share above nothing is seen
GAP = Markup('<rect class="gap" x="{:.2f}%" width="2" height="100%"/>')
LABELS_X = 5  # below a chart


@cache
def icon(name: str) -> Markup:
    """An icon by its name. Raises KeyError."""
    shapes = _shapes()[name]
    return Markup(
        f'<svg class="icon" viewBox="0 0 24 24" width="16" height="16" aria-hidden="true">{shapes}</svg>'
    )


@cache
def _shapes() -> dict[str, str]:
    text = SPRITE.read_text("utf-8")
    return dict(re.findall(r'<symbol id="([\w-]+)">(.*?)</symbol>', text))


@cache
def mark() -> Markup:
    """The product's mark; the word stands beside it."""
    svg = (SPRITE.parents[1] / "icon.svg").read_text("utf-8").strip()
    return Markup(svg.replace("<svg ", '<svg class="mark" aria-hidden="true" ', 1))


def per_cent(share: float) -> str:
    """`79.1 %`; what is not nothing is not shown as 0.0 %."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.1f} %"


def bar(
    counts: Sequence[int], total: int, label: str, kinds: Sequence[str] = KINDS, size: str = ""
) -> Markup:
    """Shares of a total, in the order keep, confirm, drop; what is left has the colour of lines."""
    drawn: list[Markup] = []
    words: list[str] = []
    at = 0.0
    for kind, count in zip(kinds, counts, strict=True):
        if not count or not total:
            continue
        width = max(LEAST_PER_CENT, 100 * count / total)
        width = min(width, 100 - at)
        if drawn:
            drawn.append(GAP.format(at))
        drawn.append(
            Markup('<rect {} x="{:.2f}%" width="{:.2f}%" height="100%"/>').format(
                _filled(kind), at, width
            )
        )
        at += width
        words.append(f"{WORDS.get(kind, kind)} {per_cent(count / total)}")
    said = f"{label}: {', '.join(words)}" if words else label
    return Markup('<svg class="bar {}" role="img" aria-label="{}">{}</svg>').format(
        size, said, Markup("").join(drawn)
    )


def _filled(kind: str) -> Markup:
    """Doubt is hatched everywhere, so that colour alone says nothing."""
    hatch = Markup(' fill="url(#hatch)"') if kind == "confirm" else ""
    return Markup('class="{}"{}').format(kind, hatch)


class ChartDay(Struct, frozen=True):
    """A day of a chart: its counts, the lowest one first."""

    day: date
    counts: Sequence[int]


def stacked_days(days: Sequence[ChartDay], label: str, kinds: Sequence[str] = KINDS) -> Markup:
    """A bar for each day, with three labels at the height and five below."""
    most = _round_up(max((sum(day.counts) for day in days), default=1))
    step = 100 / max(1, len(days))
    drawn = [*_counts_grid(most)]
    for number, day in enumerate(days):
        top = 100.0
        for kind, count in zip(kinds, day.counts, strict=True):
            height = 100 * count / most
            top -= height
            if count:
                drawn.append(
                    Markup(
                        '<rect {} x="{:.2f}%" y="{:.2f}%" width="{:.2f}%" height="{:.2f}%"/>'
                    ).format(_filled(kind), number * step + step / 6, top, step * 2 / 3, height)
                )
    return _chart(drawn, _of_days([day.day for day in days]), label)


def line_of_shares(shares: Sequence[tuple[date, float]], label: str) -> Markup:
    """Per cents by day as one line, the oldest day first."""
    most = max(1.0, *(share for _, share in shares)) if shares else 1.0
    top = f"{most:.0f} %" if most >= 2 else f"{most:.1f} %"
    line = _line([share for _, share in shares], most)
    days = [day for day, _ in shares]
    return _chart([*_grid([top, f"{most / 2:.1f} %", "0 %"]), line], _of_days(days), label)


def line_of_counts(counts: Sequence[tuple[datetime, float | None]], label: str) -> Markup:
    """Counts by time as one line, the oldest first; before the first one that is known it is empty.

    The times below it are in UTC, and the script rewrites them as those of the page.
    """
    most = _round_up(ceil(max(count or 0 for _, count in counts)))
    line = _line([count for _, count in counts], most)
    last = len(counts) - 1
    below = [
        Markup('<text class="x{}" x="{:.2f}%" y="100%" dy="20" data-at="{}" data-as="clock">{}</text>').format(
            " end" if place == last else "", 100 * place / last, at.isoformat(), f"{at:%H:%M} UTC",
        )
        for place, at in ((place, counts[place][0]) for place in _spread(last))
    ]  # fmt: skip
    return _chart([*_counts_grid(most), line], below, label)


def _spread(last: int) -> list[int]:
    """LABELS_X places from 0 to the last one."""
    return sorted({round(last * number / (LABELS_X - 1)) for number in range(LABELS_X)})


def _line(values: Sequence[float | None], most: float) -> Markup:
    step = 100 / max(1, len(values) - 1)
    points = [
        (place * step, 100 - 100 * value / most)
        for place, value in enumerate(values)
        if value is not None
    ]
    drawn = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return Markup(
        '<svg class="line" viewBox="0 0 100 100" width="100%" height="100%" '
        'preserveAspectRatio="none"><polygon points="{1:.2f},100 {0} 100,100"/>'
        '<polyline points="{0}"/></svg>'
    ).format(drawn, points[0][0] if points else 100)


def _counts_grid(most: int) -> Sequence[Markup]:
    return _grid([f"{most:,}", f"{most // 2:,}" if most > 1 else "", "0"])


def _grid(labels: Sequence[str]) -> Sequence[Markup]:
    return [
        Markup(
            '<line class="grid" x1="0" x2="100%" y1="{0}%" y2="{0}%"/>'
            '<text class="y" x="-8" y="{0}%" dy="4">{1}</text>'
        ).format(50 * number, words)
        for number, words in enumerate(labels)
    ]


def _of_days(days: Sequence[date]) -> Sequence[Markup]:
    every = max(1, ceil(len(days) / LABELS_X))
    return [
        Markup('<text class="x" x="{:.2f}%" y="100%" dy="20">{}</text>').format(
            100 * (number + 0.5) / len(days), f"{day.day} {day:%b}"
        )
        for number, day in enumerate(days)
        if number % every == every // 2
    ]


def _chart(drawn: Sequence[Markup], below: Sequence[Markup], label: str) -> Markup:
    return Markup('<svg class="chart" role="img" aria-label="{}">{}</svg>').format(
        label, Markup("").join([*drawn, *below])
    )


def _round_up(most: int) -> int:
    """The next of 1, 2, 5, 10, 20 …: the top of an axis."""
    if most <= 1:
        return 1
    power = int(10 ** floor(log10(most)))
    return next(each * power for each in (1, 2, 5, 10) if each * power >= most)


def postmark(at: datetime, kind: str) -> Markup:
    """The instant of a check as a postmark; what is read aloud stands beside it."""
    waves = Markup("").join(
        Markup('<path d="M98 {0}q6-6 12 0t12 0 12 0 12 0 12 0 12 0"/>').format(22 + 12 * number)
        for number in range(5)
    )
    return Markup(
        '<svg class="postmark {}" viewBox="0 0 190 92" width="190" height="92" aria-hidden="true">'
        '<g transform="rotate(-6 95 46)"><circle cx="46" cy="46" r="42"/><circle cx="46" cy="46" r="34"/>'
        '<path d="M20 38h52M20 54h52"/>{}<text x="46" y="32">{}</text><text x="46" y="50">{}</text>'
        '<text x="46" y="67">UTC</text></g></svg>'
    ).format(kind, waves, f"{at.day} {at:%b}".upper(), f"{at:%H:%M}")
