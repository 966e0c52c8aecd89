"""Framing that two servers may read in two ways is refused; all other framing is served.

With STOCK_HTTP=1 in the environment the same tests run against unmodified hypercorn.
"""

import pytest

from tests.api.http.requests import CHUNKED, GET, post
from tests.api.raw_http import echo, serving

SECOND = "GET /second HTTP/1.1\r\nHost: a.test\r\n\r\n"
SMUGGLED = {
    "length and chunked": post("Content-Length: 5", CHUNKED, body="0\r\n\r\n"),
    "chunked and length": post(CHUNKED, "Content-Length: 5", body="0\r\n\r\n"),
    "two lengths": post("Content-Length: 5", "Content-Length: 6", body="hello"),
    "two lengths that agree": post("Content-Length: 5", "Content-Length: 5", body="hello"),
    "a list of lengths": post("Content-Length: 5, 6", body="hello"),
    "a length with a sign": post("Content-Length: +5", body="hello"),
    "a length below zero": post("Content-Length: -5", body="hello"),
    "a length that is not a number": post("Content-Length: 0x5", body="hello"),
    "chunked twice": post(CHUNKED, CHUNKED, body="0\r\n\r\n"),
    "another coding": post("Transfer-Encoding: gzip, chunked", body="0\r\n\r\n"),
    "a coding unknown": post("Transfer-Encoding: xchunked", body="0\r\n\r\n"),
    "chunked in HTTP/1.0": post(CHUNKED, body="0\r\n\r\n").replace("HTTP/1.1", "HTTP/1.0"),
    "space before the colon": post("Content-Length : 5", body="hello"),
    "space before the name": post(" Content-Length: 5", body="hello"),
    "a folded line": post("X-Field: a\r\n b", body=""),
    "bare LF in the head": GET.replace("\r\n", "\n"),
    "one bare LF": "GET / HTTP/1.1\nHost: a.test\r\n\r\n",
    "bare LF before a field": "GET / HTTP/1.1\r\nX: a\nContent-Length: 5\r\nHost: a.test\r\n\r\n",
    "bare LF at the end": "GET / HTTP/1.1\r\nHost: a.test\r\n\n",
    "bare CR": "GET / HTTP/1.1\r\nX: a\rContent-Length: 5\r\nHost: a.test\r\n\r\n",
    "NUL in a field": "GET / HTTP/1.1\r\nX: a\0b\r\nHost: a.test\r\n\r\n",
    "a chunk size with 0x": post(CHUNKED, body="0x5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with a sign": post(CHUNKED, body="+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size below zero": post(CHUNKED, body="-5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with a space": post(CHUNKED, body="5 \r\nhello\r\n0\r\n\r\n"),
    "a chunk size too long": post(CHUNKED, body="00000000000000005\r\nhello\r\n0\r\n\r\n"),
    "no chunk size": post(CHUNKED, body="\r\nhello\r\n0\r\n\r\n"),
    "bare LF after a chunk size": post(CHUNKED, body="5\nhello\r\n0\r\n\r\n"),
    "bare LF in a chunk extension": post(CHUNKED, body="5;a\nb\r\nhello\r\n0\r\n\r\n"),
    "bare CR in a chunk extension": post(CHUNKED, body="5;a\rb\r\nhello\r\n0\r\n\r\n"),
    "a long chunk extension": post(CHUNKED, body=f"5;{'a' * 300}\r\nhello\r\n0\r\n\r\n"),
    "a chunk longer than its size": post(CHUNKED, body="5\r\nhello!\r\n0\r\n\r\n"),
    "bare LF after a chunk": post(CHUNKED, body="5\r\nhello\n0\r\n\r\n"),
    "bare LF in the trailer": post(CHUNKED, body="0\r\n\n"),
    "bare LF after a trailer's field": post(CHUNKED, body="0\r\nX: a\n\r\n"),
    "no host": "GET / HTTP/1.1\r\n\r\n",
    "two hosts": "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
    "a host that is not a name": "GET / HTTP/1.1\r\nHost: a..test\r\n\r\n",
    "a host with a long label": f"GET / HTTP/1.1\r\nHost: {'a' * 64}\r\n\r\n",
    "a host with a path": "GET / HTTP/1.1\r\nHost: a.test/b\r\n\r\n",
    "HTTP/2.0": "GET / HTTP/2.0\r\nHost: a.test\r\n\r\n",
    "HTTP/0.9": "GET /\r\n\r\n",
    "CONNECT": "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "a target that is not a path": "GET a.test HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "a space in the target": "GET / x HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "TLS": "\x16\x03\x01\x02\x00\x01\x00",
    "a head too long": GET.replace("Host", "X: " + "a" * 20_000 + "\r\nHost"),
    "too many fields": GET.replace("Host", "X: a\r\n" * 4_000 + "Host"),
}


@pytest.mark.parametrize("octets", SMUGGLED.values(), ids=SMUGGLED)
async def test_an_ambiguous_request_is_refused(octets):
    asked = []

    async def app(scope, receive, send):
        asked.append(scope["path"])
        await echo(scope, receive, send)

    async with serving(app) as server:
        async with server.connect() as raw:
            answer = await raw.request(octets + SECOND)
            await raw.assert_closed()
        assert "/second" not in asked
        assert answer.status == 400
        assert answer.headers["connection"] == "close"
        assert answer.code == "invalid_request"
        assert (await server.request(GET)).status == 200


SOUND = {
    "chunks": (
        post(CHUNKED, body="5\r\nhello\r\nA;x=y\r\n, my world\r\n0\r\n\r\n"),
        b"hello, my world",
    ),
    "a trailer": (post(CHUNKED, body="2\r\nhi\r\n0\r\nX: a\r\nY: b\r\n\r\n"), b"hi"),
    "a length": (post("Content-Length: 2", body="hi"), b"hi"),
    "a length of nothing": (post("Content-Length: 0"), b""),
    "no body": (post(), b""),
    "an absolute target": (GET.replace("GET /", "GET http://a.test/x?y"), b""),
    "an absolute target without a path": (GET.replace("GET /", "GET http://a.test"), b""),
    "a host with a port": (GET.replace("a.test", "127.0.0.1:8080"), b""),
    "a host in brackets": (GET.replace("a.test", "[::1]:8080"), b""),
    "a host of nothing": (GET.replace("a.test", ""), b""),
    "an empty line first": ("\r\n" + GET, b""),
    "empty lines first": ("\r\n\r\n\r\n" + post("Content-Length: 2", body="hi"), b"hi"),
    "an empty line behind the body": (post("Content-Length: 2", body="hi\r\n"), b"hi"),
    "a field without a value": (GET.replace("Host", "X:\r\nHost"), b""),
    "Latin-1 in a field": (GET.replace("Host", "X: \u00e9\r\nHost"), b""),
}


@pytest.mark.parametrize("drip", [False, True])
@pytest.mark.parametrize(("octets", "body"), SOUND.values(), ids=SOUND)
async def test_a_valid_request_is_served_in_any_pieces(octets, body, drip):
    async with serving(echo) as server, server.connect() as raw:
        pieces = octets if drip else [octets]
        for piece in pieces:
            await raw.send(piece)
        assert (await raw.answer()).body == body
        assert (await raw.request(GET)).status == 200
