"""The base of the parts of `Store`, each with the methods of one subject; and the encrypted columns.

These are the same in every database: here are their format and their context.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from .commands import EncryptedFirst
from .contract import ANSWER_OCTETS_MAX, StoreBroken
from .list_records import ListClaim
from .records import Answered, Claim, FirstAnswer, IdempotencyRecord
from .transaction import Executor

if TYPE_CHECKING:  # it imports cryptography, which not every command line needs
    from .base.encryption import Cipher

T = TypeVar("T")
C = TypeVar("C", Claim, ListClaim)


class StorePart:
    """Has the executor, and encrypts what must be read again."""

    def __init__(self, executor: Executor, cipher: "Cipher") -> None:
        self.executor = executor
        self._execute = executor.execute
        self._cipher = cipher

    def _encrypted(self, first: FirstAnswer | None) -> EncryptedFirst | None:
        return None if first is None else encrypted_first(self._cipher, first)

    def _encrypting(
        self, idempotency: IdempotencyRecord | None, answer: Callable[[T], Answered] | None
    ) -> Callable[[T], EncryptedFirst] | None:
        """Return a function from a result to the answer that is stored with it; None to store none."""
        if idempotency is None or answer is None:
            return None
        return lambda made: encrypted_first(self._cipher, FirstAnswer(idempotency, answer(made)))


def job_context(job_id: str) -> str:
    """The context of a job's secret: it cannot be moved to another job."""
    return f"job {job_id}"


def list_context(list_id: str) -> str:
    """The context of a list's secret."""
    return f"list {list_id}"


def with_secret(cipher: "Cipher", claim: C, encrypted: bytes | None, context: str) -> C:
    """The claim with its secret, or marked if another key has encrypted it."""
    if encrypted is None:
        return claim
    try:
        secret = cipher.open(encrypted, context).decode()
    except StoreBroken:  # only this claim's secret; the others are readable
        return replace(claim, undecryptable=True)
    return replace(claim, secret=secret)


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


def encrypted_first(cipher: "Cipher", first: FirstAnswer) -> EncryptedFirst:
    """Encrypt a FirstAnswer for its column."""
    return EncryptedFirst(first.once, encrypted_answer(cipher, first.once, first.answer))


def _as_kept(answer: Answered) -> Answered:
    """Return the answer as it is stored: without its body if that exceeds ANSWER_OCTETS_MAX."""
    if answer.body is not None and len(answer.body) > ANSWER_OCTETS_MAX:
        return replace(answer, body=None)
    return answer


def encrypted_answer(cipher: "Cipher", idempotency: IdempotencyRecord, answer: Answered) -> bytes:
    """Encrypt an answer for its column, without a body that is too large."""
    return cipher.close(
        packed(_as_kept(answer)), idempotency_context(idempotency.account_id, idempotency.key)
    )
