"""The results of the protocol's methods and of tool calls, for every transport. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Raw

from ..operations.description import VERSION
from .jsonrpc import HANDSHAKE_VERSIONS, VERSIONS

SERVER = {"name": "mailprobe", "title": "mailprobe", "version": VERSION}
CAPABILITIES: dict[str, object] = {"tools": {"listChanged": False}}
FRESH_MS = 600_000  # clients may cache the tool list for ten minutes
COMPLETE = {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": SERVER}}
CACHED = {**COMPLETE, "ttlMs": FRESH_MS, "cacheScope": "public"}  # the same for every caller

METHODS_2026 = ("server/discover", "tools/list", "tools/call")
METHODS = (*METHODS_2026, "initialize", "ping")  # for clients of other versions


def constant_results(
    definitions: Sequence[Mapping[str, object]], instructions: str
) -> dict[str, dict[str, object]]:
    """The results of the methods that return the same each time."""
    return {
        "ping": {},
        "tools/list": {"tools": definitions, **CACHED},
        "server/discover": {
            "supportedVersions": VERSIONS, "capabilities": CAPABILITIES,
            "instructions": instructions, **CACHED,
        },
    }  # fmt: skip


def negotiated(version: str | None) -> str:
    """The version that `initialize` agrees on: the requested one, or the newest with a handshake."""
    return (
        version if version is not None and version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
    )


def initialized(version: str | None, instructions: str) -> dict[str, object]:
    """The result of `initialize`."""
    return {
        "protocolVersion": negotiated(version),
        "capabilities": CAPABILITIES,
        "serverInfo": SERVER,
        "instructions": instructions,
    }


def called(body: bytes, notes: Sequence[str] = ()) -> dict[str, object]:
    """A tool's result: the object, its JSON as text for older clients, and what is to be added."""
    return {
        "content": [{"type": "text", "text": text} for text in (body.decode(), *notes)],
        "structuredContent": Raw(body),
        "isError": False,
        **COMPLETE,
    }


def failed(text: str) -> dict[str, object]:
    """The result of a call that failed: models see a result, and not an error of the protocol."""
    return {"content": [{"type": "text", "text": text}], "isError": True, **COMPLETE}
