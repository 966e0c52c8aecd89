"""The suite of cold starts in small: every figure comes, and a command that fails is told of."""

from pathlib import Path

import pytest

from mailprobe.bench.harness.figures import promised
from mailprobe.bench.suites.start import NeverStarted, measure, to_question, to_word


def test_every_start_comes_to_its_end_and_every_promise_has_its_figure() -> None:
    figures = promised("start", measure(1))
    assert len({figure.what for figure in figures}) == len(figures) == 4
    assert all(figure.value > 0 and figure.cpu_us for figure in figures)
    assert all(figure.at_most for figure in figures)


def test_a_command_that_asks_nothing_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(NeverStarted, match="no such option '--nope'"):
        to_question(["verify", "--nope"], tmp_path)


def test_a_service_that_never_serves_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(NeverStarted, match="no such option '--nope'"):
        to_word(["serve", "--nope"], tmp_path)
