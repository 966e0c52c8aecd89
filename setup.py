"""Checks the checkout before a build; pyproject.toml says everything else."""

import shutil
from pathlib import Path

from setuptools import setup

PACKAGES = ("api", "bench", "engine", "storage")

broken = [f"mailprobe/{name}" for name in PACKAGES if not Path("mailprobe", name).is_dir()]
if broken:
    raise SystemExit(
        f"{', '.join(broken)}: should be symbolic links to folders, and are not. On Windows, turn on "
        "developer mode, run `git config core.symlinks true`, and check out again; or install a wheel."
    )

# setuptools would put what an earlier build left here into the wheel, moved modules too.
shutil.rmtree("build/lib", ignore_errors=True)

setup()
