"""Idempotency-Key: a repeat gets the first answer, and nothing is done or counted twice.

Answers are stored for work that was counted or done, most of them in the transaction
that counts (`Call.first_answer`): a process that is killed has done nothing, or has
stored the answer. The key stays unused if the request was refused and not counted, the
store was unavailable, or the client disconnected.
"""

from functools import partial
from hashlib import sha256
from secrets import randbelow

import trio

from mailprobe.storage.contract import IdempotencyInProgress, IdempotencyKeyReused, OutcomeUnknown
from mailprobe.storage.records import MARKS, Answered, IdempotencyRecord

from ..operations.operation import Act, Call, OperationReply
from ..refusals import (
    AnswerLost,
    IdempotencyReused,
    IdempotencyRunning,
    InvalidRequest,
    Section,
)
from ..service import Service

KEY_CHARACTERS_MAX = 255
KEEP_S = 24 * 3600.0
LEASE_S = 60.0  # far longer than the longest request takes
# Most lists are read and stored in less. One that is not loses its key to the next repeat: its
# transaction fails, and the repeat is stored.
UPLOAD_LEASE_S = 180.0
FINISH_S = 1.0  # how long a reply waits until it is stored
KEPT = {200, 201, 202}


def check_key(key: str, section: Section, *, repeatable: bool) -> None:
    """Raise InvalidRequest if the operation takes no key, or none of this length."""
    if not repeatable:
        raise InvalidRequest("A stream cannot be repeated: it takes no Idempotency-Key.", section)
    if not 1 <= len(key) <= KEY_CHARACTERS_MAX:
        raise InvalidRequest(
            f"The Idempotency-Key must have 1 to {KEY_CHARACTERS_MAX} characters.", section
        )


def make_repeatable(service: Service, call: Call, key: str, operation: str, query: str) -> None:
    """Let an upload run at most once. Its fingerprint is taken while its body is received."""
    digest, receive = sha256(_head(operation, query)), call.receive
    assert receive is not None

    async def received() -> bytes:
        part = await receive()
        digest.update(part)
        return part

    async def repeats(act: Act) -> OperationReply:
        return await perform_once(service, call, key, digest.hexdigest(), act, UPLOAD_LEASE_S)

    call.receive, call.repeats = received, repeats


def _head(operation: str, query: str) -> bytes:
    return f"{operation}?{query}\n".encode()


def fingerprint(operation: str, query: str, octets: bytes) -> str:
    """Hash of operation, query and body: equal for equal requests."""
    return sha256(_head(operation, query) + octets).hexdigest()


async def perform_once(
    service: Service,
    call: Call,
    key: str,
    fingerprint: str,
    act: Act,
    lease_s: float | None = None,
) -> OperationReply:
    """Run `act`, or return the stored answer of its first run.

    Raises AnswerLost, IdempotencyReused, IdempotencyRunning.
    """
    account_id = call.caller.account.id
    record = await _begin(service, account_id, key, fingerprint, lease_s or LEASE_S)
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
    service: Service, account_id: str, key: str, fingerprint: str, lease_s: float
) -> Answered | IdempotencyRecord:
    mark = randbelow(MARKS)
    try:
        return await service.store.begin_idempotent(
            account_id, key, fingerprint, keep_s=KEEP_S, lease_s=lease_s, mark=mark
        )
    except OutcomeUnknown:  # it may have begun, and the client will repeat it after the 503
        begun = IdempotencyRecord.marked(account_id, key, mark)
        free = partial(service.store.finish_idempotent, begun, None)
        service.background_writes.write_until_durable(free)
        raise
    except IdempotencyKeyReused:
        raise IdempotencyReused from None
    except IdempotencyInProgress:
        raise IdempotencyRunning from None
