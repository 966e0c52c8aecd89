"""The hook that checks commit messages: `make tools` installs it."""

import subprocess
from pathlib import Path

import pytest

from tests.architecture_map import ROOT

HOOK = ROOT / ".githooks/commit-msg"
WHY = "\n\nBecause of a measurement.\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


@pytest.mark.parametrize(
    ("lines", "message", "is_accepted"),
    [
        (30, "Add a file", True),
        (31, "Add a file", False),
        (31, "Add a file" + WHY, True),
        (31, "Add a file\n\n# a comment of git's\n", False),
        (31, "Add a file\n\nSigned-off-by: ann\n", False),
        (31, "Merge branch 'x'", True),
        (1, "x" * 72, True),
        (1, "ü" * 72, True),
        (1, "x" * 73, False),
        (1, "# a comment\n" + "x" * 73 + WHY, False),
    ],
)
def test_a_message_is_checked(checkout: Path, lines: int, message: str, is_accepted: bool) -> None:
    (checkout / "file").write_text("a line\n" * lines, "utf-8")
    subprocess.run(["git", "add", "file"], cwd=checkout, check=True)
    (checkout / "message").write_text(message, "utf-8")
    done = subprocess.run([HOOK, "message"], cwd=checkout, capture_output=True, text=True)
    assert (done.returncode == 0) == is_accepted, done.stderr
