"""What has ended before its time: browser sessions, challenges that were used. The last use of keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.records import Actor
from mailprobe.storage.store_part import StorePart


@dataclass(frozen=True, slots=True)
class EndSession(StoreCommand[None]):
    id: str
    until: datetime
    account_id: str
    by: Actor


@dataclass(frozen=True, slots=True)
class HasSessionEnded(StoreCommand[bool]):
    id: str


@dataclass(frozen=True, slots=True)
class UseChallenge(StoreCommand[bool]):
    id: str
    until: datetime


@dataclass(frozen=True, slots=True)
class NoteKeyUses(StoreCommand[None]):
    key_ids: Sequence[str]


KEYS_NOTED_MAX = 500  # in one transaction: some milliseconds, so that no request waits long


class KeyUseStore(StorePart):
    """The part of the store that keeps when keys were last used."""

    async def note_key_uses(self, key_ids: Sequence[str]) -> None:
        """Note that these keys were used now; a key is written at most once in KEY_USE_EVERY."""
        for begin in range(0, len(key_ids), KEYS_NOTED_MAX):
            await self._execute(NoteKeyUses(key_ids[begin : begin + KEYS_NOTED_MAX]))


class SessionStore(StorePart):
    """The part of the store that keeps ended sessions and used challenges, until their time."""

    async def end_session(
        self, session_id: str, until: datetime, account_id: str, by: Actor
    ) -> None:
        """Remember that the session has ended, until its cookie is valid no longer."""
        await self._execute(EndSession(session_id, until, account_id, by))

    async def has_session_ended(self, session_id: str) -> bool:
        """Return whether the session was ended."""
        return await self._execute(HasSessionEnded(session_id))

    async def use_challenge(self, challenge_id: str, until: datetime) -> bool:
        """Use a challenge that is good until then; False if it was used, in whatever process."""
        return await self._execute(UseChallenge(challenge_id, until))
