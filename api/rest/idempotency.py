"""Idempotency-Key: a repeat gets the first answer, and nothing is done or counted twice.

Answers are stored for work that was counted or done, most of them in the transaction
that counts (`Call.first_answer`): a process that is killed has done nothing, or has
stored the answer. The key stays unused if the request was refused and not counted, the
store was unavailable, or the client disconnected.
"""

from collections.abc import Awaitable, Callable
from hashlib import sha256

import trio

from mailprobe.api.rest.messages import Call, OperationReply
from mailprobe.api.rest.refusals import (
    AnswerLost,
    IdempotencyReused,
    IdempotencyRunning,
    InvalidRequest,
    Section,
)
from mailprobe.api.service import Service
from mailprobe.storage.contract import IdempotencyInProgress, IdempotencyKeyReused
from mailprobe.storage.records import Answered, IdempotencyRecord

KEY_CHARACTERS_MAX = 255
KEEP_S = 24 * 3600.0
LEASE_S = 60.0  # far longer than the longest request takes
FINISH_S = 1.0  # how long a reply waits until it is stored
KEPT = {200, 201, 202}


def check_key(key: str | None, section: Section, *, repeatable: bool) -> str | None:
    """Return the key, or None if none was sent. Raises InvalidRequest."""
    if key is None:
        return None
    if not repeatable:
        raise InvalidRequest("A stream cannot be repeated: it takes no Idempotency-Key.", section)
    if not 1 <= len(key) <= KEY_CHARACTERS_MAX:
        raise InvalidRequest(
            f"The Idempotency-Key must have 1 to {KEY_CHARACTERS_MAX} characters.", section
        )
    return key


def fingerprint(operation: str, query: str, octets: bytes) -> str:
    """Hash of operation, query and body: equal for equal requests."""
    return sha256(f"{operation}?{query}\n".encode() + octets).hexdigest()


async def perform_once(
    service: Service,
    call: Call,
    key: str,
    fingerprint: str,
    act: Callable[[], Awaitable[OperationReply]],
) -> OperationReply:
    """Run `act`, or return the stored answer of its first run.

    Raises AnswerLost, IdempotencyReused, IdempotencyRunning.
    """
    record = await _begin(service, call.caller.account.id, key, fingerprint)
    if isinstance(record, Answered):
        if record.body is None:
            raise AnswerLost
        return OperationReply(record.status, record.body, {"Idempotency-Replayed": "true"})
    call.idempotency, answered = record, None

    async def finish() -> None:
        await service.store.finish_idempotent(record, answered)

    finished = None
    try:
        reply = await act()
        if reply.status in KEPT:
            answered = call.answered(reply)
    except IdempotencyInProgress:  # it took so long that another request has begun
        raise IdempotencyRunning from None
    finally:
        if not call.kept:
            finished = service.background_writes.write_until_durable(finish)
    if finished is not None:
        with trio.move_on_after(FINISH_S):  # stored later if the store is unavailable now
            await finished.wait()
    return reply


async def _begin(
    service: Service, account_id: str, key: str, fingerprint: str
) -> Answered | IdempotencyRecord:
    try:
        return await service.store.begin_idempotent(
            account_id, key, fingerprint, keep_s=KEEP_S, lease_s=LEASE_S
        )
    except IdempotencyKeyReused:
        raise IdempotencyReused from None
    except IdempotencyInProgress:
        raise IdempotencyRunning from None
