"""A good request to each operation by each transport, and how a client sees its refusal there."""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from html import unescape
from typing import Any
from uuid import uuid4

import trio
from trio_websocket import ConnectionRejected

from mailprobe.api.error_table import TABLE
from mailprobe.api.operations.operation import Operation
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.pages.dashboard.refusal_words import WORDS
from mailprobe.api.refusals import Refusal
from mailprobe.storage.records import Account, Tier
from tests.api.jobs.test_worker import Receiver, working
from tests.api.lists.test_lists import LISTS, PEOPLE, send, working_lists
from tests.api.live.live_client import open_live
from tests.api.mcp.tool_server import Listener, listener_of
from tests.api.pages.test_dashboard import PageClient, signed_in
from tests.api.service_fixture import FORM_ORIGIN, MANAGEMENT, HttpAnswer, RunningService, open_shop

EMAIL = "known@friendly.test"
COMMON = {"error", "message", "action", "docs"}
BY_NAME = {operation.name: operation for operation in OPERATIONS}

# operation -> the body of a good request; an upload and what is not JSON in its own form
BODIES: dict[str, object] = {
    "verify_email": {"email": EMAIL},
    "verify_batch": {"emails": [EMAIL]},
    "verify_stream": {"emails": [EMAIL]},
    "verify_form": {"email": EMAIL},
    "create_list": PEOPLE.encode(),
    "feed_bounces": {"RecordType": "Bounce", "Type": "HardBounce", "Email": EMAIL},
    "create_api_key": {"label": "a"},
    "create_billing_portal": {},
    "take_billing_event": b"{}",
}


@dataclass(frozen=True)
class Request:
    """A request to an operation. `key`: None is none."""

    operation: Operation
    path: str
    key: str | None
    octets: bytes = b""
    headers: Mapping[str, str | None] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] | None = None
    method: str = ""

    def with_headers(self, **headers: str | None) -> "Request":
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return replace(self, headers={**self.headers, **named})

    def with_body(self, body: object) -> "Request":
        octets = body if isinstance(body, bytes) else json.dumps(body).encode()
        return replace(self, octets=octets)


TOOL_ARGUMENTS: dict[str, dict[str, object]] = {"create_list": {"emails": [EMAIL]}}

# operation -> the page that performs it, and the fields of its form
PAGES: dict[str, tuple[str, dict[str, str] | None]] = {
    "verify_email": ("/try", {"email": EMAIL}),
    "create_api_key": ("/keys", {"label": "a"}),
    "revoke_api_key": ("/keys/{key}/revoke", {}),
    "list_api_keys": ("/keys", None),
    "get_list": ("/lists/{id}", None),
    "pause_list": ("/lists/{id}/pause", {}),
    "resume_list": ("/lists/{id}/resume", {}),
    "cancel_list": ("/lists/{id}/cancel", {}),
    "get_job": ("/jobs/{id}", None),
}

Spoils = Callable[[Request], Request]  # makes a good request one that is refused


def unspoiled(request: Request) -> Request:
    return request


@dataclass(frozen=True)
class Refused:
    """A refusal as a client sees it. `more` are the fields beside those of all errors."""

    status: int
    code: str
    more: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    body: Mapping[str, Any] = field(default_factory=dict, compare=False)


def refused_by(got: HttpAnswer) -> Refused:
    """An error of the API. Asserts what all of them have."""
    if got.headers.get("content-type") != "application/json" or "error" not in got.body:
        return Refused(got.status, "no error")
    body = got.body
    assert body.keys() >= COMMON
    assert all(body[name] and not set(body[name]) & set("{}") for name in COMMON)
    assert got.headers["x-request-id"]
    return Refused(got.status, body["error"], frozenset(body.keys() - COMMON), got.headers, body)


UPSTREAM = -32002


def refused_by_rpc(got: HttpAnswer) -> Refused:
    """An error of JSON-RPC: the API's, with its status and body, or the tool server's own."""
    error = got.body.get("error")
    if error is None:
        return Refused(got.status, "no error")
    data = error["data"]
    if error["code"] != UPSTREAM:
        assert data.keys() == {"reason", "action", "docs"}
        return Refused(got.status, str(error["code"]), headers=got.headers, body=data)
    body = data["body"]
    assert data == {"status": got.status, "body": body, **{k: body[k] for k in ("action", "docs")}}
    return Refused(got.status, body["error"], frozenset(body.keys() - COMMON), got.headers, body)


class Portal:
    """A billing provider in whose place a case puts its refusal."""

    receives_events = True
    refusal: Exception | None = None
    url: str | None = "https://bills.test/"

    async def portal_url(self, account: Account, return_url: str | None) -> str | None:
        await trio.lowlevel.checkpoint()
        if self.refusal is not None:
            raise self.refusal
        return self.url

    async def receive_event(self, octets: bytes, signature: str) -> None:
        await self.portal_url(None, None)  # type: ignore[arg-type]  # of no account


