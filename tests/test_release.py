"""Version and commit: from the build's file, or from git where this is a checkout."""

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import mailprobe
from mailprobe import release
from mailprobe.api.cli import main
from tests.architecture_map import ROOT
from tests.test_licences import PROJECT


def git(at: Path, *words: str) -> str:
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    return subprocess.check_output(["git", *who, *words], cwd=at, text=True).strip()


def test_a_checkout_says_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "--quiet", "--message=One")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert release.commit_of(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert release.commit_of(tmp_path) == f"{commit}-dirty"
    assert release.head_of(tmp_path) == commit
    git(tmp_path, "pack-refs", "--all")
    assert release.head_of(tmp_path) == commit
    git(tmp_path, "worktree", "add", "--quiet", "--detach", "tree")
    assert release.head_of(tmp_path / "tree") == commit
    git(tmp_path, "-C", "tree", "checkout", "--quiet", "-b", "side")
    assert release.head_of(tmp_path / "tree") == commit
    inner = tmp_path / "site-packages"
    inner.mkdir()
    assert release.commit_of(inner) == "unknown"  # another project's commit is not ours
    assert release.head_of(inner) == "unknown"


def test_without_git_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    assert release.commit_of(tmp_path) == "unknown"  # no repository after all
    assert release.head_of(tmp_path) == "unknown"
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    assert release.head_of(tmp_path) == "unknown"  # nothing was committed yet
    monkeypatch.setenv("PATH", "")
    assert release.commit_of(tmp_path) == "unknown"


def test_the_command_says_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = tmp_path / "commit.txt"
    built.write_text("0123456789ab\n")
    monkeypatch.setattr(release, "BUILT_FROM", built)
    monkeypatch.setattr(subprocess, "Popen", None)  # it starts no process
    said = CliRunner().invoke(main, ["--version"])
    assert said.output == f"mailprobe, version {PROJECT['version']} (commit 0123456789ab)\n"
    assert mailprobe.__version__ == PROJECT["version"]


def test_the_page_says_which_schemas_this_version_reads() -> None:
    page = (ROOT / "docs/upgrade.md").read_text("utf-8")
    row = re.search(
        rf"^\| {re.escape(PROJECT['version'])} \| 1 to (\d+) \| 1 to (\d+) \|$", page, re.M
    )
    assert row
    known = [
        len(list((ROOT / "storage/schema" / kind).glob("*.sql"))) for kind in ("sqlite", "postgres")
    ]
    assert [int(number) for number in row.groups()] == known
