"""The outbox as a queue of messages, including the billing meter's counts."""

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec.structs import replace

from mailprobe.storage.commands import (
    EnqueueMessage,
)
from mailprobe.storage.contract import (
    LISTED_MAX,
    MESSAGES_KEPT_MAX,
    METER_REST_S,
    METER_SLOT_S,
    at_most,
)
from mailprobe.storage.outbox import check_sent
from mailprobe.storage.records import EPOCH, Account, MessageKind, OutboxMessage, message_id
from tests.storage.ledger.claim_queue import ClaimQueue
from tests.storage.ledger.idempotency import ModelIdempotency


class ModelOutbox(ModelIdempotency):
    """The layer of messages to external parties."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._messages: ClaimQueue[OutboxMessage] = ClaimQueue()

    def enqueue_message(self, command: EnqueueMessage) -> bool:
        account = self._accounts[command.account_id]
        id = message_id(command.kind, account.id, command.name)
        if id in self._messages.entries:
            return False
        message = OutboxMessage(
            id, command.kind, account.id, command.name, command.body, 0, self._now(), command.due_at
        )
        self._messages.push(id, message, command.due_at)
        return True

    def is_message_due(self, kind: MessageKind) -> bool:
        return True  # a claim finds what there is

    def claim_messages(
        self, kind: MessageKind, *, limit: int, lease_s: float
    ) -> list[OutboxMessage]:
        now = self._now()
        claimed = self._messages.claim(
            now,
            limit=limit,
            lease_s=lease_s,
            matches=lambda message: message.kind == kind,
        )
        return [self._claimed(message, fence, now) for message, fence in claimed]

    def _claimed(self, message: OutboxMessage, fence: int, now: datetime) -> OutboxMessage:
        first_tried_at = message.first_tried_at or now
        message = replace(message, fence=fence, first_tried_at=first_tried_at)
        self._messages.entries[message.id] = replace(
            self._messages.entries[message.id], thing=message
        )
        return message

    def extend_message(self, message: OutboxMessage, *, lease_s: float) -> bool:
        return self._messages.extend(message.id, message.fence, self._now(), lease_s)

    def message_attempted(
        self,
        message: OutboxMessage,
        *,
        sent: bool,
        due_at: datetime | None,
        error: str | None = None,
    ) -> bool:
        check_sent(sent, due_at)
        kept = self._messages.of_claim(message.id, message.fence)
        if kept is None:
            return False
        tried = replace(
            kept,
            tries=kept.tries + 1,
            due_at=due_at,
            sent_at=self._now() if sent else None,
            error=error,
        )
        self._messages.push(message.id, tried, due_at)
        return True

    def messages(
        self, kind: MessageKind, *, account_id: str | None = None, limit: int
    ) -> list[OutboxMessage]:
        messages = [entry.thing for entry in reversed(self._messages.entries.values())]
        return [
            message
            for message in messages
            if message.kind == kind and account_id in (None, message.account_id)
        ][: at_most(LISTED_MAX, limit)]

    def _meter(self, account: Account, billable: int) -> None:
        now = self._now()
        slot = int(now.timestamp()) // METER_SLOT_S * METER_SLOT_S
        while self._messages.fence_of(message_id("meter", account.id, str(slot))):
            slot += METER_SLOT_S
        id = message_id("meter", account.id, str(slot))
        if id in self._messages.entries:
            message = self._messages.entries[id].thing
            message = replace(message, count=message.count + billable)
        else:
            due_at = EPOCH + timedelta(seconds=slot + METER_SLOT_S + METER_REST_S)
            message = OutboxMessage(id, "meter", account.id, str(slot), b"", billable, now, due_at)
        self._messages.push(id, message, message.due_at)

    def _drop_messages(self, now: datetime) -> None:
        for message in [entry.thing for entry in self._messages.entries.values()]:
            if message.due_at is None and message.made_at <= now - MESSAGES_KEPT_MAX[message.kind]:
                del self._messages.entries[message.id]
