"""`mailprobe lists update` with packages from a real server: installed whole, or not at all."""

import fcntl
import gzip
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mailprobe.api.cli import lists as command
from mailprobe.api.cli import main
from mailprobe.engine.lists import lists, updated_lists
from mailprobe.engine.lists.lists import DATA, FILES, load_lists, version_of
from mailprobe.engine.lists.updated_lists import current_folder
from tests.api.cli.lists.packages import (
    FRESH,
    NEXT,
    OTHER_KEY,
    PUBLIC_KEY,
    SHIPPED,
    bomb,
    damaged,
    files_of,
    good,
    of_format,
    package,
    packed,
    packed_head,
    with_member,
    without,
)
from tests.api.cli.lists.site import Site, site
from tests.api.service_process import COMMAND, ROOT

SHIPPED_DAY = version_of(DATA)
CHUNK = bytes(1 << 16)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's folder of lists, and the key of the tests' packages."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("MAILPROBE_LISTS_DIR", str(folder))
    monkeypatch.setenv("MAILPROBE_LISTS_KEY", PUBLIC_KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return folder


def update(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["lists", "update", *map(str, words)])


def files_in(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def is_refused(result: Result, words: str) -> bool:
    assert result.exit_code == 1, result.output
    assert words in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1
    return result.stdout == ""


def test_a_package_of_a_url_is_installed_and_a_line_says_what_changed(own: Path) -> None:
    octets = package(files_of(NEXT, FRESH))
    with site(lists=lambda to: to.answer(octets)) as url:
        first, again = update(f"{url}/lists"), update(f"{url}/lists")
    rows = len(SHIPPED["disposable.txt"].split()) + 1
    assert first.stdout == (
        f"lists of {NEXT} installed, before of {SHIPPED_DAY}: disposable.txt {rows:,} rows (+1 -0); "
        "restart a running service to use them\n"
    )
    assert files_in(current_folder(own)) == files_of(NEXT, FRESH)
    assert load_lists(current_folder(own)).is_disposable(FRESH.decode())
    assert again.stdout == f"the lists of {NEXT} are installed already\n"
    assert (first.exit_code, again.exit_code) == (0, 0)


def test_the_commands_use_what_was_installed(own: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT, FRESH)))
    assert update(tmp_path / "lists.tar.gz").exit_code == 0
    words = ["verify", "--json", f"ann@{FRESH.decode()}"]
    done = subprocess.run([*COMMAND, *words], capture_output=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)["failed_check"] == "disposable"


def test_the_setting_names_a_package_where_no_argument_does(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    monkeypatch.setenv("MAILPROBE_LISTS_URL", str(tmp_path / "lists.tar.gz"))
    assert update().exit_code == 0
    assert version_of(current_folder(own)) == NEXT


def test_a_redirect_is_followed(own: Path) -> None:
    octets = package(files_of(NEXT))
    with site(
        latest=lambda to: to.answer(b"", 302, {"Location": "/lists"}),
        lists=lambda to: to.answer(octets),
    ) as url:
        assert update(f"{url}/latest").exit_code == 0
    assert version_of(current_folder(own)) == NEXT


def test_a_server_that_calls_the_archive_an_encoding_serves_it_too(own: Path) -> None:
    """Apache does so with files that end with .gz."""
    octets = package(files_of(NEXT))
    with site(lists=lambda to: to.answer(octets, headers={"Content-Encoding": "x-gzip"})) as url:
        assert update(f"{url}/lists").exit_code == 0
    assert version_of(current_folder(own)) == NEXT


def test_a_dry_run_checks_and_changes_nothing(own: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT, FRESH)))
    result = update(tmp_path / "lists.tar.gz", "--dry-run")
    assert f"lists of {NEXT} would be installed" in result.stdout
    assert [*own.iterdir()] == []