@dataclass
class World:
    """A service with every part, an account, and one of each thing that a path can name."""

    shop: RunningService
    portal: Portal
    form_key: str
    list_id: str
    visitor: PageClient
    nursery: trio.Nursery

    # -- REST

    def request(self, operation: Operation) -> Request:
        """A good request, but that no job, key or bounce has its id."""
        path = operation.path.replace("{email}", EMAIL)
        is_of_list = path.startswith(f"{LISTS}/") and self.list_id
        path = path.replace("{id}", self.list_id if is_of_list else str(uuid4()))
        key = {
            None: None,
            "standard": self.shop.key,
            "provisioning": self.shop.provisioning,
            "form": self.form_key,
        }[operation.key]
        headers = {"origin": FORM_ORIGIN} if operation.key == "form" else {}
        if operation.uploads:
            headers = {"content-type": "text/csv"}
        request = Request(operation, path, key, headers=headers, method=operation.method)
        body = BODIES.get(operation.name)
        return request if body is None else request.with_body(body)

    async def answer(self, request: Request) -> HttpAnswer:
        return await self.shop.request(
            request.method, request.path, octets=request.octets, key=request.key,
            headers=request.headers, pieces=request.pieces,
        )  # fmt: skip

    async def rest(self, name: str, spoil: Spoils = unspoiled) -> Refused:
        return refused_by(await self.answer(spoil(self.request(BY_NAME[name]))))

    # -- the live socket

    async def live_handshake(self, spoil: Spoils = unspoiled) -> Refused:
        request = spoil(self.request(BY_NAME["verify_live"]))
        sent = {} if request.key is None else {"authorization": f"Bearer {request.key}"}
        sent |= {name: text for name, text in request.headers.items() if text is not None}
        try:
            async with open_live(self.shop, headers=sent, path=request.path):
                return Refused(101, "no error")
        except* ConnectionRejected as group:
            rejected: BaseException = group
            while isinstance(rejected, BaseExceptionGroup):
                rejected = rejected.exceptions[0]
        assert isinstance(rejected, ConnectionRejected)
        headers = {name.decode().lower(): text.decode() for name, text in rejected.headers or ()}
        return refused_by(HttpAnswer(rejected.status_code, headers, rejected.body or b""))

    async def live_address(self) -> Refused:
        """Of an address on a socket that was opened while the store was there."""
        store = self.shop.store
        away, store.away = store.away, False
        async with open_live(self.shop) as live:
            await live.until("credit")
            store.away = away
            await live.send({"email": EMAIL})
            closed = await live.until_closed()
            (error,) = live.of("error")
            del error["type"]
        assert error.keys() >= COMMON
        return Refused(closed - 4000, error["error"], frozenset(error.keys() - COMMON), {}, error)

    # -- tools

    def listener(self, path: str) -> Listener:
        return listener_of(self.shop, path)

    async def tool(self, name: str, spoil: Spoils = unspoiled) -> Refused:
        """Of a call at /mcp: an error of JSON-RPC that has the API's status, body and headers."""
        return refused_by_rpc(await self._called("/mcp", name, spoil))

    async def wide_tool(self, name: str, spoil: Spoils = unspoiled) -> Refused:
        """Of a call at /mcp/all: a result whose text has the status and the code."""
        got = await self._called("/mcp/all", name, spoil)
        if "error" in got.body:  # before any tool is called
            return replace(refused_by_rpc(got), more=frozenset())
        if not got.body["result"]["isError"]:
            return Refused(got.status, "no error")
        (text,) = got.body["result"]["content"]
        found = re.search(r"\((\d{3}) (\w+)[,)]", text["text"])
        assert found is not None, text
        return Refused(int(found[1]), found[2], body={"message": text["text"]})

    async def _called(self, path: str, name: str, spoil: Spoils) -> HttpAnswer:
        request = spoil(self.request(BY_NAME[name]))
        sent = {name: text for name, text in request.headers.items() if name != "content-type"}
        provisioning: str | None = None
        key: str | None = self.shop.key
        if request.operation.key == "provisioning":
            provisioning = request.key
        else:
            key = request.key
        is_json = request.octets.startswith(b"{")
        arguments = json.loads(request.octets) if is_json else dict(TOOL_ARGUMENTS.get(name, {}))
        if "{id}" in request.operation.path:
            arguments["id"] = request.path.split("/")[3 + request.path.startswith(MANAGEMENT)]
        return await self.listener(path).call(
            name, arguments, provisioning=provisioning, headers=sent, key=key
        )

    # -- the dashboard

    async def page(self, name: str, refusal: type[Refusal]) -> Refused:
        """Of a page: its status, and the code if it says in its own words what is wrong."""
        path, fields = PAGES[name]
        path = path.replace("{id}", self.request(BY_NAME[name]).path.split("/")[3:][0])
        path = path.replace("{key}", str(uuid4()))
        visitor = self.visitor
        got = await (visitor.get(path) if fields is None else visitor.post(path, fields))
        words = WORDS[refusal][0].partition("{")[0]
        says = words in unescape(got.octets.decode())
        return Refused(got.status, TABLE[refusal].code if says else "other words")


@asynccontextmanager
async def open_world(tier: Tier = "builder", **more: Any) -> AsyncIterator[World]:
    """Open a service with jobs, lists, billing and a form; a list of it is paused."""
    portal = Portal()
    async with AsyncExitStack() as stack:
        shop = await stack.enter_async_context(open_shop(tier, payments=portal, **more))
        await stack.enter_async_context(working(shop, Receiver()))
        await stack.enter_async_context(working_lists(shop))
        sent = await send(shop, query="?start=0")
        form_key, list_id = await shop.new_form_key(), sent.body["list_id"]
        visitor = await signed_in(shop)
        async with trio.open_nursery() as nursery:
            yield World(shop, portal, form_key, list_id, visitor, nursery)
            nursery.cancel_scope.cancel()
