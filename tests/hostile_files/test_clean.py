"""A hostile file ends `mailprobe clean` with one line at most, in little time and memory."""

import json
import subprocess
import sys
from pathlib import Path

from mailprobe.bench.lab.hostile_files import files

ROOT = Path(__file__).parents[2]
TOOK_S_MAX = 10  # of processor time; the slowest takes half a second
EXIT_CODES = {"accepted": 0, "too large to store": 0, "refused": 2}


def test_every_hostile_file_is_cleaned_or_refused_within_bounds(tmp_path: Path) -> None:
    """All in one process of 512 MiB: it ends early if a file takes more."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.hostile_files.clean_all", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    ends = [json.loads(line) for line in run.stdout.splitlines()]
    expected = [(each.name, EXIT_CODES[each.expected]) for each in files()]
    assert [(each["name"], each["exit_code"]) for each in ends] == expected, run.stderr[-2000:]
    assert [each["name"] for each in ends if "\n" in each["message"]] == []
    assert [each["name"] for each in ends if each["took_s"] > TOOK_S_MAX] == []
    assert "Traceback" not in run.stderr


def test_the_corpus_is_large_and_each_name_is_used_once() -> None:
    names = [(each.file, each.name) for each in files()]
    assert len(set(names)) == len(names) >= 60