UNREADABLE = {"typos.toml": SHIPPED["typos.toml"] + b"[mark\n"}
# what is wrong -> the package, made when it is needed, and what the error says
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "signed by another key": (lambda: good(key=OTHER_KEY), "its signature is not by a key"),
    "a damaged signature": (lambda: damaged("manifest.sig"), "its signature is not by a key"),
    "a damaged manifest": (lambda: damaged("manifest.json"), "its signature is not by a key"),
    "a damaged list": (lambda: damaged("disposable.txt"), "disposable.txt in it is damaged"),
    "cut short at its end": (lambda: good()[:-100], "it is cut short, damaged or no package"),
    "cut short early": (lambda: good()[:5_000], "it is cut short, damaged or no package"),
    "empty": (lambda: b"", "manifest.json is not where it should be"),
    "an empty archive": (lambda: packed([]), "manifest.json is not where it should be"),
    "a page of a proxy": (lambda: b"<html>Sign in", "it is cut short, damaged or no package"),
    "one that unpacks to too much": (bomb, "more than 64 MiB when unpacked"),
    "a path that leaves": (lambda: with_member("../../escaped.txt"), "'../../escaped.txt'"),
    "an absolute path": (lambda: with_member("/tmp/escaped.txt"), "'/tmp/escaped.txt'"),
    "a signed path that leaves": (lambda: good({"../../x": b"x\n"}), "not a plain name of a file"),
    "a symbolic link": (lambda: with_member("link", kind=tarfile.SYMTYPE), "'link' in it is no"),
    "a device": (
        lambda: with_member("null", kind=tarfile.CHRTYPE),
        "'null' in it is not a regular",
    ),
    "a long header": (
        lambda: with_member("long", kind=tarfile.GNUTYPE_LONGNAME),
        "'long' in it is not a regular",
    ),
    "a sparse file": (
        lambda: with_member("sparse", kind=tarfile.GNUTYPE_SPARSE),
        "'sparse' in it is not a regular",
    ),
    "a header cut short": (lambda: gzip.compress(b"x" * 700), "it is cut short, damaged or no"),
    "a size that is not there": (lambda: packed_head(1 << 33), "it is cut short, damaged or no"),
    "a size below nothing": (lambda: packed_head(-512), "it is cut short, damaged or no"),
    "a file twice": (lambda: with_member("roles.txt"), "it holds 'roles.txt'"),
    "without a list": (lambda: without("roles.txt"), "roles.txt is missing in it"),
    "without a signature": (lambda: without("manifest.sig"), "manifest.sig is not where it should"),
    "of a later format": (
        lambda: of_format(2),
        "its format is 2 and this version reads 1; upgrade",
    ),
    "lists that cannot be read": (lambda: good(UNREADABLE), "this version cannot read its lists"),
    "older lists": (
        lambda: package(files_of("2026-01-01")),
        f"its lists are of 2026-01-01, and the present ones of {SHIPPED_DAY}; to go back",
    ),
    "a list of less than half": (
        lambda: good({"relays.txt": b"duck.com\n"}),
        "relays.txt would shrink from 34 rows to 1; if that is right, run again with --force",
    ),
    "a day in another form": (
        lambda: package(files_of("20900102")),
        "not a day as YYYY-MM-DD",
    ),
    "a day that is none": (
        lambda: package(files_of("2090-13-01")),
        "its manifest was made wrongly",
    ),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_a_package_that_is_not_right_changes_nothing(
    own: Path, make: Callable[[], bytes], words: str
) -> None:
    octets = make()
    with site(lists=lambda to: to.answer(octets)) as url:
        assert is_refused(update(f"{url}/lists"), words)
    assert [*own.iterdir()] == []
    assert current_folder(own) == DATA


def endless(to: Site) -> None:
    to.answer(b"")
    while True:
        to.wfile.write(CHUNK)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (endless, "it has more than 16 MiB"),
        (lambda to: to.answer(b"", 404), "the server answers 404"),
        (
            lambda to: to.answer(b"\x1f\x8b", headers={"Content-Length": "99"}),
            "it cannot be downloaded",
        ),
        (lambda to: to.answer(b"", 302, {"Location": "/lists"}), "it cannot be downloaded"),
    ],
    ids=["endless", "missing", "broken off", "going in circles"],
)
def test_a_server_that_is_not_right_changes_nothing(
    own: Path, page: Callable[[Site], None], words: str
) -> None:
    with site(lists=page) as url:
        assert is_refused(update(f"{url}/lists"), words)
    assert is_refused(update(f"{url}/lists"), "it cannot be downloaded")  # it is gone
    assert [*own.iterdir()] == []


