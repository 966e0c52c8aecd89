"""What is sealed, in every database alike: its form, and the place that it is bound to."""

import json
from dataclasses import dataclass

from mailprobe.storage.contract import as_kept
from mailprobe.storage.encryption import Seal
from mailprobe.storage.records import Answered, FirstAnswer, Once


def job_place(job_id: str) -> str:
    """What a job's secret is bound to: it cannot be moved to another job."""
    return f"job {job_id}"


def once_place(account_id: str, key: str) -> str:
    """What an answer is bound to: it cannot be moved to another account or key."""
    return f"{account_id}\n{key}"


def packed(answer: Answered) -> bytes:
    head: list[object] = [answer.status, answer.headers]
    if answer.body is None:
        head.append("not kept")
    return json.dumps(head).encode() + b"\n" + (answer.body or b"")


def unpacked(octets: bytes) -> Answered:
    head, _, body = octets.partition(b"\n")
    status, headers, *not_kept = json.loads(head)
    named = tuple((name, value) for name, value in headers)
    return Answered(status, named, None if not_kept else body)


@dataclass(frozen=True, slots=True)
class SealedFirst:
    """A FirstAnswer as it is kept."""

    once: Once
    answer: bytes


def sealed_first(seal: Seal, first: FirstAnswer) -> SealedFirst:
    return SealedFirst(first.once, sealed_answer(seal, first.once, first.answer))


def sealed_answer(seal: Seal, once: Once, answer: Answered) -> bytes:
    return seal.close(packed(as_kept(answer)), once_place(once.account_id, once.key))
