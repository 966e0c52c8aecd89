"""The bench's own runs of `clean`: killed, resumed, interrupted, and read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mailprobe.bench.lab import Lab
from mailprobe.bench.load.clean_process import CleanProcess
from tests.warm_lab import start_lab

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab("greylisting") as lab:
        yield lab


def test_a_list_that_was_killed_is_resumed_and_has_every_row(lab: Lab, tmp_path: Path) -> None:
    texts = lab.addresses["temporary"][:200]
    lab.forget()
    cleaning = CleanProcess(lab.env, tmp_path, texts, "--recheck", "1", "--recheck-after", "3s")
    try:
        cleaning.start()
        cleaning.kill_after(20, PATIENCE_S)
        assert not (tmp_path / "out.csv").exists()
        cleaning.start(resume=True)
        cleaning.wait(PATIENCE_S)
    finally:
        cleaning.stop()
    results = cleaning.results()
    assert [result.email for result in results] == texts
    assert {result.status for result in results} == {"deliverable"}


def test_a_list_that_was_not_finished_has_what_was_answered(lab: Lab, tmp_path: Path) -> None:
    texts = lab.addresses["temporary"][200:300]
    lab.forget()
    cleaning = CleanProcess(lab.env, tmp_path, texts, "--recheck-after", "1h")
    try:
        cleaning.start()
        cleaning.kill_after(10, PATIENCE_S)
    finally:
        cleaning.stop()
    whys = {result.why for result in cleaning.results()}
    assert {result.email for result in cleaning.results()} == set(texts)
    assert whys <= {"greylisted", "unanswered"}
    assert "greylisted" in whys
