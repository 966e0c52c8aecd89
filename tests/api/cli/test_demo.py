"""`mailprobe demo` from start to end, on real loopback sockets."""

import os
import select
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.cli.test_clean import ROOT, names_in, rows_of
from tests.api.service_process import COMMAND, WARM_COMMAND
from tests.warm_process import WarmProcess

ENDED_S = 10.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the example list in it, and a setting that must not reach the demo."""
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples/list.csv", tmp_path / "examples")
    (tmp_path / "mailprobe.toml").write_text("smtp_port = 1")
    return tmp_path


def start(place: Path, *options: str, warm: bool = True) -> "subprocess.Popen[str]":
    """Start the demo; not `warm` it has its own interpreter, as a user's has."""
    popen, command = (WarmProcess, [WARM_COMMAND]) if warm else (subprocess.Popen, COMMAND)
    return popen(
        [*command, "demo", *options],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MAILPROBE_SMTP_PORT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outliving_in(place: Path) -> Iterator[Path]:
    """Processes that were started there and do not end by themselves.

    The kernel kills the readers when their fork server ends, and the demo can't wait for them: they
    are not its children.
    """
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() != place:
                continue
            ended = os.pidfd_open(int(process.name))
        except OSError:
            continue
        try:
            if not select.select([ended], [], [], ENDED_S)[0]:
                yield process
        finally:
            os.close(ended)


def test_the_demo_cleans_the_example_and_stops_all_it_started(place: Path) -> None:
    with start(place, warm=False) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    for words in ("300 rows", "deliverable", "Keep", "GREEN_LIGHT"):
        assert words in out
    assert out.splitlines()[0] == "cleaned list: examples/list.verified.csv"
    assert "--resume" not in err
    progress = [line for line in err.splitlines() if " of 295 (" in line]
    shown = [line for line in (err + out).splitlines() if line not in progress]
    assert sum(max(1, -(-len(line.rstrip()) // 80)) for line in shown) <= 24
    rows = rows_of(place / "examples/list.verified.csv")
    assert len(rows) == 300
    statuses = Counter(row["status"] for row in rows)
    assert min(statuses[s] for s in ("deliverable", "undeliverable", "catch_all", "invalid")) > 5
    assert names_in(place / "examples") == ["list.csv", "list.verified.csv"]
    assert list(outliving_in(place)) == []


def test_a_verbose_demo_shows_every_reason_and_what_clean_advises(place: Path) -> None:
    with start(place, "--verbose") as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "6 rows are doubtful" in err
    assert "others" not in out
    reasons = {row["reason"] for row in rows_of(place / "examples/list.verified.csv")} - {""}
    assert all(f" {reason} " in out for reason in reasons)
    assert "see the column suggestion" in out


def test_an_interrupted_demo_leaves_nothing_behind(place: Path) -> None:
    with start(place) as process:
        assert process.stderr
        for line in process.stderr:
            if "cleaning" in line:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "nothing is left behind" in err
    assert names_in(place / "examples") == ["list.csv"]
    assert list(outliving_in(place)) == []
