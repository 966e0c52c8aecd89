"""Our side of HTTP/2 against the package h2's other side, in memory; then frames by hand."""

import random

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from mailprobe.engine.dns.http2 import (
    RESETS_MAX,
    STREAMS_AT_FIRST,
    Http2Connection,
    request_fields,
)
from mailprobe.engine.dns.response import HttpResponse, NotHttp, StreamRefused, TransportFailed

KIND = "application/dns-message"
OCTETS_MAX = 65_535
FIELDS = [(":status", "200"), ("content-type", KIND), ("date", "today")]
Codes = h2.settings.SettingCodes


class Client(Http2Connection[object]):
    """Our side, with a record of the outcomes."""

    def __init__(self) -> None:
        super().__init__(body_octets_max=OCTETS_MAX)
        self.reported: dict[object, object] = {}

    def receive_data(self, octets: bytes) -> None:
        try:
            super().receive_data(octets)
        finally:
            for question, outcome in self.pop_settled():
                assert question not in self.reported
                self.reported[question] = outcome


class Pair:
    """A client of ours and a server by h2, and what passes between them."""

    def __init__(self, **settings: int) -> None:
        self.client = Client()
        self.reported = self.client.reported
        self.server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.server.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                getattr(Codes, name.upper()): value for name, value in settings.items()
            },
        )
        self.server.initiate_connection()
        self.received: dict[int, dict[bytes, bytes]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: list[int] = []
        self.acknowledges = True

    def send_request(self, question, body: bytes = b"question") -> int:
        return self.client.send_request(
            question, request_fields("9.9.9.9", "/dns-query", KIND, len(body)), body
        )

    def pass_on(self) -> None:
        """Until both are silent."""
        while True:
            sent = bytes(self.client.pop_out())
            if sent:
                for event in self.server.receive_data(sent):
                    self.receive(event)
            back = self.server.data_to_send()
            if back:
                self.client.receive_data(back)
            if not sent and not back:
                return

    def receive(self, event) -> None:
        match event:
            case h2.events.RequestReceived():
                self.received[event.stream_id] = dict(event.headers)
                self.bodies[event.stream_id] = b""
            case h2.events.DataReceived():
                self.bodies[event.stream_id] += event.data
                if self.acknowledges:
                    self.server.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
            case h2.events.StreamEnded():
                self.ended.append(event.stream_id)

    def answer(self, stream: int, body: bytes = b"answer") -> None:
        self.server.send_headers(stream, FIELDS)
        self.server.send_data(stream, body, end_stream=True)


def reply(body: bytes = b"answer") -> HttpResponse:
    return HttpResponse(200, KIND.encode(), b"today", body)


def test_questions_are_heard_and_answered_in_any_order():
    pair = Pair()
    streams = {number: pair.send_request(number, b"%d" % number) for number in range(50)}
    pair.pass_on()
    assert pair.bodies == {stream: b"%d" % number for number, stream in streams.items()}
    order = list(streams.items())
    random.Random(1).shuffle(order)
    for number, stream in order:
        pair.answer(stream, b"%d!" % number)
    pair.pass_on()
    assert pair.reported == {number: reply(b"%d!" % number) for number in range(50)}
    assert pair.client.under_way == 0
    assert pair.client.room


def test_a_request_says_all_that_a_resolver_wants():
    pair = Pair(header_table_size=0)  # a server that has no table: it must be told that we use none
    stream = pair.send_request("q")
    pair.send_request("r")
    pair.pass_on()
    assert pair.received[stream] == {
        b":method": b"POST",
        b":scheme": b"https",
        b":authority": b"9.9.9.9",
        b":path": b"/dns-query",
        b"accept": KIND.encode(),
        b"content-type": KIND.encode(),
        b"content-length": b"8",
    }


def test_no_more_streams_than_the_server_allows():
    pair = Pair(max_concurrent_streams=3)
    assert pair.client.room
    pair.pass_on()
    for number in range(3):
        assert pair.client.room
        pair.send_request(number)
    assert not pair.client.room
    pair.pass_on()
    pair.answer(1)
    pair.pass_on()
    assert pair.client.room


def test_some_queries_are_sent_before_the_servers_settings():
    pair = Pair()
    for number in range(STREAMS_AT_FIRST):
        assert pair.client.room
        pair.send_request(number)
    assert not pair.client.room


def test_a_body_waits_for_its_streams_window():
    pair = Pair(initial_window_size=3)
    pair.pass_on()
    stream = pair.send_request("q", b"question")
    pair.pass_on()
    assert pair.bodies[stream] == b""
    pair.server.increment_flow_control_window(4, stream)
    pair.pass_on()
    assert pair.bodies[stream] == b""
    pair.server.increment_flow_control_window(1, stream)
    pair.pass_on()
    assert pair.bodies[stream] == b"question"
    assert pair.ended == [stream]


def test_a_window_that_grows_by_settings_lets_bodies_go():
    pair = Pair(initial_window_size=0)
    pair.pass_on()
    pair.send_request("q")
    pair.pass_on()
    assert pair.ended == []
    pair.server.update_settings({Codes.INITIAL_WINDOW_SIZE: 100})
    pair.pass_on()
    assert pair.ended == [1]


def test_bodies_wait_for_the_connections_window_in_their_order():
    pair = Pair()
    pair.acknowledges = False
    pair.pass_on()
    for number in range(90):
        pair.send_request(number, bytes(1_000))
    pair.pass_on()
    assert pair.ended == [1 + 2 * number for number in range(65)]
    pair.server.increment_flow_control_window(25_000)
    pair.pass_on()
    assert pair.ended == [1 + 2 * number for number in range(90)]


def test_a_held_question_may_be_answered_or_given_up():
    pair = Pair(initial_window_size=0)
    pair.pass_on()
    first, second = pair.send_request("first"), pair.send_request("second")
    pair.pass_on()
    pair.answer(first)
    pair.client.cancel_request(second)
    pair.pass_on()
    assert pair.reported == {"first": reply()}
    pair.server.increment_flow_control_window(100)
    pair.pass_on()
    assert pair.client.under_way == 0


def test_answers_are_acknowledged_and_never_starve():
    """60 MB pass through a window of 1 MiB."""
    pair = Pair()
    pair.pass_on()
    for number in range(1_000):
        stream = pair.send_request(number)
        pair.pass_on()
        pair.server.send_headers(stream, FIELDS)
        for _ in range(4):
            pair.server.send_data(stream, bytes(15_000))
        pair.server.end_stream(stream)
        pair.pass_on()
        assert pair.reported[number] == reply(bytes(60_000))


def test_the_longest_answer_is_taken_and_one_octet_more_is_not():
    pair = Pair()
    pair.pass_on()
    for question, octets in (("longest", OCTETS_MAX), ("longer", OCTETS_MAX + 1)):
        stream = pair.send_request(question)
        pair.pass_on()
        pair.server.send_headers(stream, FIELDS)
        for at in range(0, octets, 16_384):
            pair.server.send_data(stream, bytes(min(16_384, octets - at)))
            pair.pass_on()
    pair.server.end_stream(1)
    pair.pass_on()
    assert pair.reported["longest"] == reply(bytes(OCTETS_MAX))
    assert "more than 65535 octets" in str(pair.reported["longer"])
    assert pair.client.under_way == 0


def test_an_abandoned_stream_is_reset_and_its_late_answer_dropped():
    pair = Pair()
    stream, other = pair.send_request("q"), pair.send_request("other")
    pair.pass_on()
    pair.answer(stream)
    pair.client.cancel_request(stream)
    pair.answer(other)
    pair.pass_on()
    assert pair.reported == {"other": reply()}


@pytest.mark.parametrize(
    ("code", "kind"), [(7, StreamRefused), (2, TransportFailed), (99, TransportFailed)]
)
def test_a_reset_stream_is_reported_as_refused_or_failed(code, kind):
    pair = Pair()
    pair.send_request("q")
    pair.pass_on()
    pair.client.receive_data(RstStreamFrame(1, error_code=code).serialize())
    assert isinstance(pair.reported["q"], kind)
    pair.client.receive_data(RstStreamFrame(1, error_code=code).serialize())
    assert len(pair.reported) == 1


def test_goaway_gives_back_what_was_not_begun_and_waits_for_the_rest():
    pair = Pair()
    for number in range(3):
        pair.send_request(number)
    pair.pass_on()
    pair.client.receive_data(GoAwayFrame(0, last_stream_id=3).serialize())
    assert list(pair.reported) == [2]
    assert isinstance(pair.reported[2], StreamRefused)
    assert not pair.client.room
    assert not pair.client.spent
    pair.answer(1)
    pair.answer(3)
    pair.pass_on()
    assert pair.reported[0] == pair.reported[1] == reply()
    assert pair.client.spent


def test_streams_beyond_the_last_reset_stay_open():
    """They keep their places until they are answered, or the connection retires."""
    pair = Pair(max_concurrent_streams=2 * RESETS_MAX)
    pair.pass_on()
    streams = [pair.send_request(number) for number in range(RESETS_MAX + 3)]
    pair.pass_on()
    for stream in streams:
        pair.client.cancel_request(stream)
        pair.client.cancel_request(stream)
    pair.pass_on()
    assert pair.client.under_way == pair.client.abandoned == 3
    pair.answer(streams[-1], bytes(16_384))
    pair.pass_on()
    assert pair.client.under_way == pair.client.abandoned == 2
    assert pair.reported == {}
    pair.client.retire()
    assert pair.client.spent


def test_a_quota_bounds_what_is_sent_in_all():
    client: Http2Connection[int] = Http2Connection(body_octets_max=OCTETS_MAX, quota=2)
    for number in range(2):
        assert client.room == 2 - number
        client.send_request(number, block(), b"question")
    assert client.full
    assert client.leaving
    assert not client.room
    assert not client.spent


# -- frames by hand ---------------------------------------------------------------------------

SETTINGS = SettingsFrame(0).serialize()


def block(*fields: tuple[str, str]) -> bytes:
    return hpack.Encoder().encode(fields or FIELDS)


def open_client(questions: int = 1) -> tuple[Client, dict[object, object]]:
    client = Client()
    for number in range(questions):
        client.send_request(number, b"", b"question")
    return client, client.reported


def headers(data: bytes, *flags: str, stream: int = 1, **more) -> bytes:
    return HeadersFrame(stream, data, flags=["END_HEADERS", *flags], **more).serialize()


WHOLE = {
    "padding": headers(block(), "PADDED", pad_length=9)
    + DataFrame(1, b"answer", pad_length=7, flags=["PADDED", "END_STREAM"]).serialize(),
    "priority": headers(block(), "PRIORITY", depends_on=0, stream_weight=3)
    + DataFrame(1, b"answer", flags=["END_STREAM"]).serialize(),
    "continuation": HeadersFrame(1, block()[:5]).serialize()
    + ContinuationFrame(1, block()[5:9]).serialize()
    + ContinuationFrame(1, block()[9:], flags=["END_HEADERS"]).serialize()
    + DataFrame(1, b"answer", flags=["END_STREAM"]).serialize(),
    "an empty end": headers(block())
    + DataFrame(1, b"ans").serialize()
    + DataFrame(1, b"wer").serialize()
    + DataFrame(1, b"", flags=["END_STREAM"]).serialize(),
    "trailers": headers(block())
    + DataFrame(1, b"answer").serialize()
    + headers(hpack.Encoder().encode([("x", "y")]), "END_STREAM"),
    "an interim one": headers(block((":status", "103")))
    + headers(block())
    + DataFrame(1, b"answer", flags=["END_STREAM"]).serialize(),
    "an unknown frame": b"\0\0\1\x20\0\0\0\0\0!"
    + headers(block())
    + DataFrame(1, b"answer", flags=["END_STREAM"]).serialize(),
}


@pytest.mark.parametrize("step", [1, 3, 100_000])
@pytest.mark.parametrize("octets", WHOLE.values(), ids=WHOLE)
def test_an_answer_is_read_however_it_is_framed(octets, step):
    client, reported = open_client()
    octets = SETTINGS + octets
    for at in range(0, len(octets), step):
        client.receive_data(octets[at : at + step])
    assert reported == {0: reply()}


def test_a_ping_is_answered():
    client, _ = open_client()
    client.receive_data(SETTINGS)
    client.pop_out()
    client.receive_data(PingFrame(0, b"12345678").serialize())
    assert client.pop_out() == PingFrame(0, b"12345678", flags=["ACK"]).serialize()
    client.receive_data(PingFrame(0, b"12345678", flags=["ACK"]).serialize())
    assert not client.pop_out()


BROKEN = {
    "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a first frame that is no SETTINGS": PingFrame(0, bytes(8)).serialize(),
    "too long a frame": SETTINGS + b"\0\x40\1\0\0\0\0\0\1" + bytes(0x4001),
    "an answer to nothing": SETTINGS + headers(block(), stream=3),
    "a stream of the server's": SETTINGS + headers(block(), stream=2),
    "DATA on no stream": SETTINGS + b"\0\0\0\0\0\0\0\0\0",
    "DATA without a head": SETTINGS + DataFrame(1, b"x").serialize(),
    "a broken header block": SETTINGS + headers(b"\xff\xff\xff\xff\xff\xff"),
    "no status": SETTINGS + headers(block(("content-type", KIND))),
    "a status of words": SETTINGS + headers(block((":status", "abc"))),
    "an interim end": SETTINGS + headers(block((":status", "103")), "END_STREAM"),
    "padding beyond the frame": SETTINGS + b"\0\0\2\0\x08\0\0\0\1\5x",
    "a gap in a header block": SETTINGS
    + HeadersFrame(1, block()[:5]).serialize()
    + PingFrame(0, bytes(8)).serialize(),
    "a continuation of nothing": SETTINGS + ContinuationFrame(1, b"x").serialize(),
    "an endless header block": SETTINGS
    + HeadersFrame(1, bytes(1)).serialize()
    + ContinuationFrame(1, bytes(16_000)).serialize() * 3,
    "a header bomb": SETTINGS
    + headers(hpack.Encoder().encode([(":status", "200"), ("x", "y" * 4_000)]) + b"\xbe" * 20),
    "a push": SETTINGS + PushPromiseFrame(1, 2, block(), flags=["END_HEADERS"]).serialize(),
    "a window of nothing": SETTINGS + b"\0\0\4\x08\0\0\0\0\0\0\0\0\0",
    "too large a window": SETTINGS + WindowUpdateFrame(0, 2**31 - 1).serialize(),
    "half a setting": b"\0\0\3\4\0\0\0\0\0abc",
    "a short ping": SETTINGS + b"\0\0\2\6\0\0\0\0\0ab",
    "a short goaway": SETTINGS + b"\0\0\2\7\0\0\0\0\0ab",
    "settings without end": SETTINGS * 3_000,
    "interim answers without end": SETTINGS + headers(block((":status", "103"))) * 3_000,
    "an answer in drops": SETTINGS + headers(block()) + DataFrame(1, b"x").serialize() * 3_000,
    "a flood": SETTINGS + PingFrame(0, bytes(8)).serialize() * 70_000,
}


@pytest.mark.parametrize("octets", BROKEN.values(), ids=BROKEN)
def test_a_protocol_error_ends_the_connection(octets):
    client, reported = open_client()
    with pytest.raises(NotHttp):
        client.receive_data(octets)
    assert reported == {}
    assert client.under_way == 1


def test_no_octets_raise_anything_else_and_nothing_is_settled_twice():
    rng = random.Random(8)
    whole = [SETTINGS + octets for octets in WHOLE.values()]
    broken = 0
    for _ in range(4_000):
        octets = bytearray(rng.choice(whole) + rng.choice(list(WHOLE.values()))[:40])
        for _ in range(rng.choice((1, 1, 3, 8))):
            octets[rng.randrange(len(octets))] = rng.choice((0, 1, 4, 8, 255, rng.randrange(256)))
        client, reported = open_client(3)
        step = rng.choice((1, 10, 1000))
        try:
            for at in range(0, len(octets), step):
                client.receive_data(bytes(octets[at : at + step]))
        except NotHttp:
            broken += 1
        assert len(reported) + client.under_way == 3
    assert 500 < broken < 3_900
