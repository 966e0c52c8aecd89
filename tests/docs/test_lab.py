"""docs/lab.md describes the lab as it is."""

import re

from mailprobe.bench.lab import SCENARIO_NAMES, Lab
from mailprobe.engine.verdict import Outcome
from tests.docs.pages import bare, table_of


def test_the_lab_is_as_described(lab: Lab) -> None:
    assert [bare(row[0]) for row in table_of("docs/lab.md", "name", "plays")] == [*SCENARIO_NAMES]
    env = next(row[1] for row in table_of("docs/lab.md", "key", "value") if row[0] == "`env`")
    assert re.findall(r"`(\w+)`", env) == [*lab.env]
    assert {Outcome(name) for name in lab.addresses} <= {*Outcome}
