"""A kill, a full disk, or a list that changes, at each step of `clean`: see faulty_clean."""

import subprocess
from pathlib import Path

import pytest

from tests import warm_process
from tests.api.cli.cleaning.faulty_clean import LISTS, STEPS_MAX


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("fault", ["kill", "fill", "truncate", "replace", "rename"])
def test_no_fault_at_any_step_loses_a_list_or_gives_a_wrong_output(
    tmp_path: Path, name: str, fault: str
) -> None:
    done = warm_process.run(
        ["tests.api.cli.cleaning.faulty_clean", name, fault, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= STEPS_MAX
