"""The built wheel, and fresh environments that it is installed into, outside of any checkout."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

ROOT = Path(__file__).parents[2]
# Names that other people's packages have too: their files must stay as they are.
FOREIGN = ("api", "bench", "engine", "storage")
FOREIGN_CODE = 'OWNER = "somebody else"\n'
INSTALL_S = 120
COMMAND_S = 60
COMMIT = "0123456789ab"  # what the wheel is built from, as the build is told
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
# Of the environment only what finds packages and files; no settings and no paths of Python.
KEPT = re.compile(r"PIP_\w+|PATH|LANG|LC_\w+|TMPDIR|SSL_\w+|\w+_proxy", re.IGNORECASE)

INTERPRETERS = (sys.executable, *os.environ.get("OTHERS", "").split())


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    return {**kept, "HOME": str(home)}


def run(
    *command: str | Path,
    at: Path,
    timeout_s: float = COMMAND_S,
    env: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Run a command in a directory; return its standard output, or fail with all that it wrote."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=at,
        env={**environment(at), **env},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty directory to work in."""

    python: Path
    site_packages: Path
    work: Path

    @property
    def mailprobe(self) -> Path:
        return self.python.with_name("mailprobe")

    def run(self, *words: str | Path, **env: str) -> str:
        """Run `mailprobe` with these arguments."""
        return run(self.mailprobe, *words, at=self.work, env=env)

    def execute(self, code: str) -> str:
        """Run a program of Python's."""
        return run(self.python, "-c", code, at=self.work)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git knows or would add, and what an earlier build left there."""
    copy = tmp_path_factory.mktemp("checkout")
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.exists():
            target.write_bytes(source.read_bytes())
    earlier = copy / "build/lib/mailprobe/moved_since.py"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    return copy


def build_wheel(source: Path, into: Path, *, stated: bool = True) -> Path:
    """Build with the setuptools that is locked, from a folder or a source distribution.

    The folder is no checkout of git: the commit is `stated`, or a source distribution has it.
    """
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", into)
    env = {"SOURCE_COMMIT": COMMIT} if stated else {}
    run(sys.executable, *PIP, "wheel", *options, source, at=into, timeout_s=INSTALL_S, env=env)
    [wheel] = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session", params=INTERPRETERS, ids=lambda path: Path(path).name)
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """The wheel and what it declares, at the locked versions, beside the foreign packages."""
    place = tmp_path_factory.mktemp("installed")
    work = place / "work"
    work.mkdir()
    run(request.param, "-m", "venv", "--without-pip", place / "venv", at=place, timeout_s=INSTALL_S)
    python = place / "venv/bin/python"
    where = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", at=place)
    site_packages = Path(where.strip())
    for name in FOREIGN:
        (site_packages / name).mkdir()
        (site_packages / name / "__init__.py").write_text(FOREIGN_CODE)
    pinned = re.findall(r"^\S+==\S+.*(?=\s\\$)", (ROOT / "requirements.lock").read_text(), re.M)
    (place / "constraints.txt").write_text("\n".join(pinned))
    options = ("--no-compile", "--only-binary", ":all:", "--constraint", place / "constraints.txt")
    pip = (sys.executable, *PIP, "--python", python)
    run(*pip, "install", *options, wheel, at=place, timeout_s=INSTALL_S)
    return Installed(python, site_packages, work)
