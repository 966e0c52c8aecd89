"""Series drawn: as PNG files (matplotlib), and with characters for a terminal (plotext).

Series of a suite with the same axes share a plot. What could be had if nothing of ours
cost anything is dashed. Both libraries are the optional extra "bench".
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from .figures import MissingRequirement, Series
from .tables import number

WIDE = 20  # values whose largest is so many times the smallest want a logarithmic axis
LINEAR_PART = 0.6  # of a decade: what lies between zero and the least on such an axis
TICKS_MAX = 12  # as many values of x are each worth a tick
SIZE_INCHES = (8.0, 5.0)
DOTS_PER_INCH = 150
COLOURS = ("#1f5fa8", "#c8501e", "#2f8a4c", "#8a4fa3", "#a8862b", "#4d4d4d")  # told apart in grey
MARKERS = ("o", "s", "^", "D", "v", "P")
CHARACTERS = ("●", "■", "▲", "◆", "+", "x")
IDEAL_CHARACTER = "·"
ROWS = 20
COLUMNS_MAX = 100


class Plot(Struct, frozen=True):
    """What shares one pair of axes."""

    suite: str
    x_label: str
    y_label: str
    unit: str
    series: tuple[Series, ...]

    @property
    def title(self) -> str:
        return f"{self.suite}: {self.y_title} by {self.x_label.partition(',')[0]}"

    @property
    def y_title(self) -> str:
        return f"{self.y_label} {self.unit}" if self.unit == "a second" else self._with_unit()

    def _with_unit(self) -> str:
        return f"{self.y_label}, {self.unit}" if self.unit else self.y_label

    @property
    def file_name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") + ".png"

    @property
    def xs(self) -> list[float]:
        """Every value of x, in order."""
        return sorted({x for each in self.series for x, _ in _all_points(each)})

    @property
    def ys(self) -> list[float]:
        return [y for each in self.series for _, y in _all_points(each)]


def _all_points(series: Series) -> list[tuple[float, float]]:
    return [*series.points, *(series.ideal or ())]


def plots_of(suite: str, series: Iterable[Series]) -> list[Plot]:
    """By their axes; a series without points is left out."""
    sharing: dict[tuple[str, str, str], list[Series]] = {}
    for each in series:
        if each.points:
            sharing.setdefault((each.x_label, each.y_label, each.unit), []).append(each)
    return [Plot(suite, *axes, tuple(drawn)) for axes, drawn in sharing.items()]


def scale_of(values: Sequence[float]) -> str:
    """`log` for what spans much, `symlog` where zero is among it, else `linear`."""
    positive = [value for value in values if value > 0]
    if min(values) < 0 or len(positive) < 2 or max(positive) / min(positive) < WIDE:
        return "linear"
    return "log" if len(positive) == len(values) else "symlog"


def require(library: str) -> Any:
    """The library; Lacking, with what to do, where it is not installed."""
    if find_spec(library) is None:
        raise MissingRequirement(
            f"{library} is not installed: pip install '.[bench]' in the checkout"
        )
    return import_module(library)


# -- as a picture ----------------------------------------------------------------------------


def draw_png(plot: Plot, folder: Path) -> Path:
    """One picture; gives its file. Raises Lacking, and OSError."""
    require("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    folder.mkdir(parents=True, exist_ok=True)
    picture = Picture(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(picture)  # no window, and nothing of pyplot's that others could have changed
    axes = picture.add_subplot()
    for place, each in enumerate(plot.series):
        _draw_line(axes, each, place)
    _dress(axes, plot)
    path = folder / plot.file_name
    picture.savefig(path)
    return path


def _draw_line(axes: Any, series: Series, place: int) -> None:
    colour = COLOURS[place % len(COLOURS)]
    if series.ideal:
        style = {"color": colour, "linestyle": (0, (5, 4)), "linewidth": 1.4, "alpha": 0.75}
        axes.plot(*zip(*sorted(series.ideal), strict=True), label=f"{series.what}: ideal", **style)
    marker = MARKERS[place % len(MARKERS)]
    style = {"color": colour, "marker": marker, "markersize": 5.5, "linewidth": 2.0}
    axes.plot(*zip(*sorted(series.points), strict=True), label=series.what, **style)


def _dress(axes: Any, plot: Plot) -> None:
    """Title, labels with their units, scales, ticks that can be read, a quiet grid."""
    axes.set_title(plot.title, loc="left", fontsize=13, fontweight="bold", pad=12)
    axes.set_xlabel(plot.x_label, fontsize=11)
    axes.set_ylabel(plot.y_title, fontsize=11)
    _scale_x(axes, plot.xs)
    _scale_y(axes, plot.ys)
    axes.grid(True, which="major", color="#d9d9d9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=10)


def _scale_x(axes: Any, xs: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    scale = scale_of(xs)
    if scale == "symlog":
        least = min(x for x in xs if x > 0)
        axes.set_xscale("symlog", linthresh=least, linscale=LINEAR_PART)
        axes.set_xlim(left=-least / 10)
    else:
        axes.set_xscale(scale)
    if len(xs) <= TICKS_MAX:
        axes.xaxis.set_major_locator(FixedLocator(list(_apart(xs, _placed_by(scale, xs)))))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: number(float(value)))


def _scale_y(axes: Any, ys: Sequence[float]) -> None:
    scale = scale_of(ys)
    if scale == "linear":
        bottom, top = min(0.0, *ys), max(0.0, *ys)
        axes.set_ylim(bottom, top + ((top - bottom) * 0.08 or 1))
    elif scale == "symlog":
        axes.set_yscale("symlog", linthresh=min(y for y in ys if y > 0), linscale=LINEAR_PART)
    else:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, _: number(float(value)))


def _placed_by(scale: str, values: Sequence[float]) -> Callable[[float], float]:
    """Where a value lies along an axis of that scale."""
    if scale == "linear":
        return lambda value: value
    least = min(value for value in values if value > 0)
    return lambda value: math.log10(value / least) + LINEAR_PART if value > 0 else 0.0


def _apart(values: Sequence[float], place: Callable[[float], float]) -> Iterable[float]:
    """Those whose labels don't run into each other: the first, the last, and what has room."""
    room = (place(values[-1]) - place(values[0])) / 18
    shown = [values[0]]
    for value in values[1:-1]:
        if place(value) - place(shown[-1]) >= room and place(values[-1]) - place(value) >= room:
            shown.append(value)
    return dict.fromkeys([*shown, values[-1]])


