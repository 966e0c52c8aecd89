"""The tools of a service, over its REST API."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from mailprobe.api.cli.toolserver.remote_tools import Keys, open_remote_toolbox, remote_toolbox
from mailprobe.api.errors import Misuse
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.bench.world.mail_host import MailHost
from tests.api.cli.test_clean import names_in, written
from tests.api.cli.toolserver.client import ToolClient, open_session
from tests.api.lists.test_lists import ended, open_list_shop
from tests.api.mcp.tool_server import NAMES
from tests.api.raw_http import serving
from tests.api.service_fixture import RunningService


@asynccontextmanager
async def remote_session(
    shop: RunningService, *, key: str | None = None, manages: bool = True
) -> AsyncIterator[ToolClient]:
    keys = Keys(key or shop.key, shop.provisioning if manages else None)
    async with (
        serving(shop.app) as server,
        open_remote_toolbox(f"http://127.0.0.1:{server.port}/", keys) as toolbox,
        open_session(toolbox) as client,
    ):
        with trio.fail_after(60):
            yield client


async def test_the_tools_of_a_service_are_its_operations(tmp_path: Path):
    path = written(tmp_path / "list.csv", "email\nann@office.test\nno@office.test\n")
    async with open_list_shop() as shop, remote_session(shop) as client:
        # At a host of its own each finds few refusals before it, and waits for none to be old.
        for domain in ("shop.test", "office.test"):
            shop.world.add(domain, MailHost(mailboxes=frozenset({"ann"})))
        await client.request("tools/list")
        listed = [each["name"] for each in (await client.next())["result"]["tools"]]
        assert set(listed) == {
            *NAMES,
            *(each.name for each in OPERATIONS if each.wide),
            "clean_file",
        }
        one = await client.result("verify_email", {"email": "ann@friendly.test", "evidence": True})
        assert one["evidence"]["conversation"]
        emails = ["no@friendly.test", "ann@friendly.test"]
        some = await client.result("verify_batch", {"emails": emails})
        assert [each["status"] for each in some["results"]] == ["undeliverable", "deliverable"]
        emails = ["no@shop.test", "ann@shop.test"]
        made = await client.result("create_list", {"emails": emails, "name": "a & b"})
        assert (made["name"], made["addresses"]) == ("a & b", 2)
        list_id = {"id": made["list_id"]}
        await ended(shop, list_id["id"])
        assert (await client.result("get_list", list_id))["status"] == "done"
        page = await client.result("get_list_results", {**list_id, "limit": 1})
        assert [row["email"] for row in page["rows"]] == emails[:1]
        assert page["next_offset"] == 1
        assert (await client.result("delete_list", list_id))["deleted"]
        assert (await client.result("get_usage_summary", {}))["calls_used"] == 5
        key = await client.result("create_api_key", {"label": "made by a tool"})
        assert (await client.result("revoke_api_key", {"id": key["id"]}))["revoked"]
        done = await client.result("clean_file", {"path": str(path)})
        assert done["statuses"] == {"deliverable": 1, "undeliverable": 1}
    assert names_in(tmp_path) == ["list.csv", "list.verified.csv"]


async def test_a_failure_says_why_and_what_to_do():
    async with open_list_shop() as shop:
        async with remote_session(shop, manages=False) as client:
            text = await client.failure("get_usage_summary", {})
            assert "set MAILPROBE_PROVISIONING_KEY" in text
            text = await client.failure("get_list", {"id": "../../health"})
            assert "no list with this id" in text
            assert "The field email is a number" in await client.failure(
                "verify_email", {"email": 5}
            )
        async with remote_session(shop, key="sk_live_unknown") as client:
            text = await client.failure("verify_email", {"email": "ann@friendly.test"})
            assert "401 invalid_api_key" in text


FOREIGN: dict[str, Callable[[httpx.Request], httpx.Response]] = {
    "502, and not that of a mailprobe service": lambda _: httpx.Response(502, text="<html>"),
    "something else, and not that of": lambda _: httpx.Response(200, text="<html>"),
    "something else": lambda _: httpx.Response(200, text="[]"),
}


@pytest.mark.parametrize("words", FOREIGN)
async def test_an_answer_of_another_program_is_a_failure(autojump_clock, words: str):
    await _fails(FOREIGN[words], words)


async def test_a_service_that_is_away_is_a_failure(autojump_clock):
    """An error without a text, such as that of a failed handshake, has that of its cause."""
    for error in (httpx.ConnectError("refused"), httpx.ConnectError("")):
        error.__cause__ = OSError("refused")

        def refuse(request: httpx.Request, error: Exception = error) -> httpx.Response:
            raise error

        await _fails(refuse, "cannot be reached (refused). See that it runs")


async def test_an_answer_on_many_lines_is_written_on_one(autojump_clock):
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text='{\n"email":\n"a"}')

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        toolbox = remote_toolbox(http, "https://api.test", Keys("sk_live_x"))
        async with open_session(toolbox) as client:
            assert await client.result("verify_email", {"email": "a"}) == {"email": "a"}


async def _fails(answer: Callable[[httpx.Request], httpx.Response], words: str) -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        toolbox = remote_toolbox(http, "https://api.test", Keys("sk_live_x"))
        async with open_session(toolbox) as client:
            assert words in await client.failure("verify_email", {"email": "a"})


@pytest.mark.parametrize("server", ["ftp://a.test", "https://user:x@a.test", "x"])
async def test_a_wrong_address_of_a_service_is_refused(server: Any):
    with pytest.raises(Misuse):
        async with open_remote_toolbox(server, Keys("sk_live_x")):
            pass
