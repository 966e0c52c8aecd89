"""The commands about egresses."""

from dataclasses import dataclass
from datetime import date

from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.egresses.records import EgressBoard, EgressGrant, EgressReport, LatestReply
from mailprobe.storage.records import Actor


@dataclass(frozen=True, slots=True)
class ReportEgresses(StoreCommand[EgressGrant]):
    report: EgressReport


@dataclass(frozen=True, slots=True)
class ReadEgresses(StoreCommand[EgressBoard]):
    day: date


@dataclass(frozen=True, slots=True)
class ReadReplies(StoreCommand[list[LatestReply]]):
    pass


@dataclass(frozen=True, slots=True)
class PauseEgress(StoreCommand[bool]):
    egress: str
    account_id: str | None
    by: Actor


@dataclass(frozen=True, slots=True)
class ResumeEgress(StoreCommand[bool]):
    egress: str
    account_id: str | None
    by: Actor
