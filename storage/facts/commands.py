"""The commands of the facts that processes share."""

from collections.abc import Sequence
from dataclasses import dataclass

from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.facts.records import FactsRead, NewFact


@dataclass(frozen=True, slots=True)
class WriteFacts(StoreCommand[None]):
    facts: Sequence[NewFact]
    by_process: str


@dataclass(frozen=True, slots=True)
class ReadFacts(StoreCommand[FactsRead]):
    after: int
    not_by: str
    kind: str | None
    limit: int
