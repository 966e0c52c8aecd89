"""Checks the checkout before a build, and adds what only the build knows; pyproject.toml says the rest."""

import os
import re
import runpy
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

COMMIT = Path("mailprobe/commit.txt")  # in what is built, never in a checkout
PACKAGES = ("api", "bench", "engine", "storage")

broken = [f"mailprobe/{name}" for name in PACKAGES if not Path("mailprobe", name).is_dir()]
if broken:
    raise SystemExit(
        f"{', '.join(broken)}: should be symbolic links to folders, and are not. On Windows, turn on "
        "developer mode, run `git config core.symlinks true`, and check out again; or install a wheel."
    )

# The pages of the documentation, as they are served. The rest of the build needs no module of ours.
sys.path.insert(0, str(Path().absolute()))
sys.dont_write_bytecode = True
from mailprobe.api.pages.rendering import render_documents  # noqa: E402

try:
    render_documents()
except ImportError as error:
    raise SystemExit(
        f"The documentation is rendered with markdown-it-py and Pygments: {error}. "
        "Install both, or build with isolation."
    ) from error

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


def source_commit() -> str:
    """The commit of this source: what a build without git is told, what a source distribution has, or git's."""
    if given := os.environ.get("SOURCE_COMMIT"):
        if not re.fullmatch(r"[0-9a-f]{7,64}(-dirty)?", given):
            raise SystemExit(f"SOURCE_COMMIT={given!r} is not a commit")
        return given
    return str(runpy.run_path("mailprobe/release.py")["commit"]())


def write_commit(folder: Path) -> None:
    if (commit := source_commit()) != "unknown":
        (folder / COMMIT).write_text(f"{commit}\n", "ascii")


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib))


class SourceWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


setup(
    project_urls=project_urls(),
    cmdclass={"build_py": BuildWithCommit, "sdist": SourceWithCommit},
)
