"""`uvx mailprobe demo` and `pipx run mailprobe demo`, from the wheel, outside of any checkout."""

import os
import shutil
from pathlib import Path

import pytest

from tests.packaging.conftest import INSTALL_S, ROOT, run
from tests.packaging.test_installed import rows

# Each takes the wheel's name where a released package's name would do.
RUNNERS: dict[str, tuple[str, ...]] = {"uvx": ("--from",), "pipx": ("run", "--spec")}
# What the two find programs and packages with, and where they may write.
KEPT = {name: value for name, value in os.environ.items() if name.startswith(("PYENV_", "UV_"))}


@pytest.mark.parametrize("runner", RUNNERS)
def test_one_line_cleans_the_example_list(runner: str, wheel: Path, tmp_path: Path) -> None:
    if not shutil.which(runner):
        pytest.skip(f"this machine has no {runner}")
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    homes = {"UV_CACHE_DIR": str(home / "uv"), "PIPX_HOME": str(home / "pipx")}
    line: tuple[str | Path, ...] = (runner, *RUNNERS[runner], wheel, "mailprobe", "demo")
    run(*line, at=work, timeout_s=2 * INSTALL_S, env=KEPT | homes)
    [cleaned] = work.glob("*.csv")
    assert cleaned.name == "list.verified.csv"
    assert len(rows(cleaned)) == len(rows(ROOT / "examples/list.csv"))
