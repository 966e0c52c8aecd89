"""The outbox, as a queue of letters; the billing meter's counts among them."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import trio

from mailprobe.storage.contract import (
    LETTERS_KEPT,
    LISTED_MAX,
    METER_REST_S,
    METER_SLOT_S,
    at_most,
    check_sent,
)
from mailprobe.storage.memory.claim_queue import Queue
from mailprobe.storage.memory.idempotency import Onces
from mailprobe.storage.records import EPOCH, Account, Letter, LetterKind, letter_id


class Outbox(Onces):
    """What must reach somebody outside."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._letters: Queue[Letter] = Queue()

    async def post(
        self, kind: LetterKind, account_id: str, name: str, body: bytes, *, due_at: datetime
    ) -> bool:
        await trio.lowlevel.checkpoint()
        account = self._accounts[account_id]
        id = letter_id(kind, account.id, name)
        if id in self._letters.entries:
            return False
        letter = Letter(id, kind, account.id, name, body, 0, self._now(), due_at)
        self._letters.put(id, letter, due_at)
        return True

    async def claim_letters(self, kind: LetterKind, *, limit: int, lease_s: float) -> list[Letter]:
        await trio.lowlevel.checkpoint()
        now = self._now()
        claimed = self._letters.claim(
            now,
            limit=limit,
            lease_s=lease_s,
            who=lambda letter: letter.kind == kind,
        )
        return [self._claimed(letter, fence, now) for letter, fence in claimed]

    def _claimed(self, letter: Letter, fence: int, now: datetime) -> Letter:
        first_tried_at = letter.first_tried_at or now
        letter = replace(letter, fence=fence, first_tried_at=first_tried_at)
        self._letters.entries[letter.id] = replace(self._letters.entries[letter.id], thing=letter)
        return letter

    async def letter_tried(
        self, letter: Letter, *, sent: bool, due_at: datetime | None, error: str | None = None
    ) -> bool:
        check_sent(sent, due_at)
        await trio.lowlevel.checkpoint()
        kept = self._letters.of_claim(letter.id, letter.fence)
        if kept is None:
            return False
        tried = replace(
            kept,
            tries=kept.tries + 1,
            due_at=due_at,
            sent_at=self._now() if sent else None,
            error=error,
        )
        self._letters.put(letter.id, tried, due_at)
        return True

    async def letters(
        self, kind: LetterKind, *, account_id: str | None = None, limit: int
    ) -> list[Letter]:
        await trio.lowlevel.checkpoint()
        letters = [entry.thing for entry in reversed(self._letters.entries.values())]
        return [
            letter
            for letter in letters
            if letter.kind == kind and account_id in (None, letter.account_id)
        ][: at_most(LISTED_MAX, limit)]

    def _meter(self, account: Account, billable: int) -> None:
        now = self._now()
        slot = int(now.timestamp()) // METER_SLOT_S * METER_SLOT_S
        while self._letters.fence_of(letter_id("meter", account.id, str(slot))):
            slot += METER_SLOT_S
        id = letter_id("meter", account.id, str(slot))
        if id in self._letters.entries:
            letter = self._letters.entries[id].thing
            letter = replace(letter, count=letter.count + billable)
        else:
            due_at = EPOCH + timedelta(seconds=slot + METER_SLOT_S + METER_REST_S)
            letter = Letter(id, "meter", account.id, str(slot), b"", billable, now, due_at)
        self._letters.put(id, letter, letter.due_at)

    def _drop_letters(self, now: datetime) -> None:
        for letter in [entry.thing for entry in self._letters.entries.values()]:
            if letter.due_at is None and letter.made_at <= now - LETTERS_KEPT[letter.kind]:
                del self._letters.entries[letter.id]
