"""The composed service: crashed background tasks restart, and every listener is open."""

import json
import re
import socket
import time
from pathlib import Path

import httpx
import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.http.listeners import open_sockets
from mailprobe.api.serve import RETENTION_EVERY_S, serve_service
from tests.api.cli.test_serve import mailprobe, make_account, served
from tests.api.jobs.test_killed import host_names
from tests.api.service_fixture import open_shop
from tests.warm_lab import start_lab


async def test_a_crash_of_the_upkeep_is_logged_and_ends_no_request(
    autojump_clock, monkeypatch: pytest.MonkeyPatch, faults: list[str]
) -> None:
    """A row that upkeep cannot process must not end the service; upkeep is retried."""
    tried = []

    async def crash(*arguments: object) -> None:
        tried.append(arguments)
        raise ZeroDivisionError("ours")

    async with open_shop() as shop:
        service = replace(shop.service, store=shop.store.store)
        monkeypatch.setattr(service.store, "apply_retention", crash, raising=False)
        drain = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_service, service, open_sockets("127.0.0.1", 0), drain)
            await trio.sleep(2.5 * RETENTION_EVERY_S)
            assert (await shop.verify()).status == 200
            drain.set()
    assert len(tried) == len(faults) == 3
    assert "ZeroDivisionError: ours" in faults[0]


@pytest.mark.parametrize("words", [[], ["--workers", "2"]], ids=["one", "two workers"])
def test_the_tool_server_stands_beside_the_api(tmp_path: Path, words: list[str]) -> None:
    with start_lab() as lab, served(tmp_path, lab, *words) as service:
        (tools_url,) = re.findall(r"tools on (\S+)/mcp", service.said)
        key = make_account(tmp_path)["key"]
        said = httpx.get(f"{tools_url}/openapi.json", trust_env=False).json()
        assert len(said["tools"]) == 8
        call = {"name": "verify_email", "arguments": {"email": "no address"}}
        got = httpx.post(
            f"{tools_url}/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
            headers={"Authorization": f"Bearer {key}"},
            trust_env=False,
        )
        assert got.json()["result"]["structuredContent"]["failed_check"] == "syntax"
        for path in ("/mcp", "/mcp/all"):
            elsewhere = httpx.post(f"{service.url}{path}", trust_env=False)
            assert elsewhere.status_code == 404
            assert f"The tool server is at {tools_url}{path}." in elsewhere.json()["action"]
        service.stop()


def test_a_tool_servers_address_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        done = mailprobe(tmp_path, "serve", "--bind", "127.0.0.1:0", "--tools-bind", bind)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "MAILPROBE_TOOLS_BIND=" in done.stderr


def test_a_stop_does_not_wait_for_a_receiver_that_hangs(tmp_path: Path) -> None:
    """The callback has begun, and the next start tries it again."""
    with start_lab() as lab:
        name, ip = next(iter(trio.run(host_names, lab).items()))
        with socket.create_server((ip, 0)) as silent, served(tmp_path, lab) as service:
            silent.settimeout(30)
            key = make_account(tmp_path)["key"]
            hook = f"https://{name}:{silent.getsockname()[1]}/"
            got = httpx.post(
                f"{service.url}/v1/email/verify",
                json={"email": "no address", "webhook": hook},
                headers={"Authorization": f"Bearer {key}"},
                trust_env=False,
            )
            assert got.status_code == 202
            caller, _ = silent.accept()
            began = time.monotonic()
            service.stop()
            assert time.monotonic() - began < 10
            caller.close()
    job = json.loads(mailprobe(tmp_path, "job", "list").stdout)
    assert (job["id"], job["state"]) == (got.json()["job_id"], "delivering")
