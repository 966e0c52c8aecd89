"""`mailprobe lists update`: installs the lists of a data package, which is signed.

Packages are made by `dev/lists` and published; nothing is built here. All lists are
replaced together or none, and one line says what changed.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from ..errors import CommandError, Misuse
from . import COMMANDS
from .operator_store import read_settings
from .runner import run, sigterm_as_sigint

if TYPE_CHECKING:
    from mailprobe.engine.lists.package import ListPackage

    from ..settings import Settings

DOWNLOAD_S = 120.0  # half a megabyte takes as long at 5 KB/s
KEPT_MIN = 0.5  # a list shorter than this share of the present one was made wrongly
NOT_LISTS = ("SOURCES.md", "VERSION")


class UpdateRefused(CommandError):
    """The present lists stay. Exit code 1."""


class ListChange(Struct, frozen=True):
    """What an update does to one list."""

    file: str
    before: frozenset[bytes]
    now: frozenset[bytes]

    def __str__(self) -> str:
        added, removed = len(self.now - self.before), len(self.before - self.now)
        return f"{self.file} {len(self.now):,} rows (+{added:,} -{removed:,})"


lists = click.Group("lists", help=COMMANDS["lists"].summary)


@lists.command()
@click.argument("package", required=False, metavar="[URL|FILE]")
@click.option("--force", is_flag=True, help="Install older lists, or ones that are much shorter.")
@click.option("--dry-run", is_flag=True, help="Check the package, and change nothing.")
def update(package: str | None, force: bool, dry_run: bool) -> None:
    """Install the lists of a signed data package.

    It is taken from a URL or a file, without one from MAILPROBE_LISTS_URL. Its signature and checksums are verified first. The lists are kept in the folder of
    MAILPROBE_LISTS_DIR, or beside the shipped ones. Restart a running service to use them.

    Without an argument and with MAILPROBE_DISPOSABLE_HOSTS_URL, your list of throwaway
    services' mail hosts is downloaded too.
    """
    settings = read_settings()
    source = package or settings.lists_url
    with_hosts = package is None and settings.disposable_hosts_url is not None
    if source is None and not with_hosts:
        raise Misuse("no package is named; give its URL or its file, or set MAILPROBE_LISTS_URL")
    refused: UpdateRefused | None = None
    with sigterm_as_sigint():
        if with_hosts:
            try:
                _update_hosts(settings, force, dry_run)
            except UpdateRefused as error:  # the package is another download
                if source is None:
                    raise
                refused = error
        if source is not None:
            _update_lists(source, settings, force, dry_run)
    if refused is not None:
        raise refused


def _update_hosts(settings: "Settings", force: bool, dry_run: bool) -> None:
    """Download the owner's list of throwaway services' mail hosts."""
    from mailprobe.engine.lists.lists import load_lists
    from mailprobe.engine.lists.updated_lists import current_folder
    from mailprobe.engine.smtp.operators import load_operators

    from ..downloads import disposable_hosts as hosts_list
    from ..downloads.download import DownloadRefused
    from ..settings import without_password

    url, folder = settings.disposable_hosts_url, settings.engine.own_lists.folder
    assert url is not None
    assert folder is not None  # the settings need both
    file, present = hosts_list.FILE, hosts_list.present_hosts(folder)
    try:
        octets = run(lambda: hosts_list.download_hosts(url))
        shipped = load_lists(current_folder(folder))
        hosts = hosts_list.checked(octets, present, shipped, load_operators(), may_shrink=force)
        if not dry_run:
            hosts_list.replace_list(folder, hosts)
    except DownloadRefused as refused:
        shown = without_password(url)
        raise UpdateRefused(f"{file} of {shown}: {refused}. Nothing was changed.") from None
    except OSError as error:
        raise UpdateRefused(f"{folder / file}: {error.strerror}") from None
    added, removed = len(hosts - present), len(present - hosts)
    would = "would have " if dry_run else ""
    click.echo(f"{folder / file}: {would}{len(hosts):,} rows, {added:,} added, {removed:,} removed")


def _update_lists(source: str, settings: "Settings", force: bool, dry_run: bool) -> None:
    from mailprobe.engine.lists.package import BadPackage, read_package
    from mailprobe.engine.lists.updated_lists import current_folder

    from ..downloads.download import DownloadRefused
    from ..settings import without_password

    own_folder = settings.engine.own_lists.folder
    present = current_folder(own_folder)
    try:
        octets = run(lambda: _download(source)) if "://" in source else _read(source)
        package = read_package(octets, settings.lists_key or _shipped_keys())
        before = {name: _content(present / name) for name in package.files}
        if before == package.files:
            click.echo(f"the lists of {package.version} are installed already")
            return
        changes = _checked(package, before, may_go_back=force)
    except (BadPackage, DownloadRefused) as refused:
        shown = without_password(source)
        raise UpdateRefused(f"{shown}: {refused}. The lists stay as they are.") from None
    if not dry_run:
        _install(package, own_folder)
    done = "would be installed" if dry_run else "installed"
    was = before["VERSION"].decode().strip()
    what = ", ".join(str(each) for each in changes if each.before != each.now) or "no list changed"
    then = "" if dry_run else "; restart a running service to use them"
    click.echo(f"lists of {package.version} {done}, before of {was}: {what}{then}")


async def _download(url: str) -> bytes:
    from mailprobe.engine.lists.package import PACKAGE_OCTETS_MAX

    from ..downloads.download import download

    if not url.startswith(("http://", "https://")):
        raise Misuse(f"{url}: a package is fetched from an http:// or https:// address")
    return await download(
        url, octets_max=PACKAGE_OCTETS_MAX, within_s=DOWNLOAD_S, redirects=True, by_proxy=True
    )


def _read(file: str) -> bytes:
    """Read the package, or as much of it as is too much."""
    from mailprobe.engine.lists.package import PACKAGE_OCTETS_MAX

    path = Path(file)
    if not path.is_file():  # a FIFO would be waited for
        raise Misuse(f"{file} is not a file; give the URL or the file of a package")
    try:
        with path.open("rb") as stream:
            return stream.read(PACKAGE_OCTETS_MAX + 1)
    except OSError as error:
        raise UpdateRefused(f"{file} cannot be read: {error.strerror}") from None


def _shipped_keys() -> tuple[bytes, ...]:
    from mailprobe.engine.lists.lists import DATA

    from ..setting_values import read_public_keys

    return read_public_keys((DATA / "lists.pub").read_text("ascii")) or ()


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _checked(
    package: "ListPackage", before: Mapping[str, bytes], *, may_go_back: bool
) -> list[ListChange]:
    """What the package would change. Raises BadPackage for lists that should not be installed."""
    from mailprobe.engine.lists.lists import load_lists
    from mailprobe.engine.lists.package import BadPackage, rows_of

    with ExitStack() as opened:
        try:
            folder = Path(opened.enter_context(TemporaryDirectory(prefix="mailprobe-lists-")))
            for name, content in package.files.items():
                (folder / name).write_bytes(content)
        except OSError as error:
            raise UpdateRefused(
                f"{error.filename or gettempdir()}: {error.strerror}. The lists stay as they are; TMPDIR "
                "names another folder for temporary files"
            ) from None
        try:
            load_lists(folder)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BadPackage(
                f"this version cannot read its lists ({error!r}); upgrade mailprobe"
            ) from error
    was = before["VERSION"].decode().strip()
    if package.version < was and not may_go_back:
        raise BadPackage(
            f"its lists are of {package.version}, and the present ones of {was}; to go back, "
            "run again with --force"
        )
    changes = [
        ListChange(name, frozenset(rows_of(before[name])), frozenset(rows_of(content)))
        for name, content in package.files.items()
        if name not in NOT_LISTS
    ]
    for change in changes:
        if len(change.now) < len(change.before) * KEPT_MIN and not may_go_back:
            raise BadPackage(
                f"{change.file} would shrink from {len(change.before):,} rows to "
                f"{len(change.now):,}; if that is right, run again with --force"
            )
    return changes


def _install(package: "ListPackage", own_folder: Path | None) -> None:
    from mailprobe.engine.lists.lists import DATA
    from mailprobe.engine.lists.updated_lists import UpdateRuns, install

    try:
        install(package.files, own_folder)
    except UpdateRuns:
        raise UpdateRefused("another update is running; wait until it has ended") from None
    except OSError as error:
        raise UpdateRefused(
            f"{error.filename or own_folder or DATA}: {error.strerror}. The lists stay as they are; to keep them in "
            "another folder, set MAILPROBE_LISTS_DIR, for the service too"
        ) from None
