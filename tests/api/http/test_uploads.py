"""Uploads: bodies larger than memory allows, to paths that take them, at the application's pace."""

import hashlib

import pytest
import trio
import trio.testing

from mailprobe.api.admission.request_bodies import BodyBudget
from mailprobe.api.http.received_request import admission_of
from tests.api.http.requests import CHUNKED, post
from tests.api.raw_http import read_body, respond, serving

PIECE = bytes(range(256)) * 256  # 64 KiB
PIECES = 320  # 20 MiB
UPLOADS = {b"/lists": 64 << 20}


class Receiving:
    """An application that takes uploads as the service does: part by part, to a disk."""

    def __init__(self) -> None:
        self.may_read = trio.Event()
        self.may_read.set()
        self.octets = 0
        self.digest = hashlib.sha256()

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        has_more = True
        while has_more:
            message = await receive()  # type: ignore[operator]
            await self.may_read.wait()
            if message["type"] == "http.disconnect":
                await trio.sleep_forever()
            self.octets += len(message["body"])
            self.digest.update(message["body"])
            admission_of(scope).stored(len(message["body"]))
            has_more = message.get("more_body", False)
        await respond(send, str(self.octets).encode())  # type: ignore[arg-type]


def chunked(octets: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(octets), octets)


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_an_upload_may_be_larger_than_the_budget_of_bodies(is_chunked: bool) -> None:
    app, intake = Receiving(), BodyBudget(octets_max=4 << 20)
    async with serving(app, intake=intake, uploads=UPLOADS) as server, server.connect() as raw:
        length = CHUNKED if is_chunked else f"Content-Length: {len(PIECE) * PIECES}"
        await raw.send(post(length, path="/lists"))
        for _ in range(PIECES):
            await raw.send(chunked(PIECE) if is_chunked else PIECE)
            assert intake.octets <= 4 << 20
        if is_chunked:
            await raw.send("0\r\n\r\n")
        answer = await raw.answer()
        assert (answer.status, answer.body) == (200, str(len(PIECE) * PIECES).encode())
        assert app.digest.digest() == hashlib.sha256(PIECE * PIECES).digest()
        await raw.send(post("Content-Length: 3", path="/lists") + "abc")
        assert (await raw.answer()).status == 200
        assert intake.octets == 0


async def test_a_slow_application_holds_back_the_client_and_not_the_memory() -> None:
    app, intake = Receiving(), BodyBudget()
    async with serving(app, intake=intake, uploads=UPLOADS) as server, server.connect() as raw:
        app.may_read = trio.Event()
        await raw.send(post(f"Content-Length: {len(PIECE) * PIECES}", path="/lists"))

        async def send() -> None:
            for _ in range(PIECES):
                await raw.send(PIECE)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert 1 << 20 <= intake.octets <= 3 << 20  # what waits, and a read
            app.may_read.set()
        assert (await raw.answer()).status == 200


async def test_an_upload_that_falls_silent_is_408(idle_clock) -> None:
    app = Receiving()
    opened = serving(app, uploads=UPLOADS, upload_silence_s=0.2, body_s=0.1)
    async with opened as server, server.connect() as raw:
        await raw.send(post("Content-Length: 100", path="/lists"))
        for _ in range(5):  # longer in all than any other body may take
            await raw.send("x" * 10)
            await trio.sleep(0.05)
        answer = await raw.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")


async def test_an_upload_of_tiny_pieces_is_an_attack() -> None:
    app = Receiving()
    async with serving(app, uploads=UPLOADS) as server, server.connect() as raw:
        await raw.send(post(CHUNKED, path="/lists"))
        await raw.send(chunked(b"x") * 6_000)
        assert (await raw.answer()).status == 413


@pytest.mark.parametrize("path", ["/lists/", "/list", "/other"])
async def test_other_paths_take_no_uploads(path: str) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        await read_body(receive)  # type: ignore[arg-type]
        await respond(send)  # type: ignore[arg-type]

    async with serving(app, uploads=UPLOADS) as server, server.connect() as raw:
        await raw.send(post(f"Content-Length: {3 << 20}", path=path))
        assert (await raw.answer()).status == 413


async def test_an_upload_that_is_declared_too_large_is_413() -> None:
    async with serving(Receiving(), uploads=UPLOADS) as server, server.connect() as raw:
        await raw.send(post(f"Content-Length: {65 << 20}", path="/lists"))
        assert (await raw.answer()).status == 413


async def test_a_client_that_hangs_up_amid_an_upload_frees_all() -> None:
    app, intake = Receiving(), BodyBudget()
    app.may_read = trio.Event()
    async with serving(app, intake=intake, uploads=UPLOADS) as server:
        async with server.connect() as raw:
            await raw.send(post(f"Content-Length: {4 << 20}", path="/lists"))
            await raw.send(PIECE)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert intake.octets
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert not intake.octets
