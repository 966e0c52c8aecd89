"""Both readers of requests: the fast one gives the application and the client what h11 gives them."""

import json

import pytest
import trio
import trio.testing

from mailprobe.api.http.parser import MalformedRequest, Mark, RequestHead, StrictReader, read_fast
from mailprobe.api.http.received_request import WHOLE_BODY
from tests.api.http.requests import GET, post
from tests.api.raw_http import Streaming, hello, read_body, respond, serving


async def mirror(scope, receive, send):
    """Answer with the scope and the body that the application received, as JSON."""
    state = {**scope, "state": sorted(scope["state"]), "client": scope["client"][0]}
    assert state.pop("extensions") in ({}, {WHOLE_BODY: b""}, {WHOLE_BODY: b"hello"})
    reported = {"scope": {**state, "server": scope["server"][0]}, "body": await read_body(receive)}
    await respond(
        send, json.dumps(reported, default=lambda octets: octets.decode("latin-1")).encode()
    )


ASKED = {
    "nothing": GET,
    "a query": GET.replace(" / ", " /a?b=c&d=%20 "),
    "coded octets": GET.replace(" / ", " /%c3%a9%2F%zz "),
    "two slashes": GET.replace(" / ", " //a/../b "),
    "a fragment": GET.replace(" / ", " /a#b "),
    "a body": post("Content-Length: 5", body="hello"),
    "a body of nothing": post("Content-Length: 0"),
    "a length in many digits": post("Content-Length: 000000005", body="hello"),
    "names in any case": post("cOnTeNt-LeNgTh: 5", "X-A: B", "x-a: b", body="hello"),
    "spaces around a value": post("Content-Length: \t5 ", "X:a", "Y:  a b\t c \t", body="hello"),
    "no value": post("Content-Length: 5", "X:", "Y: ", body="hello"),
    "Latin-1": post("Content-Length: 5", "X: \xe9", body="hello"),
    "kept alive": post("Content-Length: 5", "Connection: keep-alive", body="hello"),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_both_ways_tell_the_application_the_same(asked):
    """A request in one piece takes the fast path, one in two pieces goes through h11."""
    octets = asked.encode("latin-1")
    assert read_fast(octets, 16_384) is not None
    async with serving(mirror) as server, server.connect() as raw:
        for _ in range(2):
            short = await raw.request(octets)
            await raw.send(octets[:10])
            await trio.testing.wait_all_tasks_blocked(0.01)  # else both are one read
            long = await raw.request(octets[10:])
            assert short.status == long.status == 200
            assert json.loads(short.body) == json.loads(long.body)


DOUBTFUL = {
    "another method": GET.replace("GET", "HEAD"),
    "a method in small letters": GET.replace("GET", "get"),
    "a GET with a length": GET.replace("Host", "Content-Length: 0\r\nHost"),
    "a GET with a body": GET + "x",
    "two of them": GET + GET,
    "no host": GET.replace("Host", "X"),
    "two hosts": GET.replace("Host", "Host: a.test\r\nHost"),
    "a host that is not a name": GET.replace("a.test", "a..test"),
    "a whole address": GET.replace(" / ", " http://a.test/ "),
    "an older version": GET.replace("1.1", "1.0"),
    "a version in small letters": GET.replace("HTTP/", "http/"),
    "its end in another case": GET.replace("Host", "CONNECTION: Close\r\nHost"),
    "an upgrade": GET.replace("Host", "upgrade: h2c\r\nHost"),
    "a length in letters": post("Content-Length: \xb2", body="12"),
    "a length with a name": post("Content-Length: 5;", body="hello"),
    "another coding": post("Content-Length: 5", "Transfer-Encoding: x", body="hello"),
    "a name of nothing": post("Content-Length: 5", ": x", body="hello"),
    "a line without a colon": post("Content-Length: 5", "x", body="hello"),
    "half a head": GET[:-2],
    "nothing": "",
}


@pytest.mark.parametrize("asked", DOUBTFUL.values(), ids=DOUBTFUL)
def test_a_doubtful_request_is_left_to_h11(asked):
    assert read_fast(asked.encode("latin-1"), 16_384) is None


def in_chunks(body: str) -> StrictReader:
    """A reader that has received a request with this body in one read, its chunks as written."""
    strict = StrictReader(16_384)
    strict.receive(post("Transfer-Encoding: chunked", body=body).encode())
    return strict


def test_a_body_in_chunks_that_came_with_its_head_is_one_piece():
    strict = in_chunks("2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n" + GET)
    head = strict.next_event()
    assert isinstance(head, RequestHead)
    assert head.body == b"hello"
    assert strict.has_input  # the next request


@pytest.mark.parametrize(
    ("body", "parts", "end"),
    [
        ("5\r\nhello\r\n", [b"hello"], Mark.NEED_DATA),
        ("1\r\nx\r\n" * 20 + "0\r\n\r\n", [b"x"] * 20, Mark.END),
        ("5\r\nhello\r\nx\r\n", [b"hello"], MalformedRequest),
    ],
    ids=["incomplete", "too many chunks to parse before they are asked for", "malformed"],
)
def test_any_other_body_in_chunks_comes_in_parts(body, parts, end):
    strict = in_chunks(body)
    head = strict.next_event()
    assert isinstance(head, RequestHead)
    assert head.body is None
    for part in parts:
        assert strict.has_input
        assert strict.next_event() == part
    if end is MalformedRequest:
        with pytest.raises(MalformedRequest):
            strict.next_event()
    else:
        assert strict.next_event() is end


async def test_both_ways_answer_the_same():
    """A whole answer, a stream, one without a body, one that ends the connection."""

    async def app(scope, receive, send):
        headers = {
            "/whole": [(b"content-length", b"2")],
            "/lines": [],
            "/empty": [(b"content-length", b"0")],
            "/last": [(b"content-length", b"2"), (b"connection", b"close")],
        }[scope["path"]]
        status = 204 if scope["path"] == "/empty" else 200
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["path"] == "/lines":
            await send({"type": "http.response.body", "body": b"o", "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            await send({"type": "http.response.body", "body": b"k"})
        else:
            await send({"type": "http.response.body", "body": b"ok" if status == 200 else b""})

    async with serving(app) as server:
        for path in ("/whole", "/lines", "/empty", "/last"):
            said = []
            for field in ("X", "Expect"):  # a request with Expect goes through h11
                async with server.connect() as raw:
                    asked = GET.replace(" / ", f" {path} ").replace("Host", f"{field}: x\r\nHost")
                    await raw.send(asked)
                    answer = await raw.answer()
                    answer.headers |= {"x-request-id": "", "date": ""}
                    said.append((answer, path == "/last" and await raw.rest()))
            assert said[0] == said[1]


async def test_a_pipelined_request_waits_for_its_turn():
    """One and a half requests come behind one in progress; the rest comes later."""
    stream = Streaming()

    async def app(scope, receive, send):
        await (stream if scope["path"] == "/stream" else hello)(scope, receive, send)

    async with serving(app) as server, server.connect() as raw:
        await raw.send(GET.replace(" / ", " /stream "))
        assert (await raw.head())[0] == 200
        await raw.send(GET + GET[:20])
        stream.put.send_nowait(b"one\n")
        assert await raw.chunk() == b"one\n"
        stream.put.close()
        assert await raw.chunk() == b""
        assert (await raw.answer()).status == 200
        assert (await raw.request(GET[20:])).status == 200
        assert (await raw.request(GET)).status == 200
