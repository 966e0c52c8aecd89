"""`mailprobe clean`: the second pass, its options, and the exit code where this machine fails."""

import csv
import os
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from mailprobe.api.cli import main
from mailprobe.api.doctor.named_sender import WITHOUT_A_SENDER
from tests.storage.child_processes import ROOT
from tests.warm_process import WarmProcess


def start(directory: Path, *words: str) -> "subprocess.Popen[str]":
    return WarmProcess(
        ["tests.api.fake_source", "--", "clean", *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def said_until(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"it never said {words!r}")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_ctrl_c_while_it_waits_leaves_what_is_known_and_a_run_to_go_on_with(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("email\nann@shop.test\nslow@shop.test\n")
    with start(tmp_path, "list.csv") as process:
        said_until(process, "waiting until")
        at_once = (tmp_path / "list.verified.csv").read_bytes()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 0
    assert "ask again after temporary failures with: mailprobe clean list.csv --resume" in said
    assert (tmp_path / "list.verified.csv").read_bytes() == at_once
    assert [(row["status"], row["reason"], row["attempts"])
            for row in rows_of(tmp_path / "list.verified.csv")] == [
        ("deliverable", "accepted", "1"), ("unknown", "timeout", "1"),
    ]  # fmt: skip
    with start(tmp_path, "list.csv", "--resume", "--recheck-after", "0s") as process:
        process.communicate()
    assert [row["attempts"] for row in rows_of(tmp_path / "list.verified.csv")] == ["1", "3"]
    assert {path.name for path in tmp_path.iterdir()} == {"list.csv", "list.verified.csv"}


def test_a_run_killed_while_it_waits_goes_on(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("email\nann@shop.test\nslow@shop.test\n")
    with start(tmp_path, "list.csv") as process:
        said_until(process, "waiting until")
        process.kill()
    with start(tmp_path, "list.csv", "--resume", "--recheck", "0") as process:
        process.communicate()
    assert process.returncode == 0
    assert [row["attempts"] for row in rows_of(tmp_path / "list.verified.csv")] == ["1", "1"]


def test_an_output_that_a_person_changed_is_kept(tmp_path: Path) -> None:
    """While the command waits, in the run that goes on, and for each output by itself."""
    (tmp_path / "list.csv").write_text("email\nann@shop.test\nslow@shop.test\n")
    keep, drop, confirm = (tmp_path / f"o.{name}.csv" for name in ("keep", "drop", "confirm"))
    words = ("list.csv", "-o", "o.csv", "--split", "--report", "r.html")
    with start(tmp_path, *words) as process:
        said_until(process, "waiting until")
        keep.write_text("mine\n")
        drop.unlink()
        (tmp_path / "r.html").write_text("mine")
        process.kill()
    with start(tmp_path, *words, "--resume", "--recheck-after", "0s") as process:
        _, said = process.communicate()
    assert process.returncode == 0
    assert "o.keep.csv was changed meanwhile and is kept" in said
    assert (keep.read_text(), (tmp_path / "r.html").read_text()) == ("mine\n", "mine")
    assert len(rows_of(tmp_path / "o.keep.refreshed.csv")) == 1
    assert [row["attempts"] for row in rows_of(confirm)] == ["3"]
    assert rows_of(drop) == []
    assert "<html" in (tmp_path / "r.refreshed.html").read_text()
    assert not (tmp_path / "o.csv.journal").exists()


def test_greylisted_addresses_are_verified_again(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("email\nann@shop.test\nslow@shop.test\n")
    with start(tmp_path, "list.csv", "--recheck-after", "0s,0s,0s") as process:
        process.communicate()
    assert process.returncode == 0
    assert [row["attempts"] for row in rows_of(tmp_path / "list.verified.csv")] == ["1", "4"]


def test_all_unknown_because_of_this_machine_is_written_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("email\nresolver@shop.test\nresolver+1@shop.test\n")
    with start(tmp_path, "list.csv", "--recheck", "0") as process:
        _, said = process.communicate()
    assert process.returncode == 1
    first, *_, last = said.splitlines()
    assert first == f"mailprobe: {WITHOUT_A_SENDER}"
    assert "no name could be looked up; run mailprobe doctor" in last
    assert len(rows_of(tmp_path / "list.verified.csv")) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recheck-after", "5"], "such as 30s, 5m, 1h or 1d"),
        (["--recheck-after", "25h"], "at most 1d"),
        (["--recheck", "11"], "0<=x<=10"),
        (["--recheck", "1", "--recheck-after", "5m,30m"], "2 times for 1 passes"),
        (["--recheck-after", "5m,"], "such as 30s, 5m, 1h or 1d"),
        (["--only", "blue"], "green, yellow and red"),
        (["--only", "green", "--split"], "give one of them"),
        (["--split", "-o", "-"], "name them with -o"),
    ],
)
def test_wrong_options_are_wrong_usage(tmp_path: Path, words: list[str], said: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text("ann@shop.test\n")
    result = CliRunner().invoke(main, ["clean", str(path), *words])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["list.txt"]
