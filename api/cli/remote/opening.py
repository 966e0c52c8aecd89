"""Opens a service as a source of answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import httpx

from mailprobe.api.cli.remote.http_source import REQUESTS_MAX, TIMEOUT, HttpSource, check_server
from mailprobe.api.cli.remote.list_source import RemoteLists
from mailprobe.api.cli.source import AnswerSource


@asynccontextmanager
async def open_http_source(
    server: str, key: str, *, takes_lists: bool = True, asks_hosts: bool = True
) -> AsyncIterator[AnswerSource]:
    """Open a service for one command. Raises Misuse."""
    url = check_server(server, key)
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Accept": "application/x-ndjson",
    }
    async with httpx.AsyncClient(
        headers=headers,
        timeout=TIMEOUT,
        limits=httpx.Limits(max_connections=REQUESTS_MAX),
        trust_env=not on_this_machine(httpx.URL(url).host),  # a proxy cannot reach our loopback
    ) as client:
        stream = HttpSource(client, url, asks_hosts=asks_hosts)
        yield RemoteLists(client, server.rstrip("/"), stream) if takes_lists else stream


def on_this_machine(host: str) -> bool:
    """Whether a host's name or address is that of loopback."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
