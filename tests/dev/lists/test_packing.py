"""From small local archives to installed lists: what CI does, and what an operator does with it."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dev.lists.__main__ import main
from mailprobe.api.cli import main as mailprobe
from mailprobe.engine.lists.lists import FILES, load_lists
from mailprobe.engine.lists.updated_lists import current_folder
from tests.api.cli.lists.site import site
from tests.dev.lists.small_archives import ACCEPT


def script(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, words)])


@pytest.fixture
def public_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a key pair; the private key is where `pack` looks for it."""
    made = script("new-key", tmp_path / "private.key")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "private.key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("LISTS_SIGNING_KEY", (tmp_path / "private.key").read_text())
    return made.stdout.strip()


@pytest.fixture
def built(folder: Path, archives: Path) -> Path:
    result = script("build", archives, "--into", folder, *ACCEPT)
    assert result.exit_code == 0, result.output
    return folder


def test_a_built_package_can_be_installed(
    built: Path, public_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, package = tmp_path / "own", tmp_path / "mailprobe-lists.tar.gz"
    own.mkdir()
    monkeypatch.setenv("MAILPROBE_LISTS_DIR", str(own))
    monkeypatch.setenv("MAILPROBE_LISTS_KEY", public_key)
    assert script("pack", package, "--from", built).exit_code == 0
    # Its throwaways are two thousand and not seventy, so it is forced.
    result = CliRunner().invoke(mailprobe, ["lists", "update", "--force", str(package)])
    assert result.exit_code == 0, result.output
    installed = current_folder(own)
    assert {name: (installed / name).read_bytes() for name in FILES} == {
        name: (built / name).read_bytes() for name in FILES
    }
    assert load_lists(installed).is_disposable("throwaway7.com")


def test_the_same_lists_give_the_same_package(built: Path, public_key: str, tmp_path: Path) -> None:
    for name in ("one", "other"):
        script("pack", tmp_path / name, "--from", built)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_sources_may_be_urls_and_single_files(
    folder: Path,
    archives: Path,
) -> None:
    paths = sorted(archives.iterdir())
    with site(
        **{path.name: lambda to, path=path: to.answer(path.read_bytes()) for path in paths[:3]}
    ) as url:
        urls = [f"{url}/{path.name}" for path in paths[:3]]
        result = script("build", *urls, *paths[3:], "--into", folder, *ACCEPT)
        missing = script("build", f"{url}/{paths[0].name}x", "--into", folder)
    assert result.exit_code == 0, result.output
    assert "disposable.txt: 2,005 rows" in result.stdout
    assert missing.exit_code == 1


def test_a_build_that_changes_a_list_has_the_day_as_its_version(
    built: Path,
    archives: Path,
) -> None:
    day = (built / "VERSION").read_text()
    assert day > "2026-01-01\n"
    (built / "VERSION").write_text("2026-01-02\n")
    assert script("build", archives, "--into", built).exit_code == 0
    assert (built / "VERSION").read_text() == "2026-01-02\n"


@pytest.mark.parametrize("key", [None, "", "c2hvcnQ=", "no base64"])
def test_without_a_key_nothing_is_packed(
    built: Path, tmp_path: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LISTS_SIGNING_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("LISTS_SIGNING_KEY", key)
    result = script("pack", tmp_path / "package", "--from", built)
    assert result.exit_code == 2
    assert "LISTS_SIGNING_KEY" in result.stderr
    assert not (tmp_path / "package").exists()


def test_a_key_is_never_overwritten(public_key: str, tmp_path: Path) -> None:
    before = (tmp_path / "private.key").read_bytes()
    assert script("new-key", tmp_path / "private.key").exit_code == 2
    assert (tmp_path / "private.key").read_bytes() == before
