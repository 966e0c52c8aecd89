"""The first requests with idempotency keys, and their answers. The SQL is each database's own."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from .base.lease_holders import own_holder
from .commands import BeginIdempotent, EncryptedFirst, FinishIdempotent
from .contract import ANSWER_OCTETS_MAX
from .database import StorePart
from .records import Answered, FirstAnswer, IdempotencyRecord

if TYPE_CHECKING:  # it imports cryptography, which not every command line needs
    from .base.encryption import Cipher

T = TypeVar("T")


# an answer as it is stored


def idempotency_context(account_id: str, key: str) -> str:
    """The context of an answer: it cannot be moved to another account or key."""
    return f"{account_id}\n{key}"


def packed(answer: Answered) -> bytes:
    """Serialise an answer: a line of JSON with status and headers, then the body."""
    head = {"status": answer.status, "headers": answer.headers, "kept": answer.body is not None}
    return json.dumps(head).encode() + b"\n" + (answer.body or b"")


def unpacked(octets: bytes) -> Answered:
    """Restore an answer from the octets that `packed` returned, or that of an earlier version.

    That had an array in the place of the names: the status, the headers, and "not kept".
    """
    head, _, body = octets.partition(b"\n")
    found = json.loads(head)
    if isinstance(found, list):
        found = {"status": found[0], "headers": found[1], "kept": len(found) == 2}
    headers = tuple((name, value) for name, value in found["headers"])
    return Answered(found["status"], headers, body if found["kept"] else None)


def encrypted_first(cipher: "Cipher", first: FirstAnswer | None) -> EncryptedFirst | None:
    """Encrypt a FirstAnswer for its column."""
    if first is None:
        return None
    return EncryptedFirst(first.once, encrypted_answer(cipher, first.once, first.answer))


def encrypting(
    cipher: "Cipher", idempotency: IdempotencyRecord | None, answer: Callable[[T], Answered] | None
) -> Callable[[T], EncryptedFirst] | None:
    """Return a function from a result to the answer that is stored with it; None to store none."""
    if idempotency is None or answer is None:
        return None
    return lambda made: EncryptedFirst(
        idempotency, encrypted_answer(cipher, idempotency, answer(made))
    )


def encrypted_answer(cipher: "Cipher", idempotency: IdempotencyRecord, answer: Answered) -> bytes:
    """Encrypt an answer for its column, without a body that is too large."""
    return cipher.close(
        packed(_as_kept(answer)), idempotency_context(idempotency.account_id, idempotency.key)
    )


def _as_kept(answer: Answered) -> Answered:
    """Return the answer as it is stored: without its body if that exceeds ANSWER_OCTETS_MAX."""
    if answer.body is not None and len(answer.body) > ANSWER_OCTETS_MAX:
        return replace(answer, body=None)
    return answer


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
