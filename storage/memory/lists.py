"""Lists and their chunks."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from mailprobe.storage.checks import paced_until
from mailprobe.storage.commands import RevokeKey
from mailprobe.storage.contract import (
    WINDOW,
    IdempotencyInProgress,
    ListLimitReached,
    ListRateExceeded,
    ListRoomExceeded,
)
from mailprobe.storage.lease_holders import is_gone
from mailprobe.storage.lists.commands import (
    AddChunks,
    BeginPass,
    ChangeList,
    ClaimChunks,
    CreateList,
    DeleteList,
    EncryptedListClaim,
    ExtendChunk,
    FindList,
    ListLists,
    ReadChunks,
    ReadColumns,
    ReadResults,
    RecordPart,
    ReleaseChunk,
)
from mailprobe.storage.lists.records import (
    ENDED,
    KEY_REVOKED,
    LAST_PLACE,
    ChunkPart,
    ListChunk,
    ListClaim,
    StoredList,
)
from mailprobe.storage.lists.tables import LOADING_MAX
from mailprobe.storage.memory.jobs import MemoryJobs
from mailprobe.storage.records import Caller
from mailprobe.storage.reputation import KEPT_MAX, CountReputation, ReadReputation, ReputationDay


@dataclass(slots=True)
class _Chunk:
    chunk: ListChunk
    due_at: datetime | None = None
    lease_until: datetime | None = None
    fence: int = 0
    passing: int = 0
    holder: str | None = None  # of the latest claim

    def is_due(self, now: datetime) -> bool:
        is_claimed = self.lease_until is not None and self.lease_until > now
        is_free = not is_claimed or (self.holder is not None and is_gone(self.holder))
        return self.due_at is not None and self.due_at <= now and is_free


@dataclass(slots=True)
class _List:
    list: StoredList
    key_id: str
    secret: bytes | None
    chunks: dict[int, _Chunk]
    octets: int = 0
    columns: tuple[str, ...] = ()


class MemoryLists(MemoryJobs):
    """The layer of lists, and of the reputation."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._lists: dict[str, _List] = {}
        self._paced_until: dict[str, datetime] = {}  # by account
        self._reputation: dict[date, ReputationDay] = {}

    def count_reputation(self, command: CountReputation) -> None:
        new = command.counted
        old = self._reputation.get(new.day, ReputationDay(new.day, 0, 0))
        self._reputation[new.day] = ReputationDay(
            new.day, old.answers + new.answers, old.refused + new.refused
        )
        for day in [each for each in self._reputation if each < new.day - KEPT_MAX]:
            del self._reputation[day]

    def reputation(self, command: ReadReputation) -> list[ReputationDay]:
        return [self._reputation[day] for day in sorted(self._reputation) if day >= command.first]

    def create_list(self, command: CreateList) -> StoredList:
        order, account, now = command.order, command.caller.account, self._now()
        kept, bounds = [each.list for each in self._of_account(account.id)], command.bounds
        if sum(each.ended_at is None for each in kept) >= bounds.active_max:
            raise ListLimitReached(bounds.active_max, active=True)
        if len(kept) >= bounds.kept_max:
            raise ListLimitReached(bounds.kept_max, active=False)
        until = paced_until(self._paced_until.get(account.id), now, bounds.per_minute_max)
        if until > now + WINDOW:
            raise ListRateExceeded(now, until - WINDOW)
        self._paced_until[account.id] = until
        made = StoredList(
            order.id, account.id, order.name, "loading", None, 0, 0, 0, {}, now, None,
            order.webhook, order.host, order.rechecks, None, command.caller.key.is_test,
            order.strict_clocks,
        )  # fmt: skip
        last = {LAST_PLACE: _Chunk(ListChunk(LAST_PLACE, 0, ""))}
        self._lists[order.id] = _List(made, command.caller.key.id, command.secret, last)
        return made

    def add_chunks(self, command: AddChunks) -> bool:
        entry = self._lists.get(command.list_id)
        if entry is None or entry.list.state != "loading":
            return False
        octets = sum(len(chunk.rows.encode()) for chunk in command.chunks)
        kept = sum(each.octets for each in self._of_account(entry.list.account_id))
        if kept + octets > command.octets_max:
            raise ListRoomExceeded
        entry.octets += octets
        now = self._now()
        for chunk in command.chunks:
            entry.chunks[chunk.place] = _Chunk(chunk, now if chunk.units else None)
        return True

    def change_list(self, command: ChangeList) -> StoredList | None:
        entry, now = self._lists.get(command.list_id), self._now()
        if entry is None or entry.list.state not in command.before:
            return None
        before, ended_at = entry.list, now if command.state in ENDED else None
        key_id = command.key_id or entry.key_id
        state, cause = command.state, command.cause
        if state == "running" and self._keys[key_id].revoked_at:
            state, cause = "paused", KEY_REVOKED
        entry.list = replace(entry.list, state=state, cause=cause, ended_at=ended_at)
        if (loaded := command.loaded) is not None:
            entry.list = replace(
                entry.list,
                rows=loaded.rows,
                addresses=loaded.addresses,
            )
        if command.answer is not None:
            first = command.answer(entry.list)
            if not self._runs(first.idempotency):
                entry.list = before
                raise IdempotencyInProgress
            self._answer(first)
        entry.key_id = key_id
        if loaded is not None:
            entry.columns = tuple(loaded.columns)
            entry.octets += len(json.dumps(loaded.columns))
            if not loaded.addresses:
                entry.chunks[LAST_PLACE].due_at = now
        return entry.list

    def revoke_key(self, command: RevokeKey) -> bool:
        revoked = super().revoke_key(command)
        for entry in self._lists.values():
            is_of_key = entry.key_id == command.key_id and self._keys[entry.key_id].revoked_at
            if is_of_key and entry.list.state == "running":
                entry.list = replace(entry.list, state="paused", cause=KEY_REVOKED)
        return revoked

    def stored_list(self, command: FindList) -> StoredList | None:
        entry = self._lists.get(command.list_id)
        return entry.list if entry else None

    def lists(self, command: ListLists) -> list[StoredList]:
        found = [
            entry.list
            for entry in self._of_account(command.account_id)
            if command.is_test in (None, entry.list.is_test)
        ]
        return found[::-1][: command.limit]

    def _of_account(self, account_id: str) -> "Iterator[_List]":
        return (entry for entry in self._lists.values() if entry.list.account_id == account_id)

    def claim_chunks(self, command: ClaimChunks) -> list[EncryptedListClaim]:
        now = self._now()
        waiting: dict[str, list[tuple[_List, _Chunk]]] = {}
        for entry in self._lists.values():
            chunks = sorted(entry.chunks.values(), key=lambda each: each.chunk.place)
            account_id = entry.list.account_id
            if entry.list.state == "running":
                due = [(entry, each) for each in chunks if each.is_due(now)]
                waiting.setdefault(account_id, []).extend(due)
        for account_id, due in waiting.items():
            del due[max(0, command.each_max - command.held.get(account_id, 0)) :]
        claimed: list[EncryptedListClaim] = []
        while len(claimed) < command.limit and any(waiting.values()):
            for due in waiting.values():
                if due and len(claimed) < command.limit:
                    claimed.append(self._claim_chunk(*due.pop(0), now, command))
        return claimed

    def _claim_chunk(
        self, entry: _List, chunk: _Chunk, now: datetime, command: ClaimChunks
    ) -> EncryptedListClaim:
        chunk.lease_until = now + timedelta(seconds=command.lease_s)
        chunk.holder = command.holder
        chunk.fence += 1
        caller = Caller(self._accounts[entry.list.account_id], self._keys[entry.key_id])
        return ListClaim(entry.list, caller, chunk.chunk, chunk.fence), entry.secret

    def extend_chunk(self, command: ExtendChunk) -> bool:
        now, chunk = self._now(), self._claimed_chunk(command.claim)
        if chunk is None or chunk.lease_until is None or chunk.lease_until <= now:
            return False
        if self._lists[command.claim.list.id].list.state != "running":
            return False
        chunk.lease_until = now + timedelta(seconds=command.lease_s)
        return True

    def release_chunk(self, command: ReleaseChunk) -> bool:
        chunk = self._claimed_chunk(command.claim)
        if chunk is None:
            return False
        chunk.lease_until, chunk.due_at = None, command.due_at
        return True

    def _claimed_chunk(self, claim: ListClaim) -> _Chunk | None:
        return self._held_chunk(claim.list.id, claim.chunk.place, claim.fence)

    def _held_chunk(self, list_id: str, place: int, fence: int) -> _Chunk | None:
        """Return the chunk if the claim with this fence is its last and has not ended."""
        entry = self._lists.get(list_id)
        chunk = entry.chunks.get(place) if entry else None
        if chunk is None or chunk.fence != fence or chunk.lease_until is None:
            return None
        return chunk

    def _record_chunk(self, part: ChunkPart) -> bool:
        chunk = self._held_chunk(part.list_id, part.place, part.fence)
        if chunk is None:
            return False
        chunk.chunk = replace(chunk.chunk, results=chunk.chunk.results + part.results)
        chunk.passing += part.passing
        if part.ends:
            chunk.lease_until = chunk.due_at = None
        entry = self._lists[part.list_id]
        entry.octets += len(part.results.encode())
        counts = Counter(entry.list.counts)
        counts.update(part.counts)
        answered = entry.list.answered + part.answered
        entry.list = replace(
            entry.list, counts={k: v for k, v in counts.items() if v}, answered=answered
        )
        any_due = any(each.due_at is not None for each in entry.chunks.values())
        if answered == entry.list.addresses and (part.answered or (part.ends and not any_due)):
            entry.chunks[LAST_PLACE].due_at = self._now()
        return True

    def record_part(self, command: RecordPart) -> bool:
        return self._record_chunk(command.part)

    def begin_pass(self, command: BeginPass) -> bool:
        last = self._claimed_chunk(command.claim)
        entry = self._lists.get(command.claim.list.id)
        if last is None or entry is None or entry.list.state != "running":
            return False
        again = [each for each in entry.chunks.values() if each.passing > 0]
        if not again or not entry.list.rechecks:
            return False
        for each in again:
            each.due_at = command.due_at
        rechecks = entry.list.rechecks - 1
        entry.list = replace(entry.list, rechecks=rechecks, recheck_at=command.due_at)
        last.due_at = last.lease_until = None
        return True

    def chunks(self, command: ReadChunks) -> list[ListChunk]:
        entry = self._lists.get(command.list_id)
        found = [each.chunk for each in entry.chunks.values()] if entry else []
        found = [chunk for chunk in found if chunk.place >= max(0, command.first)]
        return sorted(found, key=lambda chunk: chunk.place)[: command.limit]

    def list_results(self, command: ReadResults) -> list[tuple[int, str]]:
        entry = self._lists.get(command.list_id)
        chunks = entry.chunks if entry else {}
        return [(at, chunks[at].chunk.results) for at in command.places if at in chunks]

    def list_columns(self, command: ReadColumns) -> tuple[str, ...]:
        entry = self._lists.get(command.list_id)
        return entry.columns if entry else ()

    def delete_list(self, command: DeleteList) -> bool:
        self._lists.pop(command.list_id, None)
        return True

    def _keys_in_use(self) -> set[str]:
        return super()._keys_in_use() | {entry.key_id for entry in self._lists.values()}

    def _drop_lists(self, account_id: str, since: datetime) -> None:
        for entry in list(self._of_account(account_id)):
            if entry.list.ended_at is not None and entry.list.ended_at < since:
                del self._lists[entry.list.id]

    def _drop_unloaded(self, now: datetime) -> None:
        for entry in list(self._lists.values()):
            if entry.list.state == "loading" and entry.list.created_at < now - LOADING_MAX:
                del self._lists[entry.list.id]

    def _reclaim_chunks(self, lease_max: datetime, wait_max: datetime) -> None:
        for entry in self._lists.values():
            for chunk in entry.chunks.values():
                chunk.lease_until = chunk.lease_until and min(chunk.lease_until, lease_max)
                chunk.due_at = chunk.due_at and min(chunk.due_at, wait_max)
