"""The commands of what mail hosts tolerate."""

from collections.abc import Mapping
from dataclasses import dataclass

from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.tolerances.records import (
    HostKey,
    HostTolerance,
    RefusalGrant,
    RefusalRequest,
)


@dataclass(frozen=True, slots=True)
class LeaseRefusals(StoreCommand[Mapping[HostKey, RefusalGrant]]):
    holder: str
    asked: Mapping[HostKey, RefusalRequest]
    lease_s: float


@dataclass(frozen=True, slots=True)
class ListTolerances(StoreCommand[list[HostTolerance]]):
    egress: str | None
    limit: int
