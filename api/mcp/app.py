"""The tool server as an ASGI application without a framework.

    POST /mcp            JSON-RPC, see `jsonrpc` and `calls`
    POST /mcp/all        the same, with the wider set of tools
    GET /openapi.json    the definitions of the tools, without a key

There are no sessions and no streams. GET and DELETE of both return 405 without a body:
MCP clients expect that, and some fail on a body that is not JSON-RPC.
"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import trio
from msgspec import structs

from ..error_table import ApiError, Links, body_of, headers_of
from ..http.received_request import (
    WHOLE_BODY,
    Application,
    Message,
    Receive,
    Send,
    admission_of,
    headers_of_scope,
    read_body,
    request_id_of,
)
from ..operations.operation import Call, OperationReply
from ..refusals import MethodNotAllowed
from ..service import Service
from .calls import ToolServer
from .jsonrpc import INVALID_REQUEST, SECTION, fault_reply, reasoned

WIDE = "/mcp/all"
PORTS = {"http": ":80", "https": ":443"}  # default ports, which an origin omits


def create_tools_app(service: Service, tools_url: str, docs_url: str) -> Application:
    """Create the ASGI application. It opens and closes nothing.

    `tools_url` is the public URL without a trailing slash. Only web pages of that origin
    may post.
    """
    links = structs.replace(service.links, base_url=tools_url, docs_url=docs_url)
    servers = {
        "/mcp": ToolServer(service, docs_url),
        WIDE: ToolServer(service, docs_url, wide=True),
    }
    return _App(servers, links, origin_of(tools_url))


def origin_of(url: str) -> str:
    """The Origin header of a page at this URL (RFC 6454 6.2)."""
    scheme, _, rest = url.lower().partition("://")
    host = rest.partition("/")[0]
    return f"{scheme}://{host.removesuffix(PORTS.get(scheme, ''))}"


class _App(msgspec.Struct, frozen=True):
    servers: Mapping[str, ToolServer]  # by path
    links: Links
    origin: str

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        request_id: str = request_id_of(scope)
        reply = await self._respond(scope, receive, request_id)
        await send(_start(scope, reply, request_id))
        assert isinstance(reply.body, bytes)
        body = b"" if scope["method"] == "HEAD" else reply.body
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, scope: Message, receive: Receive, request_id: str) -> OperationReply:
        method: str = scope["method"]
        if (server := self.servers.get(scope["path"])) is not None:
            if method != "POST":
                return OperationReply(405, headers={"Allow": "POST"})
            return await self._post(server, scope, receive, request_id)
        match scope["path"], method:
            case "/openapi.json", "GET" | "HEAD":
                return OperationReply(200, self.servers["/mcp"].payload)
            case "/openapi.json", _:
                refusal = MethodNotAllowed(method, "GET, HEAD")
                return OperationReply(
                    405, msgspec.json.encode(body_of(refusal, self.links)), headers_of(refusal)
                )
        return OperationReply(404, msgspec.json.encode(self._not_found()))

    async def _post(
        self, server: ToolServer, scope: Message, receive: Receive, request_id: str
    ) -> OperationReply:
        arrived_at = trio.current_time()
        headers = headers_of_scope(scope)
        if headers.get("origin", self.origin).lower() != self.origin:
            foreign = reasoned(
                INVALID_REQUEST, "The Origin is that of another site.",
                f"Send no Origin, or {self.origin}.", self.links.docs_url,
            )  # fmt: skip
            return fault_reply(replace(foreign, status=403))

        async def read(octets_max: int) -> bytes:
            return await read_body(scope, receive, arrived_at, octets_max)

        client, early = (scope["client"] or [""])[0], _early_body(scope)
        return await server.answer(
            Call(
                request_id,
                headers,
                read=read,
                admission=admission_of(scope),
                client=client,
                body=early,
            )
        )

    def _not_found(self) -> ApiError:
        """The 404 as an API error: the client does not speak JSON-RPC."""
        url = self.links.base_url
        return ApiError(
            "not_found",
            "There is nothing at this path of the tool server.",
            f"Use POST {url}/mcp for JSON-RPC, or GET {url}/openapi.json for the tools.",
            f"{self.links.docs_url}#{SECTION}",
        )


def _early_body(scope: Message) -> bytes:
    """The body if it arrived with the head, else b""."""
    octets: bytes = scope.get("extensions", {}).get(WHOLE_BODY, b"")
    return octets


def _start(scope: Message, reply: OperationReply, request_id: str) -> Message:
    assert isinstance(reply.body, bytes)
    headers = {
        **reply.headers,
        **({"Content-Type": reply.media_type} if reply.body else {}),
        "Content-Length": str(len(reply.body)),
        "X-Request-Id": request_id,
        "Cache-Control": "no-store",
    }
    if reply.closes and scope["http_version"].startswith("1"):
        headers["Connection"] = "close"
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": reply.status, "headers": raw}
