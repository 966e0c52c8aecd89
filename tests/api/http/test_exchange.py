"""The repairs of the HTTP stack, each on real sockets; those of parsing are in test_strict_h11.py.

With STOCK_HTTP=1 in the environment the same tests run against unmodified hypercorn. Each
repair's tests fail then (some never end); one that passes shows a repair that is no longer
needed.
"""

import struct
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import h2.connection
import h2.events
import pytest
import trio
from quart import request
from quart_trio import QuartTrio

from tests.api.http.requests import CHUNKED, GET, post
from tests.api.raw_http import Raw, Streaming, echo, hello, read_body, respond, serving

MEBIBYTE = 1 << 20


def quart() -> Any:
    """A small Quart application, as the service has one."""
    app = QuartTrio(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 2 * MEBIBYTE

    @app.get("/")
    async def ok():
        return "ok"

    @app.post("/")
    async def length():
        return str(len(await request.get_data()))

    @app.post("/early")
    async def early():
        return {"error": "missing_api_key"}, 401

    return app


async def assert_alive(server) -> None:
    assert (await server.request(GET)).status == 200


# -- HTTP/2 ---------------------------------------


async def test_http2_data_after_an_early_answer_leaves_the_server_alive():
    """DATA for a stream that was answered and dropped once crashed the server with KeyError."""
    async with serving(quart()) as server:
        async with server.connect() as raw:
            client = h2.connection.H2Connection()
            client.initiate_connection()
            client.send_headers(
                1,
                [
                    (":method", "POST"),
                    (":path", "/early"),
                    (":scheme", "http"),
                    (":authority", "a.test"),
                ],
            )
            await raw.send(client.data_to_send())
            await answer_or_refusal(raw, client)
            client.send_data(1, b"x", end_stream=True)
            with trio.move_on_after(0.5):
                await raw.send(client.data_to_send())
                await raw.rest()
        await assert_alive(server)


async def answer_or_refusal(raw: Raw, client: h2.connection.H2Connection) -> None:
    while await raw.more():
        if raw.received.startswith(b"HTTP/1.1 400"):
            return
        events = client.receive_data(raw.received)
        raw.received = b""
        if any(isinstance(event, h2.events.StreamEnded) for event in events):
            return


async def test_an_upgrade_to_http2_is_passed_over():
    asked = GET.replace("\r\n\r\n", "\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n")
    async with serving(hello) as server, server.connect() as raw:
        assert (await raw.request(asked + "HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")).body == b"ok"
        assert (await raw.request(GET)).body == b"ok"


# -- disconnects --------------------------------------------------------


async def test_an_idle_connection_is_closed_after_its_time(idle_clock):
    """Without the repair the request's end cancelled its last send, and no connection ever idled."""
    async with serving(quart(), keep_alive_s=0.2) as server, server.connect() as raw:
        assert (await raw.request(GET)).body == b"ok"
        assert (await raw.request(GET)).body == b"ok"
        await raw.assert_closed()


@pytest.mark.parametrize("together", [True, False])
async def test_a_request_after_an_early_answer_is_answered(together, idle_clock):
    """The body comes with the head, or a packet later, when the answer is ready."""
    asked = post("Content-Length: 5", path="/early", body="hello")
    async with serving(quart()) as server, server.connect() as raw:
        for _ in range(20):
            if together:
                await raw.send(asked)
            else:
                await raw.send(asked[:-5])
                await raw.send(asked[-5:])
            assert (await raw.answer()).status == 401
            assert (await raw.request(GET)).body == b"ok"


async def test_draining_does_not_wait_for_an_idle_client():
    async with serving(quart(), drain_s=30.0) as server, server.connect() as raw:
        assert (await raw.request(GET)).body == b"ok"
        await server.assert_ends(within_s=1.0)
        await raw.assert_closed()


async def test_the_application_hears_disconnect_only_after_its_last_message():
    received = []
    done = trio.Event()

    async def app(scope, receive, send):
        async def listen():
            await read_body(receive)
            received.append((await receive())["type"])
            received.append("told")
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await respond(send)
            received.append("sent")

    async with serving(app) as server, server.connect() as raw:
        assert (await raw.request(GET)).body == b"ok"
        await done.wait()
    assert received == ["sent", "http.disconnect", "told"]


# -- a client that stops reading ------------------------------------------------------------


async def flood(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": bytes(MEBIBYTE), "more_body": True})


async def test_a_client_that_stops_reading_loses_its_connection():
    ended = trio.Event()

    async def app(scope, receive, send):
        try:
            await flood(scope, receive, send)
        finally:
            ended.set()

    async with serving(app, send_s=0.2) as server, server.connect(receive_octets=4096) as raw:
        await raw.send(GET)
        with trio.fail_after(5):
            await ended.wait()


async def test_draining_does_not_wait_for_a_client_that_stopped_reading(idle_clock):
    limits: dict[str, Any] = {"drain_s": 0.3, "send_s": 30.0}
    async with serving(flood, **limits) as server, server.connect(receive_octets=4096) as raw:
        await raw.send(GET)
        await raw.head()
        await server.assert_ends(within_s=2.0)


async def test_requests_sent_before_their_turn_are_answered_in_order():
    asked = "".join(post("Content-Length: 1", body=str(n)) for n in range(5))
    async with serving(echo) as server, server.connect() as raw:
        await raw.send(asked)
        for n in range(5):
            assert (await raw.answer()).body == str(n).encode()


# -- slow clients -----------------------------------------------------------------------------


@pytest.mark.parametrize("drip", ["Content-Length: 5000", CHUNKED])
async def test_a_body_that_drips_is_refused_when_its_time_is_over(idle_clock, drip):
    async with serving(echo, body_s=0.4) as server, server.connect() as raw:
        await raw.send(post(drip))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip_for_ever, raw, "1\r\nx\r\n" if drip is CHUNKED else "x")
            answer = await raw.answer()
            nursery.cancel_scope.cancel()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert answer.headers["connection"] == "close"
        assert 0.3 < trio.current_time() - began < 2
        await raw.assert_closed()


async def drip_for_ever(raw: Raw, octets: str) -> None:
    while True:
        await raw.send(octets)
        await trio.sleep(0.02)


async def test_a_slow_body_of_a_quart_application_is_refused_alike(idle_clock):
    async with serving(quart(), body_s=0.2) as server, server.connect() as raw:
        assert (await raw.request(post("Content-Length: 5"))).code == "request_timeout"
        await raw.assert_closed()


async def test_a_body_that_comes_in_time_may_have_a_slow_answer(idle_clock):
    async def app(scope, receive, send):
        await read_body(receive)
        await trio.sleep(0.5)
        await respond(send)

    async with serving(app, body_s=0.2, head_s=0.2, keep_alive_s=0.2) as server:
        assert (await server.request(post("Content-Length: 2", body="hi"))).status == 200


async def test_a_head_that_drips_is_refused_when_its_time_is_over(idle_clock):
    async with serving(hello, head_s=0.3) as server, server.connect() as raw:
        async with trio.open_nursery() as nursery:
            await raw.send("GET / HTTP/1.1\r\n")
            nursery.start_soon(drip_for_ever, raw, "X-A: b\r\n")
            answer = await raw.answer()
            nursery.cancel_scope.cancel()
        assert (answer.status, answer.code) == (408, "request_timeout")
        await raw.assert_closed()


async def test_a_second_head_that_drips_is_refused_too():
    async with serving(hello, head_s=0.3, keep_alive_s=30.0) as server, server.connect() as raw:
        await raw.send(GET + "GET / HT")
        assert (await raw.answer()).status == 200
        assert (await raw.answer()).code == "request_timeout"


async def test_a_connection_without_a_word_is_closed_without_one():
    async with serving(hello, head_s=0.2) as server, server.connect() as raw:
        await raw.assert_closed()


# -- bodies that are too large -----------------------------------------------------------------


async def assert_too_large(raw: Raw) -> None:
    answer = await raw.answer()
    assert answer.status == 413
    assert answer.headers["connection"] == "close"
    await raw.assert_closed()


@pytest.mark.parametrize("app", [echo, quart()], ids=["echo", "quart"])
async def test_a_length_that_is_too_large_is_refused_unread(app):
    async with serving(app) as server, server.connect() as raw:
        await raw.send(post(f"Content-Length: {2 * MEBIBYTE + 1}"))
        await assert_too_large(raw)


async def test_our_own_refusal_of_a_large_body_is_an_error_body():
    async with serving(echo) as server, server.connect() as raw:
        assert (await raw.request(post("Content-Length: 9999999"))).code == "payload_too_large"


@pytest.mark.parametrize("field", ["X: y", "Expect: 100-continue"], ids=["fast", "strict"])
async def test_a_small_limit_holds_for_a_body_in_one_piece(field):
    """The application still has its turn to refuse for a reason that it checks first."""
    large = post("Content-Length: 4", field, body="four")
    async with serving(quart(), body_octets_max=3) as server:
        for framed in (large, post(CHUNKED, body="4\r\nfour\r\n0\r\n\r\n")):
            async with server.connect() as raw:
                await raw.send(framed)
                await assert_too_large(raw)
            async with server.connect() as raw:
                answer = await raw.request(framed.replace("POST /", "POST /early"))
                assert (answer.status, answer.headers["connection"]) == (401, "close")
                await raw.assert_closed()


@pytest.mark.parametrize("app", [echo, quart()], ids=["echo", "quart"])
async def test_chunks_are_counted_while_they_are_read(app):
    async with serving(app) as server, server.connect() as raw:
        await raw.send(post(CHUNKED))
        for _ in range(33):  # one more than the limit
            await raw.send(b"10000\r\n" + bytes(65536) + b"\r\n")
        await assert_too_large(raw)


async def test_a_body_of_countless_chunks_is_too_large_too():
    """Two MiB of one-octet chunks would keep the process busy for seconds."""
    async with serving(quart()) as server, server.connect() as raw:
        await raw.send(post(CHUNKED, body="1\r\nx\r\n" * 5000))
        await assert_too_large(raw)


async def test_a_body_of_just_the_limit_is_taken():
    body = "x" * (2 * MEBIBYTE)
    async with serving(quart()) as server:
        for framing in (f"Content-Length: {len(body)}", CHUNKED):
            sent = body if framing is not CHUNKED else f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
            assert (await server.request(post(framing, body=sent))).body == str(len(body)).encode()


async def test_a_client_that_sends_all_before_reading_gets_the_refusal():
    """Closing at once would reset the connection, and the answer would be lost."""
    async with serving(quart()) as server, server.connect() as raw:
        await raw.send(post(f"Content-Length: {10 * MEBIBYTE}"))
        await raw.send(bytes(10 * MEBIBYTE))
        assert (await raw.answer()).status == 413


async def test_the_application_may_refuse_a_large_body_in_its_own_order():
    async with serving(quart(), refuse_s=30.0) as server, server.connect() as raw:
        answer = await raw.request(post("Content-Length: 9999999", path="/early"))
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        await raw.assert_closed()


async def test_a_large_body_gets_no_100_continue():
    async with serving(quart()) as server, server.connect() as raw:
        await raw.send(post("Content-Length: 9999999", "Expect: 100-continue"))
        assert (await raw.head())[0] == 413


async def test_a_request_without_a_body_gets_no_100_continue():
    async with serving(quart()) as server, server.connect() as raw:
        await raw.send(post("Content-Length: 0", "Expect: 100-continue"))
        assert (await raw.head())[0] == 200


async def test_an_expected_body_gets_100_continue():
    async with serving(echo) as server, server.connect() as raw:
        await raw.send(post("Content-Length: 5", "Expect: 100-continue"))
        assert (await raw.head())[0] == 100
        assert (await raw.request("hello")).body == b"hello"


# -- applications that fail ------------------------------------------------------------------------


async def crash(scope, receive, send):
    raise ValueError("a bug")


async def crash_in_a_nursery(scope, receive, send):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(crash, scope, receive, send)


async def crash_with_a_generator(scope, receive, send):
    raise BaseExceptionGroup("", [ValueError("a bug"), GeneratorExit()])


async def crash_after_a_head(scope, receive, send):
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    raise ValueError("a bug")


async def send_nothing(scope, receive, send):
    return


async def send_nonsense(scope, receive, send):
    headers = [(b"content-length", b"2"), (b"x", b"a\r\nb: c")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


CRASHES = [
    crash,
    crash_in_a_nursery,
    crash_with_a_generator,
    crash_after_a_head,
    send_nothing,
    send_nonsense,
]


@pytest.mark.parametrize("app", CRASHES)
async def test_a_crash_is_answered_and_logged_and_the_connection_lives(app, caplog):
    async with serving(app) as server, server.connect() as raw:
        for _ in range(2):
            answer = await raw.request(post("Content-Length: 2", body="hi"))
            assert (answer.status, answer.code) == (500, "internal_error")
            assert answer.headers["x-request-id"] in caplog.text


async def crash_in_the_answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    raise ValueError("a bug")


async def promise_more_than_it_sends(scope, receive, send):
    headers = [(b"content-length", b"9")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await send({"type": "http.response.body", "body": b"two", "more_body": False})


@pytest.mark.parametrize("app", [crash_in_the_answer, promise_more_than_it_sends])
async def test_a_crash_in_the_answer_cuts_it_off_visibly(app, caplog):
    async with serving(app) as server:
        async with server.connect() as raw:
            await raw.send(GET)
            assert (await raw.head())[0] == 200
            assert not (await raw.rest()).endswith(b"0\r\n\r\n")
        async with server.connect() as raw:
            await raw.send("GET / HTTP/1.0\r\n\r\n")
            with pytest.raises(trio.BrokenResourceError):  # a plain close looks complete
                await raw.rest()


# -- overload ----------------------------------------------------------------


async def test_one_request_too_many_is_refused_at_once():
    stream = Streaming()

    async def app(scope, receive, send):
        await (stream if scope["path"] == "/stream" else hello)(scope, receive, send)

    async with serving(app, in_flight_max=1) as server, server.connect() as busy:
        await busy.send(GET.replace("/", "/stream", 1))
        await busy.head()
        async with server.connect() as raw:
            for asked in (GET, post("Content-Length: 2", body="hi")):
                answer = await raw.request(asked)
                assert (answer.status, answer.code) == (503, "overloaded")
                assert answer.headers["retry-after"] == "1"
            stream.put.close()
            assert await busy.chunk() == b""
            await stream.ended.wait()
            assert (await raw.request(GET)).body == b"ok"


# -- streams and hang-ups --------------------------------------------------------------------------


async def test_each_message_goes_out_at_once():
    stream = Streaming()
    async with serving(stream) as server, server.connect() as raw:
        await raw.send(GET)
        assert (await raw.head())[0] == 200  # before there is a line
        for line in (b"one\n", b"two\n", b"three\n"):
            stream.put.send_nowait(line)
            assert await raw.chunk() == line
        stream.put.close()
        assert await raw.chunk() == b""
        await stream.ended.wait()
        assert stream.whole


async def test_an_answer_of_known_length_is_one_piece():
    """Head and body in one segment: half the packets, and no wait for an acknowledgement."""
    async with serving(quart()) as server, server.connect() as raw:
        await raw.send(GET)
        await raw.more()
        assert raw.received.endswith(b"\r\n\r\nok")


async def test_a_client_that_hangs_up_cancels_its_request():
    stream = Streaming()
    async with serving(stream) as server:
        async with server.connect() as raw:
            await raw.send(GET)
            await raw.head()
        with trio.fail_after(5):
            await stream.ended.wait()
        assert not stream.whole


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("body", ["", "hel"])
async def test_a_client_that_hangs_up_cancels_a_handler(body, reset):
    begun, ended = trio.Event(), trio.Event()
    app: Any = QuartTrio(__name__)

    @app.post("/")
    async def work():
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with serving(app) as server:
        async with server.connect() as raw:
            await raw.send(post("Content-Length: 5" if body else "Content-Length: 0", body=body))
            await begun.wait()
            if reset:
                raw.stream.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        with trio.fail_after(5):
            await ended.wait()


# -- every answer ------------------------------------------------------------------------------------


async def test_every_answer_has_the_id_that_the_application_got():
    async def app(scope, receive, send):
        await respond(send, scope["state"]["request_id"].encode())

    async with serving(app) as server, server.connect() as raw:
        first, second = await raw.request(GET), await raw.request(GET)
        assert first.body.decode() == first.headers["x-request-id"]
        assert second.headers["x-request-id"] != first.headers["x-request-id"]
        assert "server" not in first.headers
        assert first.headers["date"]


async def test_a_head_alone_is_answered_without_a_body():
    async with serving(hello) as server, server.connect() as raw:
        await raw.send(GET.replace("GET", "HEAD"))
        assert (await raw.answer(head_only=True)).headers["content-length"] == "2"
        await raw.send("HEAD nowhere HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert (await raw.answer(head_only=True)).status == 400
        await raw.assert_closed()
