"""The first requests with idempotency keys, and their answers."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from .base.columns import micros
from .base.lease_holders import is_gone, own_holder
from .commands import BeginIdempotent, EncryptedFirst, FinishIdempotent, Raised
from .contract import ANSWER_OCTETS_MAX, IdempotencyInProgress, IdempotencyKeyReused
from .database import Database, StorePart
from .records import MARKS, Answered, FirstAnswer, IdempotencyRecord

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


def encrypted_first(cipher: "Cipher", first: FirstAnswer) -> EncryptedFirst:
    """Encrypt a FirstAnswer for its column."""
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


# the transactions

OF_REQUEST = (
    "account = (SELECT number FROM accounts WHERE id = :account) AND key = :key AND answer IS NULL"
)
RUNS = f"{OF_REQUEST} AND lease_until = :until"
KEPT = (
    "INSERT INTO idempotency_records (account, key, body_sha256, lease_until, keep_until, holder)"
    " VALUES (:account, :key, :body_sha256, :lease_until, :keep_until, :holder)"
    " ON CONFLICT (account, key) DO UPDATE SET"
    " body_sha256 = excluded.body_sha256, lease_until = excluded.lease_until,"
    " keep_until = excluded.keep_until, holder = excluded.holder, answer = NULL"
)


def begin(
    db: Database, now: datetime, those: Sequence[tuple[BeginIdempotent, int]]
) -> list[IdempotencyRecord | bytes | Raised]:
    """Return a record for each first request, and for another one the encrypted answer or Raised.

    Each comes with its account's number, and the accounts are locked.
    """
    found = db.all_each(
        "SELECT body_sha256, answer, holder FROM idempotency_records"
        " WHERE account = :account AND key = :key AND keep_until > :now"
        " AND (answer IS NOT NULL OR lease_until > :now AND lease_until <= :longest)",
        [
            {
                "account": account, "key": command.key, "now": micros(now),
                # a longer lease was written by a clock that was ahead
                "longest": micros(now + timedelta(seconds=command.lease_s)),
            }
            for command, account in those
        ],
    )  # fmt: skip
    standing = {
        (account, command.key): (body, answer)
        for (command, account), rows in zip(those, found, strict=True)
        for body, answer, holder in rows
        if answer is not None or not is_gone(holder or "")
    }
    begun: list[dict[str, object]] = []
    outcomes: list[IdempotencyRecord | bytes | Raised] = []
    for command, account in those:
        if before := standing.get((account, command.key)):
            outcomes.append(_again(command, *before))
            continue
        until = command.lease_until(now)
        begun.append(
            {
                "account": account, "key": command.key, "body_sha256": command.body_sha256,
                "lease_until": micros(until), "holder": command.holder,
                "keep_until": micros(now + timedelta(seconds=command.keep_s)),
            }
        )  # fmt: skip
        standing[account, command.key] = command.body_sha256, None
        outcomes.append(IdempotencyRecord(command.account_id, command.key, until))
    db.change_each(KEPT, begun)
    return outcomes


def _again(command: BeginIdempotent, body_sha256: str, answer: bytes | None) -> bytes | Raised:
    if body_sha256 != command.body_sha256:
        return Raised(IdempotencyKeyReused())
    return Raised(IdempotencyInProgress()) if answer is None else bytes(answer)


def finish(db: Database, record: IdempotencyRecord, answer: bytes | None) -> None:
    """Store the encrypted answer, or (None) delete the record, if the request still runs."""
    if answer is not None:
        keep(db, EncryptedFirst(record, answer))
    else:
        db.change(
            f"DELETE FROM idempotency_records WHERE {OF_REQUEST} AND lease_until % {MARKS} = :mark",
            {**_values_of(record), "mark": record.lease_until.microsecond},
        )


def running(db: Database, those: Sequence[IdempotencyRecord]) -> set[IdempotencyRecord]:
    """Return the records that have no answer and were not followed by another request."""
    found = db.all_each(
        f"SELECT 1 FROM idempotency_records WHERE {RUNS}", [_values_of(each) for each in those]
    )
    return {record for record, rows in zip(those, found, strict=True) if rows}


def _values_of(record: IdempotencyRecord) -> dict[str, object]:
    return {
        "account": record.account_id, "key": record.key, "until": micros(record.lease_until),
    }  # fmt: skip


def check_runs(db: Database, record: IdempotencyRecord | None) -> None:
    """Raise IdempotencyInProgress if the request no longer runs; call it before any write."""
    if record is not None and not running(db, [record]):
        raise IdempotencyInProgress


def keep(db: Database, first: EncryptedFirst | None) -> bool:
    """Store the answer to a request; False if it no longer runs."""
    if first is None:
        return False
    return bool(
        db.change(
            f"UPDATE idempotency_records SET answer = :answer WHERE {RUNS}",
            {**_values_of(first.idempotency), "answer": first.answer},
        )
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
