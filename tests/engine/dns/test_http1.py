"""One response of HTTP/1.1, whole and in pieces."""

import random

import pytest

from mailprobe.engine.dns.http1 import ResponseReader, request_head
from mailprobe.engine.dns.response import HttpResponse, NotHttp, TooLong

KIND = "application/dns-message"
DNS = b"Content-Type: application/dns-message\r\n"
OCTETS_MAX = 1_000


def read(
    octets: bytes, *, ends: bool = False, step: int | None = None
) -> tuple[HttpResponse | None, bool]:
    answer = ResponseReader(OCTETS_MAX)
    reply = None
    for at in range(0, len(octets), step or len(octets)):
        reply = answer.receive_data(octets[at : at + (step or len(octets))])
        if reply is not None:
            break
    if reply is None and ends:
        reply = answer.receive_end()
    return reply, answer.last


GOOD = {
    "a length": (b"HTTP/1.1 200 OK\r\n" + DNS + b"Content-Length: 3\r\n\r\nabc", False),
    "no words": (b"HTTP/1.1 200\r\n" + DNS + b"content-length:3 \r\n\r\nabc", False),
    "one length twice": (
        b"HTTP/1.1 200 OK\r\n" + DNS + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        False,
    ),
    "chunks": (
        b"HTTP/1.1 200 OK\r\n"
        + DNS
        + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n02;x=y\r\nbc\r\n0\r\n\r\n",
        False,
    ),
    "until the end": (b"HTTP/1.1 200 OK\r\n" + DNS + b"\r\nabc", True),
    "the last": (
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\n" + DNS + b"Content-Length: 3\r\n\r\nabc",
        True,
    ),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n" + DNS + b"Content-Length: 3\r\n\r\nabc", True),
    "an interim one before it": (
        b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 200 OK\r\n"
        + DNS
        + b"Content-Length: 3\r\n\r\nabc",
        False,
    ),
}


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize(("octets", "last"), GOOD.values(), ids=GOOD)
def test_a_response_is_read_however_it_comes(octets, last, step):
    reported = read(octets, ends=True, step=step)
    assert reported == (HttpResponse(200, KIND.encode(), b"", b"abc"), last)


def test_octets_behind_a_response_end_the_connection():
    octets, _ = GOOD["a length"]
    assert read(octets + b"HTTP/1.1 200 OK\r\n") == (
        HttpResponse(200, KIND.encode(), b"", b"abc"),
        True,
    )


BAD = {
    "SMTP": b"220 mx.test ESMTP\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "a status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching\r\n\r\n",
    "a header without a name": b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
    "a folded header": b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
    "a length of words": b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n",
    "a length below nothing": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n",
    "gzip": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    "no chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a chunk without an end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcd",
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    "an answer in drops": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1\r\nx\r\n" * 300,
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 10_000,
}


@pytest.mark.parametrize("octets", BAD.values(), ids=BAD)
def test_an_invalid_response_is_rejected(octets):
    with pytest.raises(NotHttp):
        read(octets)


@pytest.mark.parametrize(
    "octets",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1001),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3E9\r\n" + bytes(1001),
    ],
)
def test_no_more_is_read_than_was_allowed(octets):
    with pytest.raises(TooLong):
        read(octets)


def test_a_cut_answer_is_none():
    octets, _ = GOOD["a length"]
    for length in range(len(octets)):
        assert read(octets[:length] or b"H", ends=True)[0] is None


def test_no_damage_raises_anything_else():
    rng = random.Random(4)
    for _ in range(5_000):
        octets = bytearray(rng.choice(list(GOOD.values()))[0])
        for _ in range(rng.choice((1, 2, 5))):
            octets[rng.randrange(len(octets))] = rng.randrange(256)
        try:
            reply, _ = read(bytes(octets), ends=True, step=rng.choice((1, 5, 1000)))
        except (NotHttp, TooLong):
            continue
        assert reply is None or 200 <= reply.status < 600


def test_a_request_says_how_long_it_is():
    assert request_head("[::1]:53", "/q?x=1", KIND, 3).split(b"\r\n") == [
        b"POST /q?x=1 HTTP/1.1",
        b"Host: [::1]:53",
        b"Accept: application/dns-message",
        b"Content-Type: application/dns-message",
        b"Content-Length: 3",
        b"",
        b"",
    ]
