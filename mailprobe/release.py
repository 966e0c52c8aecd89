"""Which mailprobe this is: its version, and the commit that it was built from."""

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
BUILT_FROM = HERE / "commit.txt"  # in a wheel and a source distribution: setup.py writes it
ABBREVIATED = 12  # hexadecimal digits of a commit
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


def commit_on_file() -> str:
    """The same without a process, for a command that ends at once: nothing is said of changed files."""
    if BUILT_FROM.exists():
        return BUILT_FROM.read_text("ascii").strip()
    return head_of(HERE.parent)


def head_of(checkout: Path) -> str:
    """Read the commit of a checkout from git's files (gitrepository-layout(5)); `unknown` without."""
    try:
        git = checkout / ".git"
        if git.is_file():  # a worktree, or a submodule
            git = checkout / git.read_text("utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text("ascii").strip()
        shared = git / "commondir"
        common = git / shared.read_text("utf-8").strip() if shared.exists() else git
        if head.startswith("ref:"):
            head = _commit_at(common, head.removeprefix("ref:").strip())
    except (OSError, UnicodeError):
        return "unknown"
    is_commit = len(head) >= 40 and set(head) <= set("0123456789abcdef")
    return head[:ABBREVIATED] if is_commit else "unknown"


def _commit_at(git: Path, ref: str) -> str:
    """The commit that a ref names; "" if there is none. Raises OSError."""
    if (git / ref).is_file():
        return (git / ref).read_text("ascii").strip()
    for line in (git / "packed-refs").read_text("utf-8").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def commit_of(checkout: Path) -> str:
    """Ask git for the commit of a checkout; `unknown` for any other folder, or without git."""
    import subprocess

    if not (checkout / ".git").exists():  # the folder around it may be another project's checkout
        return "unknown"
    describe = ("git", "describe", "--always", "--dirty", f"--abbrev={ABBREVIATED}", "--exclude=*")
    try:
        done = subprocess.run(
            describe, cwd=checkout, capture_output=True, text=True, timeout=GIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
