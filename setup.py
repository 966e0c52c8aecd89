"""Refuses to build from a checkout without symbolic links; pyproject.toml says everything else."""

from pathlib import Path

from setuptools import setup

PACKAGES = ("api", "bench", "engine", "storage")

broken = [f"mailprobe/{name}" for name in PACKAGES if not Path("mailprobe", name).is_dir()]
if broken:
    raise SystemExit(
        f"{', '.join(broken)}: should be symbolic links to folders, and are not. On Windows, turn on "
        "developer mode, run `git config core.symlinks true`, and check out again; or install a wheel."
    )

setup()
