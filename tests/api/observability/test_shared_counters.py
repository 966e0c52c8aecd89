"""Counts outlive the worker that made them; gauges do not."""

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.observability.shared_counters import (
    OTHER,
    SILENT_S,
    Family,
    SharedCounters,
    open_shared_counters,
)
from tests.api.observability.counting import SMALL, read
from tests.docs.pages import ROOT

FORKS = """
import os, sys, time
from mailprobe.api.observability.shared_counters import SILENT_S, Family, open_shared_counters
from tests.api.observability.counting import SMALL

def worker(act):
    pid = os.fork()
    if pid == 0:
        try:
            act(board.attach())
        except RuntimeError as error:
            print(error)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)

def told():
    return {family.name: [(*each.labels, *each.cells) for each in all] for family, all in board.read()}

def one(row):
    row.numbers("counts").add(("one",), 3)
    row.numbers("states").put(5)
    row.numbers("times").observe(0.5)
    row.heartbeat()

def another(row):
    one(row)
    worker(one)  # beside this one, which is alive
    print(told())
    sys.stdout.flush()
    row.detach()

def one_too_many(row):
    worker(lambda row: worker(print))

with open_shared_counters(SMALL, 2) as board:
    worker(one)
    worker(another)
    print(told(), board.workers_so_far, board.workers_alive)
    sys.stdout.flush()
    worker(one_too_many)
    time.monotonic = lambda now=time.monotonic: now() + SILENT_S
    print(told(), board.workers_so_far, board.workers_alive)
"""


def test_counters_outlive_their_workers_and_gauges_do_not() -> None:
    """A first worker dies silently, a second replaces it, and a third works beside it."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    [while_two, silent_one, too_many, long_after] = done.stdout.splitlines()
    counts = "'counts': [('one', 9.0), ('two', 0.0)]"
    times = "'times': [(0.0, 3.0, 0.0, 1.5)]"
    assert while_two == f"{{{counts}, 'states': [(10.0,)], {times}}}"
    assert silent_one == f"{{{counts}, 'states': [(5.0,)], {times}}} 3 1"
    assert too_many == "there are more than 2 workers"
    assert long_after == f"{{{counts}, 'states': [(0.0,)], {times}}} 5 0"


def test_states_begin_at_nothing_and_counters_go_on(small: SharedCounters) -> None:
    row = small.attach()
    row.numbers("counts").add(("one",))
    row.numbers("states").put(7)
    row = small.attach()  # the same process: the same row
    assert [each.cells for _, all in small.read() for each in all][:3] == [[1.0], [0.0], [0.0]]


SECONDS = st.floats(min_value=0, max_value=100)


@given(st.lists(SECONDS), st.lists(SECONDS, min_size=1, unique=True).map(sorted))
def test_a_bucket_holds_what_is_at_most_its_bound(times: list[float], bounds: list[float]) -> None:
    family = Family("histogram", "times", "", bounds=tuple(bounds))
    with open_shared_counters([family], 1) as board:
        numbers = board.attach().numbers("times")
        for seconds in times:
            numbers.observe(seconds)
        reported = read(board)
    for bound in bounds:
        assert reported("times_bucket", le=repr(bound)) == sum(each <= bound for each in times)
    assert reported("times_bucket", le="+Inf") == reported("times_count") == len(times)
    assert reported("times_sum") == pytest.approx(sum(times))


@given(st.lists(st.text()))
def test_no_input_makes_a_new_series(words: list[str]) -> None:
    with open_shared_counters(SMALL, 1) as board:
        numbers = board.attach().numbers("counts")
        for word in words:
            numbers.add((word,))
        reported = read(board)
    strange = sum(word not in ("one", "two") for word in words)
    assert reported("counts_total", what=OTHER) == strange
    assert len([name for name, _ in reported.samples if name == "counts_total"]) == 2 + bool(
        strange
    )


def test_counting_needs_no_lock_no_file_and_no_library(small: SharedCounters) -> None:
    """`prometheus_client` is imported for the first page of metrics, and not for counting."""
    code = (
        "import sys, mailprobe.api.cli.serve, mailprobe.api.cli.verify, mailprobe.api.rest.app, mailprobe.api.observability.metrics, mailprobe.api.observability.exposition;"
        "assert 'prometheus_client' not in sys.modules;"
        "assert 'structlog' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_verifying_alone_does_not_import_metrics() -> None:
    code = (
        "import sys, mailprobe.api.cli.verify, mailprobe.api.cli.source, engine;"
        "assert not [name for name in sys.modules if 'metrics' in name or name == 'mailprobe.api.observability.logs']"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_worker_that_is_silent_is_not_alive(
    board: SharedCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = board.attach()
    row.numbers("mailprobe_probes").put(3)
    assert (board.workers_alive, board.workers_so_far) == (0, 1)  # no heartbeat yet
    row.heartbeat()
    assert (board.workers_alive, read(board)("mailprobe_probes")) == (1, 3)
    later = time.monotonic() + SILENT_S
    monkeypatch.setattr("mailprobe.api.observability.shared_counters.time.monotonic", lambda: later)
    assert (board.workers_alive, read(board)("mailprobe_probes")) == (0, 0)


def test_numbers_are_a_few_octets_each(board: SharedCounters) -> None:
    """Rows for 256 workers take less than 10 MiB."""
    cells = sum(family.cells * (len(family.series) + 1) for family in board.families)
    assert cells * 8 * 256 < 10 << 20
