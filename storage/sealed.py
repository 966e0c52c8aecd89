"""What is sealed, in every database alike: its form, and the place that it is bound to."""

import json

from storage.records import Answered


def job_place(job_id: str) -> str:
    """What a job's secret is bound to: it cannot be moved to another job."""
    return f"job {job_id}"


def once_place(account_id: str, key: str) -> str:
    """What an answer is bound to: it cannot be moved to another account or key."""
    return f"{account_id}\n{key}"


def packed(answer: Answered) -> bytes:
    return json.dumps([answer.status, answer.headers]).encode() + b"\n" + answer.body


def unpacked(octets: bytes) -> Answered:
    head, _, body = octets.partition(b"\n")
    status, headers = json.loads(head)
    return Answered(status, tuple((name, value) for name, value in headers), body)
