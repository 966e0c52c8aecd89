"""Requests without all of their answers, and those of an earlier run that the service may have."""

import secrets
from collections.abc import Iterator, Mapping, Sequence

import httpx
import msgspec

from ...listfile.journal import SentRequest
from ..source import SentRecord

BATCH_OCTETS_MAX = 1 << 24  # the service sends 4 MiB at most, and longer texts as they came


class OpenRequest(msgspec.Struct, eq=False):
    """A request; `key` is None where it can't be repeated."""

    emails: list[str]
    unanswered: dict[str, list[int]]  # the positions, by text
    key: str | None = None
    known: frozenset[str] = frozenset()  # texts of it that have an answer already
    taken: dict[str, list[int]] = msgspec.field(
        default_factory=dict
    )  # positions by domain, of the queue
    sent: SentRequest | None = None  # as an earlier run recorded it
    may_be_done: bool = False  # the service may have its answers, though they did not arrive

    def positions(self) -> Iterator[int]:
        """The positions without an answer."""
        return (position for run in self.unanswered.values() for position in run)

    def is_replayed(self, response: httpx.Response) -> bool:
        """Whether the service has counted it before."""
        return bool(response.headers.get("idempotency-replayed") == "true")

    def forget_in(self, record: SentRecord) -> None:
        """It has its answers, or gets them by another key."""
        if self.sent is not None and self.sent in record.sent:
            record.sent.remove(self.sent)


class _Batch(msgspec.Struct):
    results: list[msgspec.Raw] = []


def new_request(
    record: SentRecord | None, texts: Sequence[str], taken: Mapping[str, list[int]]
) -> OpenRequest:
    """A request for these positions; with a record it has a key, which is recorded."""
    unanswered: dict[str, list[int]] = {}
    emails = []
    for run in taken.values():
        for position in run:
            emails.append(texts[position])
            unanswered.setdefault(texts[position], []).append(position)
    key = None
    if record is not None:
        key = secrets.token_hex(16)
        record.record_sent(SentRequest(key, emails))
    return OpenRequest(emails, unanswered, key, taken=dict(taken))


def open_requests(record: SentRecord, texts: Sequence[str]) -> list[OpenRequest]:
    """The requests of an earlier run about some of these texts, to be repeated as they were."""
    requests = []
    positions = {text: position for position, text in enumerate(texts)} if record.sent else {}
    for sent in record.sent:
        if isinstance(sent, SentRequest):
            unanswered = {text: [positions.pop(text)] for text in sent.emails if text in positions}
            if unanswered:
                known = frozenset(sent.emails) - unanswered.keys()
                requests.append(OpenRequest(sent.emails, unanswered, sent.key, known, sent=sent))
    return requests


async def read_whole(response: httpx.Response, octets_max: int) -> bytes:
    """The body; what is after its limit is not read, so that it cannot be decoded."""
    octets = b""
    async for piece in response.aiter_bytes():
        octets += piece
        if len(octets) > octets_max:
            break
    return octets


def results_of(octets: bytes) -> list[bytes]:
    """Return each result of a batch as JSON. Whatever else it holds is returned too: the caller rejects it."""
    try:
        return [bytes(raw) for raw in msgspec.json.decode(octets, type=_Batch).results]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [octets]
