"""The receivers' programs in docs/callbacks.md accept our callbacks and no others."""

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trustme

from mailprobe.api.jobs.delivery import WebhookSender
from mailprobe.api.jobs.rules import callback_headers, check_webhook
from tests.api.jobs.conftest import authority, ca_file  # noqa: F401  # fixtures
from tests.api.jobs.delivery_fixture import HOST, open_local, open_receiver
from tests.docs.pages import Block, blocks_in

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = '{"email":"ä@x.test","status":"deliverable","job_id":"1"}'.encode()
START_S = 30
PROGRAMS = {"python": sys.executable, "js": "node"}

CALLBACKS = [
    block
    for language in PROGRAMS
    for block in blocks_in(language)
    if block.page.name == "callbacks.md"
]


def with_text(*texts: str) -> list[Block]:
    return [block for block in CALLBACKS if all(text in block.text for text in texts)]


def test_the_receivers_check_accepts_our_signatures_only() -> None:
    """The program of the page checks signatures that the sender makes."""
    (block,) = with_text("def is_genuine", "secret: str")
    page: dict[str, Any] = {}
    exec(block.text, page)
    for secret in ("a secret", SECRET):
        headers = callback_headers("1", BODY, secret, datetime.now(UTC))
        assert page["is_genuine"](headers, BODY, secret)
        assert not page["is_genuine"](headers, BODY + b" ", secret)
        assert not page["is_genuine"](headers, BODY, "another secret")
        late = callback_headers("1", BODY, secret, datetime.now(UTC) - timedelta(minutes=6))
        assert not page["is_genuine"](late, BODY, secret)


def test_the_line_with_the_official_package_accepts_our_signatures_only() -> None:
    (block,) = with_text("standardwebhooks import")
    page: dict[str, Any] = {}
    exec(block.text, page)
    headers = callback_headers("1", BODY, SECRET, datetime.now(UTC))
    assert page["read_callback"](headers, BODY, SECRET)["status"] == "deliverable"
    with pytest.raises(Exception, match="No matching signature"):
        page["read_callback"](headers, BODY + b" ", SECRET)


@asynccontextmanager
async def running(block: Block, folder: Path) -> AsyncIterator[tuple[str, Any]]:
    """The program of a block while it serves: its URL, and its process."""
    program = PROGRAMS[block.language]
    if not shutil.which(program):
        pytest.skip(f"this machine has no {program}")
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    file = folder / ("receiver.py" if block.language == "python" else "receiver.cjs")
    file.write_text(block.text, "utf-8")
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process, [program, str(file)], stdout=subprocess.PIPE, check=False,
                env={"SECRET": SECRET, "PORT": str(port)},
            )
        )  # fmt: skip
        with trio.fail_after(START_S):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.sleep(0.05)
        yield f"http://127.0.0.1:{port}", process
        process.terminate()


async def post(url: str, secret: str, body: bytes = BODY) -> int:
    headers = callback_headers("2", BODY, secret, datetime.now(UTC))
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.post(url, content=body, headers=headers)).status_code


async def send_through(sender: WebhookSender, port: int) -> int | None:
    headers = callback_headers("1", BODY, SECRET, datetime.now(UTC))
    target = check_webhook(f"https://{HOST}:{port}/mail")
    return (await sender.deliver(target, headers, BODY)).status


@pytest.mark.parametrize("block", with_text("PORT"), ids=str)
async def test_a_receiver_takes_a_callback_once_and_no_forged_one(
    block: Block,
    tmp_path: Path,
    authority: trustme.CA,  # noqa: F811
    ca_file: str,  # noqa: F811
) -> None:
    """The callback is really sent, over TLS, through a proxy as it stands before a receiver."""
    async with running(block, tmp_path) as (url, process):

        async def forward(stream: trio.abc.Stream) -> None:
            request = proxy.requests[-1]
            inner = await trio.open_tcp_stream("127.0.0.1", httpx.URL(url).port or 80)
            async with inner:
                await inner.send_all(request)
                await stream.send_all(await inner.receive_some())

        async with open_receiver(authority, forward) as proxy, open_local(ca_file) as sender:
            assert await send_through(sender, proxy.port) == 204
            assert await send_through(sender, proxy.port) == 204  # a second attempt
        assert await post(url, "whsec_" + "A" * 32) == 401
        assert await post(url, SECRET, BODY.replace(b"deliverable", b"unknown")) == 401
        assert await post(url, SECRET) == 204  # another job
        printed = b""
        with trio.fail_after(START_S):
            while printed.count(b"\n") < 2:
                printed += await process.stdout.receive_some()
    assert printed.decode().splitlines() == ["ä@x.test deliverable"] * 2
