"""Checks the checkout before a build, and adds what only the build knows; pyproject.toml says the rest."""

import os
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


def project_urls() -> dict[str, str]:
    """The pages of the repository that builds a release; its workflow runs with both names set."""
    server, repository = (os.environ.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY"))
    if not server or not repository:
        return {}
    home = f"{server}/{repository}"
    return {
        "Source": home,
        "Documentation": f"{home}/tree/main/docs",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
        "Security": f"{home}/security/policy",
    }


setup(project_urls=project_urls())
