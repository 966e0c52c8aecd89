"""Which of the two readers reads a request decides nothing but speed.

Every case of the server's suite goes through both: the tables of the tests beside this one,
and the octets that all their connections sent, recorded once (each at most 2 KiB, one
connection a line, with keys removed).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mailprobe.api.admission.overload import AdmissionQueue
from mailprobe.api.admission.request_bodies import BodyBudget
from mailprobe.api.http.parser import (
    FastReader,
    MalformedRequest,
    Mark,
    ReadEvent,
    RequestHead,
    RequestReader,
    StrictReader,
)
from mailprobe.api.http.received_request import WHOLE_BODY, Receive, Scope, Send
from tests.api.http.requests import CHUNKED, GET, post
from tests.api.http.test_parser import ASKED, DOUBTFUL
from tests.api.http.test_strict_h11 import SMUGGLED, SOUND
from tests.api.raw_http import read_body, respond, serving
from tests.seeds import seeds

WEBSOCKET = (
    "GET /live HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
RECORDED = Path(__file__).with_name("recorded_requests.jsonl").read_text("utf-8").splitlines()
OWN = [
    GET + WEBSOCKET + CHUNKED + "\r\n\r\n0\r\n\r\n" + GET,
    GET.replace("Host", "Expect: 100-continue\r\nHost"),
    post("Expect: 100-continue", CHUNKED, body="0\r\n\r\n"),
    post("Content-Length: 0") + GET,
    post("Content-Length: 0", "Connection: close") + GET,
    post("Content-Length: 4", body="four") + post("Content-Length: 3", body="thr"),
    post(CHUNKED, body="1\r\nx\r\n" * 9 + "0\r\n\r\n") + GET,
    GET.replace("Host", "X: " + "a" * 40 + "\r\nHost"),
]
TABLES = [*ASKED.values(), *DOUBTFUL.values(), *SMUGGLED.values()]
SERVED = [said if isinstance(said, str) else said.decode() for said, _ in SOUND.values()]
CASES = list(
    dict.fromkeys(
        said.encode("latin-1")
        for said in [*map(json.loads, RECORDED), *TABLES, *SERVED, *OWN]
        if 0 < len(said) <= 2048
    )
)
SPLIT_OCTETS_MAX = 90  # of a case that is split at every octet: half of them
HEAD_OCTETS_MAX = 1024  # some cases have longer heads

Read = list[ReadEvent | str]


def read(pieces: Iterable[bytes], *, fast: bool) -> Read:
    """All events of a connection that receives these pieces, its requests answered at once."""
    return list(_events(pieces, FastReader(HEAD_OCTETS_MAX) if fast else None))


def _events(pieces: Iterable[bytes], quick: FastReader | None) -> Iterator[ReadEvent | str]:
    strict = StrictReader(HEAD_OCTETS_MAX)
    for piece in filter(None, pieces):
        is_between = not (strict.has_input or strict.is_amid_request)
        reader: RequestReader = strict
        if quick is not None and is_between and quick.receive(piece):
            reader = quick
        else:
            strict.receive(piece)
        while True:
            try:
                event = reader.next_event()
            except MalformedRequest:
                yield f"malformed, HEAD: {strict.is_head}"
                return
            if event is Mark.NEED_DATA:
                break
            yield event
    yield f"waits, amid a request: {strict.is_amid_request}, input: {strict.has_input}"


def in_parts(events: Read) -> Read:
    """The events as if each body had come after its head, in one part."""
    found: Read = []
    for event in events:
        if isinstance(event, RequestHead):
            fields = {name: getattr(event, name) for name in RequestHead.__struct_fields__}
            found.append(RequestHead(**{**fields, "body": None}))
            if event.body is not None:
                found += [event.body, Mark.END] if event.body else [Mark.END]
        elif isinstance(event, bytes) and isinstance(found[-1], bytes):
            found[-1] += event
        else:
            found.append(event)
    return found


def test_both_readers_report_the_same_of_every_case():
    for case in CASES:
        for pieces in ([case], [case, case], [GET.encode(), case]):
            assert read(pieces, fast=True) == read(pieces, fast=False), case


def test_where_a_request_is_split_decides_nothing():
    for case in CASES:
        if len(case) <= SPLIT_OCTETS_MAX:
            whole = in_parts(read([case], fast=False))
            for at in range(1, len(case)):
                assert in_parts(read([case[:at], case[at:]], fast=True)) == whole, (case, at)


FRAGMENTS = [
    *("GET / HTTP/1.1\r\n", "POST /a?b HTTP/1.1\r\n", "HEAD / HTTP/1.0\r\n", "Host: a.test\r\n"),
    *("Content-Length: 5\r\n", "content-length:0\r\n", CHUNKED + "\r\n", "Connection: close\r\n"),
    *("Connection: keep-alive\r\n", "Connection:  upgrade\r\n", "Upgrade: websocket\r\n"),
    *("Expect: 100-continue\r\n", "X: \xe9\t\r\n", "X:\r\n", "\r\n", "\n", "\r", "\0", " ", ":"),
    *(
        "hello",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "20\r\n",
        GET,
        post("Content-Length: 5", body="hello"),
    ),
]


@settings(max_examples=seeds(150))
@given(
    st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=7).map("".join), max_size=4),
    st.lists(st.integers(0, 200), max_size=3).map(sorted),
)
def test_both_readers_report_the_same_of_any_octets(said, cuts):
    octets = "".join(said).encode("latin-1")
    pieces = [piece.encode("latin-1") for piece in said]
    whole = read(pieces, fast=False)
    assert read(pieces, fast=True) == whole
    cut = [octets[start:end] for start, end in zip([0, *cuts], [*cuts, len(octets)], strict=True)]
    assert in_parts(read(cut, fast=True)) == in_parts(whole)


# -- on sockets: limits, counters and answers ----------------------------------------------------


class CountedQueue(AdmissionQueue):
    """Counts what the server does with it, and how much it counts as waiting in the end."""

    def __init__(self) -> None:
        super().__init__(computed_s=lambda: 0.0)
        self.counts: Counter[str] = Counter()

    def enter(self, ticket: Any) -> float:
        self.counts["entered"] += 1
        return super().enter(ticket)

    def note_rejection(self) -> None:
        self.counts["rejected"] += 1
        super().note_rejection()

    def charge_rejection(self, took_s: float) -> None:
        self.counts["charged"] += 1


class FullQueue(CountedQueue):
    """Has no room."""

    is_full = True
    is_overrun = False


LIMITED: dict[str, dict[str, Any]] = {
    "usual": {},
    "one in flight": {"in_flight_max": 1},  # what one request leaves counted, the next ones miss
    "none in flight": {"in_flight_max": 0},
    "small heads and bodies": {"head_octets_max": 80, "body_octets_max": 3},
    "little memory for bodies": {"intake": 3},
    "few requests a connection": {"requests_per_connection_max": 1},
    "a full queue": {"admission_queue": FullQueue},
    "no body is read": {"app": "early"},
}
LAST = GET.replace("Host", "Connection: close\r\nHost")
# The cases after which the server knows that a request has ended, and whether it is malformed.
ENDING = {
    case: end.startswith("malformed")
    for case in CASES
    if not (end := str(read([case], fast=False)[-1])).endswith("True")
    and "amid a request: True" not in end
}
OWN_FIELDS = re.compile(rb"\r\n(date|x-request-id): [^\r]*", re.IGNORECASE)


async def converse(limits: dict[str, Any]) -> tuple[list[object], list[object]]:
    """The answers to all cases; and what the application received, with the counters."""
    received: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return
        body = b"" if limits.get("app") == "early" else await read_body(receive)
        fields = [scope[name] for name in ("method", "raw_path", "query_string", "headers")]
        received.append([*fields, scope["extensions"].get(WHOLE_BODY), body])
        await respond(send, body)

    async def upgrade(scope: Any, wire: trio.SocketStream, octets: bytes) -> None:
        received.append([scope["headers"], octets])

    queue = limits.get("admission_queue", CountedQueue)()
    intake = BodyBudget(limits.get("intake", 1 << 20))
    more = {name: value for name, value in limits.items() if name.endswith("_max")}
    more = {
        "refuse_s": 0.02,
        "linger_s": 1.0,
        "body_s": 5.0,
        **more,
    }  # long: the machine may be busy
    answers: list[object] = []
    async with serving(app, queue, intake=intake, upgrade=upgrade, **more) as server:
        for case, is_malformed in ENDING.items():
            async with server.connect() as raw:
                first = await raw.request(GET)  # the fast reader's
                with suppress(trio.BrokenResourceError):  # closed before all was read
                    await raw.send(case)
                    if not is_malformed:
                        await trio.testing.wait_all_tasks_blocked()  # else both are one read
                        await raw.send(LAST)
                    while await raw.more():
                        pass
                answers.append([first.status, OWN_FIELDS.sub(b"", raw.received)])
    return answers, [*received, queue.counts, len(queue), intake.octets]


@pytest.mark.parametrize("limits", LIMITED.values(), ids=LIMITED)
async def test_both_readers_give_the_same_answers_and_counts(limits, monkeypatch):
    quick = await converse(limits)
    monkeypatch.setattr(FastReader, "receive", lambda reader, octets: False)
    strict = await converse(limits)
    for case, one, other in zip(ENDING, quick[0], strict[0], strict=True):
        assert one == other, case
    assert quick[1] == strict[1]
