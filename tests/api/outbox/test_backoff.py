"""The back-off rule, with the figures of every queue that retries by it."""

import ast
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.alerts.sender import RETRY
from mailprobe.api.billing.client import PACE
from mailprobe.api.billing.rules import AFTER_OUTAGE, AFTER_REFUSAL, meter_backoff
from mailprobe.api.jobs.rules import callback_backoff
from mailprobe.api.outbox import backoff
from mailprobe.api.outbox.backoff import Backoff, growing
from mailprobe.api.settings import WEBHOOK_RETRY_S
from tests.test_layers import IMPURE

HOUR_S = 3600.0
CALLBACK = callback_backoff(WEBHOOK_RETRY_S)
RUN = meter_backoff(PACE.backoff_max_s)

# rule -> its pauses at chance 0 and at chance 1, after the first failures, then the longest
FIGURES = {
    "callback": (CALLBACK, 0.8, 1.2, [5, 300, 1800, 7200], 86_400),
    "alert": (RETRY, 1.0, 1.25, [60, 120, 240, 480], 6 * HOUR_S),
    "meter, Stripe is away": (AFTER_OUTAGE, 0.5, 1.0, [2, 4, 8, 16], 900),
    "meter, one is refused": (AFTER_REFUSAL, 0.5, 1.0, [2, 4, 8, 16], HOUR_S),
    "meter, all are refused": (RUN, 0.5, 1.0, [2, 4, 8, 16], 60),
}


def test_it_knows_no_clock_and_no_chance():
    named = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(Path(backoff.__file__).read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        + [alias.name for alias in node.names]
    }
    assert not named & IMPURE


@pytest.mark.parametrize("name", FIGURES)
def test_each_queue_has_its_figures(name: str):
    rule, least, most, first, longest = FIGURES[name]
    for chance, factor in ((0.0, least), (1.0, most), (0.5, (least + most) / 2)):
        pauses = [rule.pause_s(failures, chance=chance) for failures in range(1, 5)]
        assert pauses == pytest.approx([pause * factor for pause in first])
        assert rule.pause_s(len(rule.plan_s), chance=chance) == pytest.approx(longest * factor)


@pytest.mark.parametrize("name", FIGURES)
def test_only_callbacks_have_a_last_try_by_number(name: str):
    rule = FIGURES[name][0]
    assert (rule.pause_s(10**6, chance=0.0) is None) == (name == "callback")
    assert rule.ends == (name == "callback")


@pytest.mark.parametrize(
    ("rule", "asked_s", "pause_s"),
    [
        (CALLBACK, 4, 5),
        (CALLBACK, 6, 6),
        (CALLBACK, 10**9, 86_400),
        (AFTER_OUTAGE, 60, 60),
        (AFTER_OUTAGE, 10**9, 3600),
        (RUN, 10**9, 3600),
        (RETRY, 10**9, 67.5),  # a relay asks for nothing
    ],
)
def test_a_retry_after_is_waited_out_up_to_a_limit(rule: Backoff, asked_s: float, pause_s: float):
    assert rule.pause_s(1, chance=0.5, retry_after_s=asked_s) == pause_s


def test_an_alert_is_tried_for_three_days():
    assert RETRY.pause_s(1, chance=0.0, tried_s=3 * 86_400 - 60) == 60
    assert RETRY.pause_s(1, chance=0.0, tried_s=3 * 86_400 - 59) is None


def test_a_plan_that_does_not_grow_has_one_pause():
    assert growing(2.0, 0.02) == (0.02,)
    assert growing(2.0, 9.0) == (2.0, 4.0, 8.0, 9.0)


@given(
    st.floats(0.1, 100), st.floats(0.1, 10**5), st.floats(0, 1), st.floats(0, 10**6),
    st.integers(1, 10**9),
)  # fmt: skip
def test_a_pause_never_shrinks_and_stays_within_its_bounds(
    first_s, most_s, chance, asked_s, failures
):
    rule = Backoff(growing(first_s, most_s), spread=(0.5, 1.0), retry_after_s_max=HOUR_S)
    pauses = [rule.pause_s(number, chance=chance) or inf for number in range(1, 40)]
    assert all(one <= next_one for one, next_one in pairwise(pauses))
    pause = rule.pause_s(failures, chance=chance, retry_after_s=asked_s)
    assert pause is not None
    assert min(asked_s, HOUR_S) <= pause <= max(most_s, HOUR_S)
