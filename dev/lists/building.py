"""Makes the lists anew from the archives of their upstreams, and says what changed and why.

Every file is written under a temporary name and renamed at the end. What the lists gain
and lose is printed with the rule behind it.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
import publicsuffixlist
from msgspec import Struct

from dev.lists.build_lists import Curated, Made, check, make_lists
from dev.lists.upstreams import (
    ARCHIVE_OCTETS_MAX,
    DISPOSABLE_SOURCES,
    FREE_SOURCES,
    SOURCES,
    VETO_SOURCES,
    BadUpstream,
    ListSource,
    Upstream,
    check_lengths,
    read_upstream,
)
from mailprobe.engine.lists.lists import VERSION_FILE, load_typos, read_names

SAMPLES = 5  # names shown per list, direction and reason
REASONS_SHOWN = 12
LOSS_MAX = 0.1  # the share of a list that may leave it at once
TABLE_BEGIN = "<!-- made by `make lists`: begin -->"
TABLE_END = "<!-- made by `make lists`: end -->"
CURATED = (
    "allow.txt",
    "disposable_hosts.txt",
    "free_core.txt",
    "not_free.txt",
    "relays.txt",
    "roles.txt",
    "smtp_blocked.txt",
)


class ListChange(Struct, frozen=True):
    """What a build does to one list."""

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


def build(
    archives: Path,
    errors: Mapping[str, str],
    folder: Path,
    *,
    dry_run: bool,
    report: Path | None,
    accepted: frozenset[str],
) -> bool:
    """Make the lists of a folder anew. False if an upstream is out of reach, whose domains then stay.

    `errors` says by package why its archive is missing. `accepted` are the packages and lists
    whose unusual length is right. Raises BadUpstream, and changes nothing then.
    """
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
    texts["SOURCES.md"] = _sources(folder, made, upstreams, former)
    if any(text != _text(folder / file) for file, text in texts.items()):
        texts[VERSION_FILE] = f"{datetime.now(UTC).date().isoformat()}\n"
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


class SourceRow(Struct, frozen=True):
    """A row of the table of upstreams in SOURCES.md."""

    text: str
    count: int


def _former_rows(text: str) -> dict[str, SourceRow]:
    """The upstreams' rows in the present SOURCES.md, by title."""
    titles = "|".join(re.escape(source.title) for source in SOURCES)
    found = re.finditer(rf"^\| ({titles}) \|.*\| ([\d,]+) \|.*$", text, re.MULTILINE)
    return {row[1]: SourceRow(row[0], int(row[2].replace(",", "") or 0)) for row in found}


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _sources(
    folder: Path, made: Made, upstreams: list[Upstream], former: Mapping[str, SourceRow]
) -> str:
    """SOURCES.md with new tables."""
    text = (folder / "SOURCES.md").read_text("utf-8")
    head, begin, rest = text.partition(TABLE_BEGIN)
    _, end, tail = rest.partition(TABLE_END)
    if not begin or not end:
        raise BadUpstream(f"{folder / 'SOURCES.md'} has lost the marks of its table")
    return head + begin + _tables(folder, made, upstreams, former) + end + tail


def _tables(
    folder: Path, made: Made, upstreams: list[Upstream], former: Mapping[str, SourceRow]
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
