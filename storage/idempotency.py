"""The first requests with idempotency keys, and their answers. The SQL is each database's own."""

from .base.lease_holders import own_holder
from .commands import BeginIdempotent, FinishIdempotent
from .records import Answered, IdempotencyRecord
from .store_part import (
    StorePart,
    encrypted_answer,
    idempotency_context,
    unpacked,
)


class IdempotencyStore(StorePart):
    """The first requests with idempotency keys, and their answers."""

    async def begin_idempotent(
        self,
        account_id: str,
        key: str,
        body_sha256: str,
        *,
        keep_s: float,
        lease_s: float,
        mark: int = 0,
    ) -> Answered | IdempotencyRecord:
        """Begin a request with an idempotency key.

        Returns a record if this request is the first, else the answer to the first. Raises
        IdempotencyInProgress, IdempotencyKeyReused (which takes precedence), and KeyError
        if there is no such account. A first request that died is forgotten after `lease_s`, or
        at once if its process has ended for certain (see `lease_holders`), an answer `keep_s` after its request began. After an OutcomeUnknown the key is freed
        by `mark`, a random number below MARKS (`IdempotencyRecord.marked`).
        """
        begun = await self._execute(
            BeginIdempotent(account_id, key, body_sha256, lease_s, keep_s, mark, own_holder())
        )
        if isinstance(begun, IdempotencyRecord):
            return begun
        return unpacked(self._cipher.open(begun, idempotency_context(account_id, key)))

    async def finish_idempotent(
        self, idempotency: IdempotencyRecord, answer: Answered | None
    ) -> None:
        """Store the answer for later requests, or (None) free the key for another request.

        For answers that come with no other change. The first answer stays: nothing is
        changed if another request has begun since or an answer is stored. A body of more
        than ANSWER_OCTETS_MAX is not stored; the answer's status is.
        """
        encrypted = None if answer is None else encrypted_answer(self._cipher, idempotency, answer)
        await self._execute(FinishIdempotent(idempotency, encrypted))
