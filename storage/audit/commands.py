"""The commands of the audit log. Most entries are written by the commands that they are about."""

from dataclasses import dataclass

from mailprobe.storage.audit.records import Entry, EntryFilter
from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.records import Actor


@dataclass(frozen=True, slots=True)
class RecordSignIn(StoreCommand[None]):
    account_id: str
    by: Actor


@dataclass(frozen=True, slots=True)
class RecordFailedSignIn(StoreCommand[None]):
    sha256: str
    account_id: str | None
    by: Actor


@dataclass(frozen=True, slots=True)
class ReadAudit(StoreCommand[list[Entry]]):
    account_id: str
    only: EntryFilter
    before: str | None
    limit: int
