"""dev/lab.md describes the lab as it is."""

import re
import sys
from pathlib import Path

from mailprobe.bench.lab import SCENARIO_NAMES, Lab
from mailprobe.engine.verdict import Outcome
from tests.docs.pages import ROOT, bare, blocks_of, table_of
from tests.docs.programs import run


def test_the_lab_is_as_described(lab: Lab) -> None:
    assert [bare(row[0]) for row in table_of("dev/lab.md", "name", "plays")] == [*SCENARIO_NAMES]
    env = next(row[1] for row in table_of("dev/lab.md", "key", "value") if row[0] == "`env`")
    assert re.findall(r"`(\w+)`", env) == [*lab.env]
    assert {Outcome(name) for name in lab.addresses} <= {*Outcome}


def test_the_librarys_script_is_answered_by_the_lab(tmp_path: Path) -> None:
    [text] = [
        block.text
        for block in blocks_of(ROOT / "docs/library.md")
        if "from_environment" in block.text
    ]
    (tmp_path / "script.py").write_text(text, "utf-8")
    code, output = run(["mailprobe", "lab", "--", sys.executable, "script.py"], tmp_path, {})
    assert (code, output.splitlines()[-1]) == (0, "deliverable"), output
