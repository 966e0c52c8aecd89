"""The promises about the pages' scripts hold; what takes time is measured by the bench alone."""

import tomllib

from mailprobe.bench.harness.figures import BUDGETS
from mailprobe.bench.suites.serving.pages import script_sizes


def test_the_scripts_are_small() -> None:
    promises = tomllib.loads(BUDGETS.read_text("utf-8"))["pages"]
    for figure in script_sizes():
        assert figure.value <= promises[figure.what]["at_most"], figure.what
