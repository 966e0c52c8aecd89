"""What the operator has paused at run time, and the machines that serve: two small tables.

Every process reads the pauses about once a second, so they are few.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.records import SERVICE, Actor
from mailprobe.storage.store_part import StorePart

# A domain or an operator of mail hosts is not asked; an account's lists wait; a machine is drained.
PauseKind = Literal["domain", "operator", "account", "machine"]

PAUSES_MAX = 1_000  # each process reads all of them every second
MACHINES_KEPT = timedelta(days=1)  # since a machine was seen last; by then it is gone
WHY_CHARACTERS_MAX = 200


class TooManyPauses(Exception):
    """There are PAUSES_MAX of them."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that lasts until `until`, or (None) until it is ended."""

    kind: PauseKind
    name: str  # a domain as A-labels, the id of an operator or an account, a machine's name
    since: datetime
    until: datetime | None
    why: str


@dataclass(frozen=True, slots=True)
class FleetMachine:
    """A machine whose processes use this store."""

    name: str
    version: str  # of a process that was seen last
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class BeginPause(StoreCommand[Pause]):
    kind: PauseKind
    name: str
    for_s: float | None
    why: str
    by: Actor


@dataclass(frozen=True, slots=True)
class EndPause(StoreCommand[bool]):
    kind: PauseKind
    name: str
    by: Actor


@dataclass(frozen=True, slots=True)
class ListPauses(StoreCommand[list[Pause]]):
    pass


@dataclass(frozen=True, slots=True)
class NoteMachine(StoreCommand[None]):
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class ListMachines(StoreCommand[list[FleetMachine]]):
    pass


class PauseStore(StorePart):
    """The part of the store that keeps pauses and machines."""

    async def pause(
        self,
        kind: PauseKind,
        name: str,
        *,
        for_s: float | None = None,
        why: str = "",
        by: Actor = SERVICE,
    ) -> Pause:
        """Pause this for so long, or until it is ended; an earlier pause of it is replaced.

        An account's pause and its end are in its audit log. Raises TooManyPauses, KeyError if
        there is no such account, ValueError for a `why` of more than WHY_CHARACTERS_MAX.
        """
        if len(why) > WHY_CHARACTERS_MAX:
            raise ValueError(f"why takes at most {WHY_CHARACTERS_MAX} characters")
        return await self._execute(BeginPause(kind, name, for_s, why, by))

    async def unpause(self, kind: PauseKind, name: str, *, by: Actor = SERVICE) -> bool:
        """End a pause; False if there is none."""
        return await self._execute(EndPause(kind, name, by))

    async def pauses(self) -> list[Pause]:
        """Return the pauses that last, by kind and name."""
        return await self._execute(ListPauses())

    async def note_machine(self, name: str, version: str) -> None:
        """A process of this machine runs; forget machines that were not seen for MACHINES_KEPT."""
        await self._execute(NoteMachine(name, version))

    async def machines(self) -> list[FleetMachine]:
        """Return the machines that are not forgotten, by name."""
        return await self._execute(ListMachines())