# -- in a terminal ---------------------------------------------------------------------------


def draw_text(plot: Plot, columns: int) -> str:
    """The plot as lines of characters, without colours. Raises Lacking."""
    figure = require("plotext").figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(min(columns, COLUMNS_MAX), ROWS)
    place_x = _placed_by(scale_of(plot.xs), plot.xs)
    scale_y = scale_of(plot.ys)
    place_y = _placed_by(scale_y, plot.ys)

    def draw(points: Sequence[tuple[float, float]], character: str) -> None:
        placed = [(place_x(x), place_y(y)) for x, y in sorted(points)]
        figure.draw(figure.signal(*map(list, zip(*placed, strict=True)), marker=character).lines())

    legend = []
    for number_, each in enumerate(plot.series):
        character = CHARACTERS[number_ % len(CHARACTERS)]
        if each.ideal:
            draw(each.ideal, IDEAL_CHARACTER)
        draw(each.points, character)
        legend.append(f"{character} {each.what}")
    if any(each.ideal for each in plot.series):
        legend.append(f"{IDEAL_CHARACTER} ideal")
    shown = list(_apart(plot.xs, place_x))
    figure.ruler("x").ticks([place_x(x) for x in shown], [number(x) for x in shown])
    top = max(0.0, *plot.ys) or 1
    steps = _even_steps(top) if scale_y == "linear" else _decade_steps(plot.ys)
    bottom = min(0.0, *plot.ys) if scale_y == "linear" else place_y(min(plot.ys))
    figure.ruler("y").lim(bottom, place_y(top) + (place_y(top) - bottom) / 20)
    figure.ruler("y").ticks([place_y(step) for step in steps], [number(step) for step in steps])
    drawn = re.sub(r"\x1b\[[\d;]*m", "", figure.build().string())
    figure.clear()
    lines = [plot.title, plot.y_title, *(line.rstrip() for line in drawn.splitlines())]
    centred = plot.x_label.center(min(columns, COLUMNS_MAX)).rstrip()
    return "\n".join([*(line for line in lines if line), centred, "   ".join(legend)])


def _even_steps(top: float) -> list[float]:
    """Some five round values from 0 to the top."""
    rough = top / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    return [step * count for count in range(int(top / step) + 1)]


def _decade_steps(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 of each decade that the values lie in, and zero where it is among them."""
    least, top = min(value for value in values if value > 0), max(values)
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(top)) + 1)
    factors = (1, 2, 5) if len(decades) <= 4 else (1,)
    steps = [factor * 10.0**decade for decade in decades for factor in factors]
    return [0.0] * (min(values) == 0) + [step for step in steps if least <= step <= top]
