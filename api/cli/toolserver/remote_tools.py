"""The tools of a service: each call is a request to its REST API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import quote

import httpx
import msgspec
import trio

from mailprobe.engine.background import sole_exception

from ...error_table import ApiError
from ...errors import CommandError
from ...mcp.jsonrpc import UPSTREAM_FAILED, RpcFault
from ...mcp.tools import COUNTED, READING, Tool, wide_tools
from ...operations.operation import JSON, OperationReply, StreamedParts
from ...operations.verify import EMAILS_MAX
from ..cleaning.passes import PATIENCE_S
from ..remote.http_responses import read_error_body, reason_of
from ..remote.open_requests import BATCH_OCTETS_MAX, read_whole
from ..remote.service import TIMEOUT, check_server, on_this_machine
from ..remote.source import open_remote_source
from ..source import OpenSource
from .file_cleaning import FileCleaner
from .toolbox import CALLS_MAX, OfferedTool, Report, Toolbox

SETTING = "MAILPROBE_PROVISIONING_KEY"
NEEDS_SETTING = f" Needs a provisioning key: {SETTING} where this server is started."
INSTRUCTIONS = (
    f"{COUNTED} {READING} Verify up to {EMAILS_MAX} addresses with verify_batch, more with "
    "create_list, a file with clean_file. A call that fails says why and what to do."
)


class Keys(msgspec.Struct, frozen=True):
    """The keys of an account; the tools that manage it need the second."""

    standard: str
    provisioning: str | None = None


@asynccontextmanager
async def open_remote_toolbox(
    server: str, keys: Keys, patience_s: float = PATIENCE_S
) -> AsyncIterator[Toolbox]:
    """Open the tools of this service. Raises Misuse for a wrong address or key."""
    server = check_server(server, keys.standard)
    async with httpx.AsyncClient(
        timeout=TIMEOUT,
        limits=httpx.Limits(max_connections=CALLS_MAX),
        trust_env=not on_this_machine(httpx.URL(server).host),
    ) as client:
        yield remote_toolbox(client, server, keys, patience_s)


def remote_toolbox(
    client: httpx.AsyncClient, server: str, keys: Keys, patience_s: float = PATIENCE_S
) -> Toolbox:
    """The tools of the service at this address, which has no slash at its end."""

    def open_source(smtp: bool) -> OpenSource:
        return lambda: open_remote_source(server, keys.standard, asks_hosts=smtp)

    service = _Service(client, server, keys)
    tools = {
        name: OfferedTool(tool.definition, tool.takes, partial(service.call, tool))
        for name, tool in wide_tools(NEEDS_SETTING).items()
    }
    tools["clean_file"] = FileCleaner(open_source, patience_s, is_local=False).tool()
    return Toolbox(tools, INSTRUCTIONS, f"{server}/docs")


class _Service(msgspec.Struct, frozen=True):
    client: httpx.AsyncClient
    url: str
    keys: Keys

    async def call(self, tool: Tool, taken: object, octets: bytes, report: Report) -> bytes:
        """Perform a tool's operation. Raises RpcFault, CommandError."""
        operation, request = tool.operation, tool.request_of(taken, octets)
        path = operation.path.format(
            **{name: quote(part, "") for name, part in request.path.items()}
        )
        has_body = operation.uploads or operation.takes is not None
        headers = {
            "authorization": f"Bearer {self._key(tool)}",
            **({"content-type": JSON} if has_body else {}),
            **request.headers,
        }
        query = {name: list(values) for name, values in request.query.items()}
        try:
            async with self.client.stream(
                operation.method, self.url + path, params=query, headers=headers,
                content=request.body if has_body else None,
            ) as response:  # fmt: skip
                if response.status_code >= 400:
                    raise self._refused(response, await read_error_body(response))
                async with _opened_reply(tool, response) as reply:
                    return self._checked(await tool.answer_of(taken, reply))
        except httpx.RequestError as error:
            raise CommandError(
                f"The service at {self.url} cannot be reached ({reason_of(error)}). "
                "See that it runs and that MAILPROBE_SERVER or --server is right, then call again."
            ) from error

    def _key(self, tool: Tool) -> str:
        if tool.operation.key != "provisioning":
            return self.keys.standard
        if self.keys.provisioning is None:
            raise CommandError(
                f"The tool {tool.operation.name} needs a provisioning key (sk_mgmt_…). Ask the person "
                f"to set {SETTING} where this server is started, and to start it again."
            )
        return self.keys.provisioning

    def _refused(self, response: httpx.Response, octets: bytes) -> Exception:
        try:
            refused = msgspec.json.decode(octets, type=ApiError)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._foreign(f"{response.status_code}")
        data = {
            "status": response.status_code, "body": octets, "action": refused.action, "docs": refused.docs,
        }  # fmt: skip
        waits = response.headers.get("retry-after")
        return RpcFault(
            UPSTREAM_FAILED, data, headers={} if waits is None else {"Retry-After": waits}
        )

    def _checked(self, octets: bytes) -> bytes:
        """The answer on one line, if it is an object."""
        try:
            found = msgspec.json.decode(octets, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._foreign("something else") from None
        return msgspec.json.encode(found)

    def _foreign(self, what: str) -> CommandError:
        return CommandError(
            f"The answer of {self.url} is {what}, and not that of a mailprobe service. See that "
            "MAILPROBE_SERVER or --server is right; a proxy may have answered: call again later."
        )


@asynccontextmanager
async def _opened_reply(tool: Tool, response: httpx.Response) -> AsyncIterator[OperationReply]:
    """The reply of a good response: whole, or in parts if it is a download, of which a page is read.

    httpx's generators must be read to the end or cancelled; a task does that for the parts.
    """
    if not tool.operation.media_types:
        yield OperationReply(response.status_code, await read_whole(response, BATCH_OCTETS_MAX))
        return
    send, parts = trio.open_memory_channel[bytes](0)

    async def read() -> None:
        async with send:
            async for part in response.aiter_bytes():
                await send.send(part)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            yield OperationReply(response.status_code, StreamedParts(parts))
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise sole_exception(group) from None