def test_a_slow_server_is_given_up(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each octet comes in time; all of them do not."""
    monkeypatch.setattr(command, "DOWNLOAD_S", 0.5)
    ended = threading.Event()

    def drip(to: Site) -> None:
        to.answer(b"\x1f")
        while not ended.wait(0.05):
            to.wfile.write(b"x")

    with site(lists=drip) as url:
        result = update(f"{url}/lists")
        ended.set()
    assert is_refused(result, "it took more than 0.5 s")
    assert [*own.iterdir()] == []


def test_force_goes_back_and_installs_shorter_lists(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are used until the product has newer lists than it had then."""
    older = {**files_of("2026-01-01"), "relays.txt": b"duck.com\n"}
    (tmp_path / "older.tar.gz").write_bytes(package(older))
    result = update(tmp_path / "older.tar.gz", "--force")
    assert result.exit_code == 0, result.output
    assert "relays.txt 1 rows (+0 -33)" in result.stdout
    assert files_in(current_folder(own)) == older
    monkeypatch.setattr(updated_lists, "DATA", newer := tmp_path / "newer")
    newer.mkdir()
    (newer / "VERSION").write_text("2089-01-01\n")
    assert current_folder(own) == newer


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give its URL or its file, or set MAILPROBE_LISTS_URL"),
        (["nowhere.tar.gz"], "nowhere.tar.gz is not a file"),
        (["."], ". is not a file"),
        (["ftp://lists.example/x"], "from an http:// or https:// address"),
    ],
)
def test_without_a_package_the_usage_is_wrong(own: Path, words: list[str], said: str) -> None:
    result = update(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_without_settings_they_are_beside_the_shipped_ones_and_signed_by_a_shipped_key(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version of the product with newer lists goes before them."""
    shipped = tmp_path / "data"
    shipped.mkdir()
    for name, content in SHIPPED.items():
        (shipped / name).write_bytes(content)
    (shipped / "lists.pub").write_bytes((DATA / "lists.pub").read_bytes())
    for name in ("LISTS_DIR", "LISTS_KEY"):
        monkeypatch.delenv(f"MAILPROBE_{name}")
    for module in (updated_lists, lists):
        monkeypatch.setattr(module, "DATA", shipped)
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    assert is_refused(update(tmp_path / "lists.tar.gz"), "its signature is not by a key")
    with (shipped / "lists.pub").open("a") as keys:
        keys.write(f"{PUBLIC_KEY}\n")
    assert update(tmp_path / "lists.tar.gz").exit_code == 0
    assert current_folder().parent == shipped / "updated"
    (shipped / "VERSION").write_text("2090-01-02\n")
    assert current_folder() == shipped


def test_lists_of_another_version_that_lack_a_file_are_not_used(own: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    assert update(tmp_path / "lists.tar.gz").exit_code == 0
    (current_folder(own) / "roles.txt").unlink()
    assert current_folder(own) == DATA


def test_a_folder_that_cannot_be_used_is_named(own: Path, tmp_path: Path) -> None:
    (own / "updated").write_text("a file")
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    result = update(tmp_path / "lists.tar.gz")
    assert is_refused(result, f"{own / 'updated'}/")
    assert "set MAILPROBE_LISTS_DIR" in result.stderr


def test_an_update_deletes_nothing_but_former_lists(own: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    theirs = own / "updated/notes/2026.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    assert update(tmp_path / "lists.tar.gz").exit_code == 0
    assert theirs.read_text() == "mine"


def test_a_link_in_place_of_the_folder_is_not_followed(own: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("mine")
    (own / "updated").symlink_to(tmp_path / "precious")
    assert is_refused(update(tmp_path / "lists.tar.gz"), "is a symbolic link")
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["file"]


def test_a_damaged_version_gives_way_to_the_shipped_lists(own: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    assert update(tmp_path / "lists.tar.gz").exit_code == 0
    (own / "updated/current/VERSION").write_bytes(b"\xff\n")
    assert current_folder(own) == DATA
    assert update(tmp_path / "lists.tar.gz").exit_code == 0
    assert version_of(current_folder(own)) == NEXT


def test_a_full_temporary_folder_is_named(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    monkeypatch.setattr(tempfile, "tempdir", "/dev/full")
    assert is_refused(update(tmp_path / "lists.tar.gz"), "TMPDIR names another folder")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTPS_PROXY", "ftp://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://user@[bad"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
    ],
)
def test_a_proxy_or_certificates_that_cannot_be_used_are_one_line(
    own: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert is_refused(update("https://lists.test/lists"), "it cannot be downloaded")


def test_a_host_that_is_no_name_is_one_line(own: Path) -> None:
    assert is_refused(update(f"http://{'a' * 64}.test/lists"), "it cannot be downloaded")


def test_no_password_of_an_address_is_printed(own: Path) -> None:
    result = update("http://ann:s3cret@127.0.0.1:1/lists?token=t0ken")
    assert is_refused(result, "http://ann:***@127.0.0.1:1/lists?token=***")


def test_a_full_disk_leaves_the_old_lists(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 5:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        result = update(tmp_path / "lists.tar.gz")
    assert is_refused(result, f"{own}: No space left on device")
    assert current_folder(own) == DATA
    assert update(tmp_path / "lists.tar.gz").exit_code == 0
    assert version_of(current_folder(own)) == NEXT


def test_two_updates_do_not_run_at_once(own: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    assert update(tmp_path / "lists.tar.gz").exit_code == 0
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of("2090-01-02")))
    with (own / "updated/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_refused(update(tmp_path / "lists.tar.gz"), "another update is running")
    assert version_of(current_folder(own)) == NEXT


def test_a_killed_update_leaves_the_old_lists_or_the_new_ones(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it did last. The next update removes what it left."""
    source = tmp_path / "lists.tar.gz"

    def offer(day: str, throwaways: bytes) -> dict[str, bytes]:
        files = {**files_of(day), "disposable.txt": throwaways}  # short: it is read often
        source.write_bytes(package(files))
        return files

    offer("2090-01-01", b"a.example\nb.example\n")
    assert update(source, "--force").exit_code == 0
    old = offer("2090-01-02", b"a.example\nb.example\nc.example\n")
    assert update(source).exit_code == 0
    new = offer("2090-01-03", b"a.example\nb.example\nd.example\n")
    script = [sys.executable, "-m", "tests.api.cli.lists.killed_update", str(own), str(source)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folders = [tmp_path / f"killed-{number}" for number in range(1, 200)]
    *killed, whole = [folder for folder in folders if folder.exists()]
    found = [files_in(current_folder(folder)) for folder in killed]
    assert all(files in (old, new) for files in found)
    assert old in found
    assert new in found
    assert len(killed) > len(FILES)
    assert files_in(current_folder(whole)) == new
    newest = offer("2090-01-04", b"a.example\nd.example\ne.example\n")
    for folder in killed:
        monkeypatch.setenv("MAILPROBE_LISTS_DIR", str(folder))
        assert update(source).exit_code == 0
        assert files_in(current_folder(folder)) == newest
        assert (
            len([*(folder / "updated").iterdir()]) == 4
        )  # the link, the lock, these, those before


def test_the_owners_list_of_mail_hosts_is_downloaded_too(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short download is refused until it is forced."""
    (own / "disposable_hosts.txt").write_text("a.test\nb.test\n")
    with site(hosts=lambda to: to.answer(b"mx.throwaway.test\n")) as url:
        monkeypatch.setenv("MAILPROBE_DISPOSABLE_HOSTS_URL", f"{url}/hosts")
        assert is_refused(update(), "disposable_hosts.txt of")
        tried, forced = update("--force", "--dry-run"), update("--force")
    assert "disposable_hosts.txt: would have 1 rows, 1 added, 2 removed" in tried.stdout
    assert forced.exit_code == 0, forced.output
    assert "disposable_hosts.txt: 1 rows, 1 added, 2 removed" in forced.stdout
    assert (own / "disposable_hosts.txt").read_text() == "mx.throwaway.test\n"


def test_hosts_out_of_reach_do_not_stop_the_package(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lists.tar.gz").write_bytes(package(files_of(NEXT)))
    monkeypatch.setenv("MAILPROBE_LISTS_URL", str(tmp_path / "lists.tar.gz"))
    monkeypatch.setenv("MAILPROBE_DISPOSABLE_HOSTS_URL", "http://127.0.0.1:1/hosts")
    result = update()
    assert result.exit_code == 1
    assert "disposable_hosts.txt of" in result.stderr
    assert version_of(current_folder(own)) == NEXT
