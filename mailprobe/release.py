"""Which mailprobe this is: its version, and the commit that it was built from."""

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
BUILT_FROM = HERE / "commit.txt"  # in a wheel and a source distribution: setup.py writes it
GIT_S = 5.0  # git answers in milliseconds, unless its disk hangs


def version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("mailprobe")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"


@cache
def commit() -> str:
    """Return the commit, with `-dirty` where files were changed since; `unknown` if nobody can say."""
    if BUILT_FROM.exists():
        return BUILT_FROM.read_text("ascii").strip()
    return commit_of(HERE.parent)


def commit_of(checkout: Path) -> str:
    """Ask git for the commit of a checkout; `unknown` for any other folder, or without git."""
    import subprocess

    if not (checkout / ".git").exists():  # the folder around it may be another project's checkout
        return "unknown"
    describe = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    try:
        done = subprocess.run(
            describe, cwd=checkout, capture_output=True, text=True, timeout=GIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
