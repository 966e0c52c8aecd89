"""Instants in the words of the pages."""

from datetime import UTC, datetime, timedelta

import pytest

from mailprobe.api.pages.dashboard.instants import clock, phrase_of, when

NOW = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)


@pytest.mark.parametrize(
    ("distance", "words"),
    [
        (timedelta(), "now"),
        (timedelta(seconds=-30), "30 s ago"),
        (timedelta(minutes=-12, seconds=-59), "12 min ago"),
        (timedelta(minutes=10), "in 10 min"),
        (timedelta(hours=-23), "23 h ago"),
        (timedelta(days=-1), "1 day ago"),
        (timedelta(days=-14), "14 days ago"),
        (timedelta(days=-15), "2026-02-27"),
    ],
)
def test_an_instant_is_said_by_its_distance(distance, words):
    assert phrase_of(distance, NOW + distance) == words


def test_the_exact_instant_is_beside_its_distance():
    html = str(when(NOW, NOW - timedelta(minutes=12)))
    assert html == (
        '<time datetime="2026-03-14T09:14:53+00:00" title="2026-03-14 09:14:53 UTC">'
        "12 min ago</time>"
    )


def test_a_time_and_a_date_say_that_a_script_may_rewrite_them():
    assert str(clock(NOW)) == (
        '<time datetime="2026-03-14T09:26:53+00:00" title="2026-03-14 09:26:53 UTC"'
        ' data-as="clock">09:26 UTC</time>'
    )
    assert 'data-as="date">2026-02-27</time>' in str(when(NOW, NOW - timedelta(days=15)))
