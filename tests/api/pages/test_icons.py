"""Bars and charts as SVG: shares of a whole, with words and without inline styles."""

import re
from datetime import UTC, date, datetime, timedelta

import pytest

from mailprobe.api.pages.icons import (
    SPRITE,
    ChartDay,
    bar,
    icon,
    line_of_shares,
    per_cent,
    postmark,
    stacked_days,
)

DAYS = [date(2026, 3, 1) + timedelta(days=number) for number in range(30)]


def test_every_icon_is_an_image_without_words() -> None:
    names = re.findall(r'id="([\w-]+)"', SPRITE.read_text("utf-8"))
    assert len(names) > 40
    assert all('aria-hidden="true"' in icon(name) for name in names)
    with pytest.raises(KeyError):
        icon("nothing")


def test_a_bar_has_its_shares_and_says_them() -> None:
    drawn = bar([70, 20, 10], 200, "Answered")
    widths = re.findall(r'class="(keep|confirm|drop)"[^>]* width="([\d.]+)%"', drawn)
    assert widths == [("keep", "35.00"), ("confirm", "10.00"), ("drop", "5.00")]
    assert "Answered: Keep 35.0 %, Confirm 10.0 %, Drop 5.0 %" in drawn
    assert 'fill="url(#hatch)"' in drawn
    assert "style=" not in drawn


def test_a_small_share_is_seen_and_none_is_not() -> None:
    assert 'width="0.60%"' in bar([1, 0, 0], 10**6, "Answered")
    assert "<rect" not in bar([0, 0, 0], 0, "Answered")
    assert per_cent(0.0) == "0.0 %"
    assert per_cent(0.00001) == "< 0.1 %"


def test_a_bar_never_leaves_its_frame() -> None:
    ends = [
        float(x) + float(width)
        for x, width in re.findall(
            r'x="([\d.]+)%" width="([\d.]+)%"', bar([10**6, 1, 1], 10**6 + 2, "")
        )
    ]
    assert max(ends) <= 100


def test_labels_are_text() -> None:
    assert "<b>" not in bar([1, 0, 0], 1, '"<b>')


def test_a_chart_has_three_labels_at_its_height_and_five_below() -> None:
    drawn = stacked_days([ChartDay(day, (120, 30, 7)) for day in DAYS], "By day")
    assert re.findall(r'class="y"[^>]*>([^<]*)<', drawn) == ["200", "100", "0"]
    assert len(re.findall('class="x"', drawn)) == 5
    assert len(re.findall('class="keep"', drawn)) == 30
    assert "style=" not in stacked_days([], "By day")


def test_a_line_has_a_point_for_each_day() -> None:
    drawn = line_of_shares([(day, float(number)) for number, day in enumerate(DAYS)], "Share")
    points = re.search(r'<polyline points="([^"]+)"', drawn)
    assert points
    assert len(points[1].split()) == 30


def test_a_postmark_has_the_day_and_the_time() -> None:
    drawn = postmark(datetime(2026, 11, 28, 14, 31, tzinfo=UTC), "keep")
    assert ">28 NOV<" in drawn
    assert ">14:31<" in drawn
