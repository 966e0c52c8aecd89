"""Reads bounces: mails in an mbox, a file or a folder, or a list that a mail service exports."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from mailprobe.engine.address import NotAnAddress, parse

from ...bounces.events import (
    Event,
    SubscriptionConfirmation,
    UnreadableEvents,
    read_events,
)
from ...bounces.exports import ExportReader, ExportSurvey, address_column
from ...bounces.kinds import KINDS, Kind
from ...bounces.reports import bounces_of
from ...listfile.opening import ReadOptions
from ...listfile.survey import BadList
from ...reader.own_list import rows_of
from ...terminal import plain
from .mails import files_of, is_mail, mails_of

EVENT_ENDINGS = frozenset({".ndjson", ".jsonl", ".json"})
EVENT_LINES_TRIED = 20
EVENT_OCTETS_MAX = 1 << 20  # of a line, as of a post
EXAMPLES_MAX = 3  # of each kind
IGNORED: Literal["ignored"] = "ignored"  # what does not say that mail came back
Taken = Kind | Literal["ignored"]
NOTHING_TAKEN = "no row reports a bounce; a column `type` with `hard` or `soft` is one that does"
NAMES: dict[Taken, str] = {
    "no_mailbox": "without a mailbox",
    "refused": "refused by a policy",
    "temporary": "failed for the moment",
    "unknown": "bounced for an unknown reason",
    IGNORED: "ignored: no bounce",
}


class Bounces(Struct):
    """Bounced addresses, each with the gravest of its bounces that was understood."""

    kinds: dict[str, Kind] = field(default_factory=dict)  # by the address as `key_of` writes it
    unread: int = 0  # mails of which no bounce could be read
    others: int = 0  # of these, such as are not bounces: replies, complaints and the like
    rows: Counter[Taken] = field(default_factory=Counter)  # what the rows of a list were taken as
    examples: dict[Taken, list[str]] = field(default_factory=dict)
    read_as: str = "mails"  # a list: whose, or which column said the kind

    def add(self, address: str, kind: Kind | None, words: str = "") -> None:
        """Add what a row or a mail says; None: not that mail came back."""
        taken: Taken = kind or IGNORED
        self.rows[taken] += 1
        examples = self.examples.setdefault(taken, [])
        if len(examples) < EXAMPLES_MAX:
            examples.append(f"{address} ({words})" if words else address)
        if kind is not None:
            key = key_of(address)
            self.kinds[key] = min(self.kinds.get(key, kind), kind, key=KINDS.index)

    @property
    def gone(self) -> list[str]:
        """The addresses that do not exist."""
        return [address for address, kind in self.kinds.items() if kind == "no_mailbox"]


def key_of(address: str) -> str:
    """What two spellings of an address have in common; reports often change its case."""
    try:
        return parse(address).mailbox.lower()
    except NotAnAddress:
        return address.strip().lower()


def read_bounces(path: Path, reading: ReadOptions | None = None) -> Bounces:
    """Read a file or a folder of bounces. Raises BadList."""
    bounces = Bounces()
    try:
        if path.is_dir():
            mails = 0
            for file in files_of(path):
                if is_mail(file):
                    mails += 1
                    _read_mails(file, bounces)
            if not mails:
                raise BadList(f"{plain(str(path))} cannot be read: the folder has no mail in it")
            return bounces
        if is_mail(path):
            _read_mails(path, bounces)
            return bounces
    except OSError as error:
        named = error.filename or path
        raise BadList(f"{plain(os.fsdecode(named))} cannot be read: {error.strerror}") from None
    if path.suffix.lower() in EVENT_ENDINGS and _read_events(path, bounces):
        return bounces
    _read_list(path, reading or ReadOptions(), bounces)
    return bounces


def bounced_in(path: Path | None, say: Callable[[str], None]) -> dict[str, str]:
    """Which addresses do not exist by the file's bounces, for open_answers(). Raises BadList.

    `say` gets what its rows were taken as.
    """
    if path is None:
        return {}
    bounces = read_bounces(path)
    for line in lines_of(bounces):
        say(f"{plain(path.name)}, read as {plain(bounces.read_as)}: {line}")
    return dict.fromkeys(bounces.gone, f"file, {path.name}")


def as_counts(bounces: Bounces) -> dict[str, object]:
    """How many rows were taken as what and how many were ignored, with examples, for JSON."""
    return {
        "read_as": bounces.read_as,
        "taken": {kind: bounces.rows[kind] for kind in KINDS if bounces.rows[kind]},
        "ignored": bounces.rows[IGNORED],
        "examples": bounces.examples,
    }


def lines_of(bounces: Bounces) -> Iterator[str]:
    """How many rows were taken as what, each with examples, for a person."""
    for taken in (*KINDS, IGNORED):
        if count := bounces.rows[taken]:
            examples = ", ".join(plain(example) for example in bounces.examples[taken])
            yield f"{count:,} {NAMES[taken]}, such as {examples}"
    yield from nothing_taken(bounces)


def nothing_taken(bounces: Bounces) -> list[str]:
    """A warning where no row was taken as a bounce."""
    return [NOTHING_TAKEN] if bounces.rows[IGNORED] and not bounces.kinds else []


def _read_mails(path: Path, bounces: Bounces) -> None:
    for number, octets in enumerate(mails_of(path), start=1):
        found = bounces_of(octets)
        if found is None:
            bounces.add(f"mail {number} of {path.name}", None)
        bounces.unread += not found
        bounces.others += found is None
        for address, kind in (found or {}).items():
            bounces.add(address, kind)


def _read_events(path: Path, bounces: Bounces) -> bool:
    """Read lines of events as a mail service posts them; False if the first lines are none."""
    with path.open("rb") as file:
        if not any(_events_in(line) for line in islice(file, EVENT_LINES_TRIED)):
            return False
        file.seek(0)
        for line in iter(partial(file.readline, EVENT_OCTETS_MAX), b""):
            read = _events_in(line)
            if read is None and line.strip():
                bounces.add("a line that is not an event", None)
                continue
            for event in read or ():
                bounces.add(event.address or "an event", event.kind)
    bounces.read_as = "events"
    return True


def _events_in(line: bytes) -> list[Event] | None:
    """The events of a line, which may be one of those that a service posts as an array."""
    for octets in (line, b"[" + line + b"]"):
        try:
            read = read_events(octets)
        except UnreadableEvents:
            continue
        return None if isinstance(read, SubscriptionConfirmation) else read[1]
    return None


def _read_list(path: Path, reading: ReadOptions, bounces: Bounces) -> None:
    """Read a list twice: its columns and their values say how its rows are read. Raises BadList."""
    columns, survey = _surveyed(path, reading)
    reader = ExportReader(columns, survey)
    bounces.read_as = reader.read_as
    column = reading.column or address_column(columns)
    for part in rows_of(path, replace(reading, column=column)):
        for row in part.rows:
            if row.address:
                said = reader.read(row.cells, row.address)
                # Of several addresses nothing says which one it was.
                kind = "unknown" if said.kind and row.is_of_several else said.kind
                bounces.add(row.address, kind, said.words)
            elif any(cell.strip() for cell in row.cells):
                bounces.add("a row without an address", None)


def _surveyed(path: Path, reading: ReadOptions) -> tuple[list[str], ExportSurvey]:
    """The columns of a list, and which of them have kinds only. Raises BadList."""
    survey, columns = ExportSurvey(), list[str]()
    column = reading.column or "1"  # which column has the addresses is not known yet
    for part in rows_of(path, replace(reading, column=column)):
        columns = part.columns
        survey.add(columns, (row.cells for row in part.rows))
    return columns, survey
