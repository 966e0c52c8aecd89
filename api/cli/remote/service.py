"""A service as its client sees it: its address, and connections with a key."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import httpx
from msgspec import Struct

from ...errors import Misuse

TIMEOUT = httpx.Timeout(connect=10.0, read=30.0, write=30.0, pool=None)
REQUESTS_MAX = 16  # at a time: 800 addresses, nearly a minute's worth of the largest tier


class RemoteService(Struct, frozen=True):
    """One service and one key. With `asks_hosts` off it answers without SMTP."""

    client: httpx.AsyncClient
    url: str  # without a slash at the end
    key: str
    asks_hosts: bool = True


@asynccontextmanager
async def open_service(
    server: str, key: str, *, asks_hosts: bool = True
) -> AsyncIterator[RemoteService]:
    """Open connections to a service for one command. Raises Misuse."""
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
        yield RemoteService(client, url, key, asks_hosts)


def on_this_machine(host: str) -> bool:
    """Whether a host's name or address is that of loopback."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_server(url: str, key: str) -> str:
    """Return the service's URL without a slash at the end. Raises Misuse for a wrong URL or key."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        parts = httpx.URL("")
    if parts.scheme not in ("http", "https") or not parts.host or parts.query or parts.fragment:
        raise Misuse("--server takes the address of a service, such as https://mailprobe.example")
    if parts.userinfo:
        raise Misuse("--server takes no user or password; give the key with --key")
    if not (key.isascii() and key.isprintable() and key.strip() == key and key):
        raise Misuse("--key takes an API key, such as sk_live_…")
    return url.rstrip("/")
