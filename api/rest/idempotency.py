"""Idempotency-Key: the first answer again, and nothing done or counted twice.

Kept are the answers of work that was counted or done. Most are kept in the very
transaction that counts (`Call.first_answer`): a process that is killed has done
nothing, or has the answer. A request that was refused and not counted, a store that
was away, a client that hung up leave the key as if it had never come.
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
FINISH_S = 1.0  # as long an answer waits until it is kept
KEPT = {200, 201, 202}


def check_key(key: str | None, section: Section, *, repeatable: bool) -> str | None:
    """The key, if one was sent that can be used; else None or InvalidRequest."""
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
    """What must be the same for a request to be the same."""
    return sha256(f"{operation}?{query}\n".encode() + octets).hexdigest()


async def once(
    service: Service,
    call: Call,
    key: str,
    fingerprint: str,
    act: Callable[[], Awaitable[OperationReply]],
) -> OperationReply:
    """Act, or give the answer that acting gave the first time."""
    once = await _begin(service, call.caller.account.id, key, fingerprint)
    if isinstance(once, Answered):
        if once.body is None:
            raise AnswerLost
        return OperationReply(once.status, once.body, {"Idempotency-Replayed": "true"})
    call.once, answered = once, None

    async def finish() -> None:
        await service.store.finish_idempotent(once, answered)

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
        with trio.move_on_after(FINISH_S):  # it is kept later where the store can't be asked now
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
