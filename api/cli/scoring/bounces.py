"""Reads bounces: mails in an mbox, a file or a folder, or a list that a mail service exports."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mailprobe.api.bounces.kinds import KINDS, Kind, kind_of
from mailprobe.api.bounces.reports import bounces_of
from mailprobe.api.cli.scoring.mails import files_of, is_mail, mails_of
from mailprobe.api.listfile import BadList, ReadOptions
from mailprobe.api.reader.own_list import rows_of
from mailprobe.api.terminal import plain
from mailprobe.engine.address import NotAnAddress, parse

ROW_TEXT_MAX = 4_000
# Columns of an export that say why; if none has such a name, all columns are read.
WHY = re.compile(
    r"type|class|categor|kind|reason|status|code|descri|diagnos|bounce|error|detail|response|"
    r"message|event|smtp|result",
    re.IGNORECASE,
)
# Cells of an export of all events that say that the address did not bounce.
NO_BOUNCE = re.compile(
    r"(?:delivered|delivery|open(?:s|ed)?|click(?:s|ed)?|processed|sent|send|injection|"
    r"complaints?|complained|spam ?report|(?:list[ _-]?)?unsubscribed?|subscribed?)",
    re.IGNORECASE,
)
BOUNCE = re.compile(r"bounce|fail|drop|reject|hard|soft|undeliver", re.IGNORECASE)


@dataclass(slots=True)
class Bounces:
    """Bounced addresses, each with the gravest of its bounces that was understood."""

    kinds: dict[str, Kind] = field(default_factory=dict)  # by the address as `key_of` writes it
    unread: int = 0  # mails of which no bounce could be read
    others: int = 0  # of these, such as are no bounces: replies, complaints and the like

    def add(self, address: str, kind: Kind) -> None:
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
    for address, kind in _listed(path, reading or ReadOptions()):
        bounces.add(address, kind)
    return bounces


def bounced_in(path: Path | None) -> dict[str, str]:
    """Which addresses do not exist by the file's bounces, for open_answers(). Raises BadList."""
    if path is None:
        return {}
    return dict.fromkeys(read_bounces(path).gone, f"file, {path.name}")


def _read_mails(path: Path, bounces: Bounces) -> None:
    for octets in mails_of(path):
        found = bounces_of(octets)
        bounces.unread += not found
        bounces.others += found is None
        for address, kind in (found or {}).items():
            bounces.add(address, kind)


def _listed(path: Path, reading: ReadOptions) -> Iterator[tuple[str, Kind]]:
    """The addresses of a list with what their rows say."""
    for part in rows_of(path, reading):
        for row in part.rows:
            if not row.address:
                continue
            cells = row.cells
            why = zip(part.columns, cells, strict=False)
            said = [cell for column, cell in why if WHY.search(column)] or cells
            said = [_without(cell, row.address) for cell in said]
            text = " | ".join(cell for cell in said if cell)[:ROW_TEXT_MAX]
            if BOUNCE.search(text) or not any(map(NO_BOUNCE.fullmatch, said)):
                yield row.address, kind_of(text)


def _without(cell: str, address: str) -> str:
    """A cell without the address, which may have words of a reason in it."""
    return cell.replace(address, "").strip(" \t<>:,;")
