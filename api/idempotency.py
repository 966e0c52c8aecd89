"""Idempotency-Key: the first answer again, and nothing done or counted twice.

Kept are the answers that would not be different another time: success, and a
request that is wrong in itself. A limit that was in the way, a store that was
away, a caller who hung up leave the key as if it had never come.
"""

from collections.abc import Awaitable, Callable
from hashlib import sha256

import trio

from api.refusals import IdempotencyReused, IdempotencyRunning, InvalidRequest, Section
from api.requests import Reply
from api.service import Service
from storage.records import Answered, Caller
from storage.store import IdempotencyInProgress, IdempotencyKeyReused

KEY_CHARACTERS_MAX = 255
KEEP_S = 24 * 3600.0
LEASE_S = 60.0  # far longer than the longest request takes
FINISH_S = 1.0  # as long an answer waits until it is kept
KEPT = {200, 201, 202, 400}


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
    caller: Caller,
    key: str,
    fingerprint: str,
    act: Callable[[], Awaitable[Reply]],
) -> Reply:
    """Act, or give the answer that acting gave the first time."""
    account_id = caller.account.id
    try:
        first = await service.store.begin_once(
            account_id, key, fingerprint, keep_s=KEEP_S, lease_s=LEASE_S
        )
    except IdempotencyKeyReused:
        raise IdempotencyReused from None
    except IdempotencyInProgress:
        raise IdempotencyRunning from None
    if first is not None:
        return Reply(first.status, first.body, {"Idempotency-Replayed": "true"})
    answered: Answered | None = None

    async def finish() -> None:
        await service.store.finish_once(account_id, key, answered)

    try:
        reply = await act()
        if reply.status in KEPT and isinstance(reply.body, bytes):
            answered = Answered(reply.status, (), reply.body)
    finally:
        finished = service.recorder.insist(finish)
    with trio.move_on_after(FINISH_S):  # it is kept later where the store can't be asked now
        await finished.wait()
    return reply
