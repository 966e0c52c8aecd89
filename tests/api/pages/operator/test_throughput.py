"""The throughput of the operator's page: its figures and its line, also of a service that just began."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mailprobe.api.observability.reputation import ReputationCounter
from mailprobe.api.observability.throughput import NOTHING, Counted, Throughput, open_throughput
from mailprobe.api.pages.dashboard.operator.throughput import duration_of, shown
from mailprobe.api.pages.icons import line_of_counts
from mailprobe.api.serve import create_app
from mailprobe.api.service import Deployment
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine.observer import NO_OBSERVER
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import START, RunningService, open_shop

Clock = trio.testing.MockClock
PAGE = "/operator"
REFUSAL = "550 5.7.1 Service unavailable; client host blocked using zen.spamhaus.org"
HOUR = 27_000_000  # a minute since 1970


def minutes(*answers: int) -> Sequence[Counted]:
    return [replace(NOTHING, answers=each) for each in answers]


def test_the_peak_and_the_last_whole_minute_are_of_minutes_that_have_ended() -> None:
    found = shown(minutes(5, 9, 7, 100), HOUR, HOUR - 60, 1)
    assert (found.latest, found.peak, found.total.answers) == (7, 9, 121)
    assert found.peak_at == datetime.fromtimestamp(60 * (HOUR - 2), UTC)
    assert [each.a_minute for each in found.points] == [5, 9, 7]


def test_minutes_before_the_service_are_no_zeros() -> None:
    found = shown(minutes(0, 0, 0, 6, 2), HOUR, HOUR - 1, 1)
    assert [each.counted is None for each in found.points] == [True, True, True, False]
    assert (found.latest, found.peak) == (6, 6)
    assert [each.a_minute for each in found.known] == [6]
    new = shown(minutes(0, 0, 4), HOUR, HOUR + 1, 1)
    assert (new.latest, new.peak_at, new.known, new.total.answers) == (None, None, [], 4)


def test_a_point_of_several_minutes_is_their_mean_of_those_of_the_service() -> None:
    found = shown(minutes(0, 0, 4, 8, 2, 4, 99), HOUR, HOUR - 4, 3)
    assert [(each.a_minute, each.minutes) for each in found.points] == [(4.0, 1), (14 / 3, 3)]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"), (0.0042, "4.2 ms"), (0.2141, "210 ms"), (0.994, "990 ms"), (0.996, "1.0 s"),
        (2.31, "2.3 s"), (42.0, "42 s"),
    ],
)  # fmt: skip
def test_a_duration_has_the_figures_that_are_known(seconds: float | None, words: str) -> None:
    assert duration_of(seconds) == words


def test_a_line_begins_where_its_counts_do() -> None:
    at = datetime(2026, 3, 14, 9, tzinfo=UTC)
    counts = [None, None, 50.0, 100.0, 0.0]
    drawn = line_of_counts(
        [(at + timedelta(minutes=place), count) for place, count in enumerate(counts)], "<Rate>"
    )
    assert 'polyline points="50.00,50.00 75.00,0.00 100.00,100.00"' in drawn
    assert 'polygon points="50.00,100 ' in drawn
    assert re.findall(r">(\d\d:\d\d) UTC<", drawn) == ["09:00", "09:01", "09:02", "09:03", "09:04"]
    assert re.findall(r'class="y"[^>]*>([^<]*)<', drawn) == ["100", "50", "0"]
    assert 'aria-label="&lt;Rate&gt;"' in drawn


@contextmanager
def counting() -> Iterator[tuple[Throughput, ReputationCounter]]:
    """A service's throughput by the virtual time, and what counts it."""
    with open_throughput(1, lambda: START.timestamp() + trio.current_time()) as throughput:
        yield throughput, ReputationCounter(NO_OBSERVER, throughput.attach())


def show(shop: RunningService, throughput: Throughput) -> None:
    deployment = Deployment(shop.clock(), database="mailprobe.db", throughput=throughput)
    shop.app = create_app(replace(shop.service, deployment=deployment))


async def test_the_page_says_what_was_answered_and_since_when(autojump_clock: Clock) -> None:
    with counting() as (throughput, counter):
        async with open_shop("scale", observer=counter.observer) as shop:
            shop.world.add("strict.test", MailHost(default_unknown=REFUSAL))
            show(shop, throughput)
            ann = await signed_in(shop)
            page = (await ann.get(PAGE)).octets.decode()
            for words in (
                "the first minute has not ended",
                "no mail host was asked",
                "0 of 0 answers",
            ):
                assert words in page, words
            assert "The line begins in two minutes" in page
            await trio.sleep(60)
            await shop.batch("known@friendly.test", "eve@friendly.test", "x@strict.test", "none")
            await trio.sleep(120)
            page = (await ann.get(PAGE)).octets.decode()
            assert "peak 4 at <time" in page
            assert '<p class="figure">33.3 %</p><small>1 of 3 answers</small>' in page
            assert re.search(
                r'<p class="figure">[\d.]+ m?s</p><small>of mail hosts; 99 %: [\d.]+ m?s', page
            )
            assert "since the service started, <time" in page
            assert "3 min ago" in page
            assert '<svg class="chart" role="img" aria-label="Addresses answered' in page
            assert page.count('data-as="clock">') > 5
            day = (await ann.get(f"{PAGE}?hours=24")).octets.decode()
            assert 'href="/dashboard/operator?hours=24#throughput" aria-current="true"' in day
            assert "The line begins in half an hour" in day
            await trio.sleep(3_600)
            page = (await ann.get(PAGE)).octets.decode()
            assert "none in this time" in page
            assert "Answers of this machine. They are not stored." in page
            day = (await ann.get(f"{PAGE}?hours=24")).octets.decode()
            assert "Numbers by 15 minutes" in day
            assert "1 of 3 answers" in day
