"""Checks what this machine needs for verification, with advice for each failure.

Mail hosts report our public address in their EHLO reply, so no web service is needed.
Nothing lasting is created, and each check has a time limit.
"""

import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Literal
from urllib.parse import urlsplit

import trio
import trio.socket
from msgspec import Struct

from mailprobe.engine.dns.doh import open_transport
from mailprobe.engine.dns.messages import (
    Addresses,
    LookupFailed,
    NoAddress,
    Route,
    encode_query,
    read_route,
)
from mailprobe.engine.dns.response import TransportFailed
from mailprobe.engine.dns.routes import Routes, open_routes
from mailprobe.engine.net.dialer import Dial, Dialer
from mailprobe.engine.net.public_addresses import is_public
from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.wire import (
    ConnectionLost,
    ReadTimedOut,
    RemoteProtocolError,
    SmtpReply,
    ehlo,
)
from mailprobe.storage.contract import DEFAULT_FOLDER

from .at_once import all_at_once
from .checks import CLOCK, DATABASE, ENDPOINT, HELO, IDENTITY, PORT, Check
from .dns_questions import DnsQuestions, QueryTransport
from .sender import check_blocklists, check_spf

# Their mail hosts are tested; the first two report our address in their EHLO reply.
PROVIDERS = ("gmail.com", "outlook.com", "gmx.net")
# Looked up by this machine's own resolver where the endpoints fail: port 25 is tested all the same.
KNOWN_HOSTS = {
    "gmail.com": "gmail-smtp-in.l.google.com",
    "outlook.com": "outlook-com.olc.protection.outlook.com",
    "gmx.net": "mx00.gmx.net",
}
ENDPOINT_S = 3.0
FIND_S = 3.0  # a mail host and its address
MEET_S = 3.0  # connection to one, banner and EHLO
HELO_S = 3.0  # after the mail hosts: 9 s in all
CLOCK_S_MAX = 30.0  # signatures and certificates tolerate minutes, rate limits and usage less


class EndpointCheck(Struct, frozen=True):
    """The check of one DNS endpoint, and how far its clock is ahead of ours, if known."""

    check: Check
    ahead_s: float | None = None


class Greeting(Struct, frozen=True):
    """How far the connection to a provider's mail host got, and its text."""

    domain: str
    received: Literal["not found", "not connected", "refused", "welcome"]
    words: str
    our_address: str | None = None


async def system_addresses(host: str) -> list[str]:
    """The addresses of a host by this machine's own resolver. Raises OSError."""
    found = await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


class Network(Struct, frozen=True):
    """The network access of the checks."""

    transport: QueryTransport
    routes: Routes
    dial: Dial
    now: Callable[[], float] = time.time
    system: Callable[[str], Awaitable[list[str]]] = system_addresses


async def examine(settings: EngineSettings, database: str, secret_key: bytes | None) -> list[Check]:
    """Run all checks, through the same resolver and dialer as the engine."""
    async with open_network(settings) as network:
        return await examine_with(network, settings, database, secret_key)


@asynccontextmanager
async def open_network(settings: EngineSettings) -> AsyncIterator[Network]:
    """Open the network access of the checks."""
    dial = Dialer(settings.proxies, allow_private=settings.allow_private)
    async with (
        open_transport(settings.doh_ca_file) as transport,
        open_routes(settings, transport=transport, rng=Random()) as routes,
    ):
        yield Network(transport, routes, dial)


async def examine_with(
    network: Network, settings: EngineSettings, database: str, secret_key: bytes | None = None
) -> list[Check]:
    """Run all checks, the slow ones concurrently, within 10 s in all."""
    checked: list[EndpointCheck] = []

    async def check_urls() -> None:
        checked.extend(await check_endpoints(network, settings))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(check_urls)
        greeted = await greetings_of(network, settings)
    ours = our_address(greeted)
    works = any(endpoint.check.status == "ok" for endpoint in checked)
    return [
        *(endpoint.check for endpoint in checked),
        check_port(settings, greeted, resolved=works),
        *await check_of_sender(network, settings, ours, works=works),
        await check_store(database, secret_key),
        check_clock(checked),
    ]


async def check_of_sender(
    network: Network, settings: EngineSettings, ours: str | None, *, works: bool
) -> list[Check]:
    """Check our name, our address and our sender; `works`: an endpoint answers."""
    if not works:  # one cause, said once
        skipped = IDENTITY.skipped("no endpoint answers: see above")
        fault = check_helo_form(settings)
        return [skipped] if fault is None else [fault, skipped]
    questions = DnsQuestions(network.transport, settings.doh_urls)
    return await all_at_once(
        (
            partial(check_helo, settings, network.routes, ours),
            partial(check_blocklists, ours, questions),
            partial(check_spf, settings, ours, questions),
        )
    )


async def check_endpoints(network: Network, settings: EngineSettings) -> list[EndpointCheck]:
    """Query each endpoint."""
    return await all_at_once(partial(check_endpoint, network, url) for url in settings.doh_urls)


async def check_endpoint(network: Network, url: str) -> EndpointCheck:
    """Query one endpoint for a well-known domain."""
    place = urlsplit(url).netloc
    trouble, ahead_s = f"no answer within {ENDPOINT_S:g} s", None
    began = trio.current_time()
    with trio.move_on_after(ENDPOINT_S):
        try:
            response = await network.transport.post(url, encode_query(PROVIDERS[0], "MX"))
        except TransportFailed as failed:
            trouble = str(failed)
        else:
            ahead_s = _ahead_s(response.date, network.now())
            answer = read_route(response.octets, PROVIDERS[0])
            if not isinstance(answer, LookupFailed):
                took_ms = 1000 * (trio.current_time() - began)
                return EndpointCheck(ENDPOINT.ok(f"answers in {took_ms:.0f} ms", place), ahead_s)
            trouble = answer.reason
    fault = "certificate" if "certificate" in trouble.lower() else "no answer"
    return EndpointCheck(ENDPOINT.failed(fault, trouble, place), ahead_s)


def _ahead_s(date: str | None, now: float) -> float | None:
    try:
        reported = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    return reported.replace(tzinfo=reported.tzinfo or UTC).timestamp() - now


def check_clock(endpoints: list[EndpointCheck]) -> Check:
    """Compare our clock with the endpoints' dates; the nearest one counts."""
    reported = [endpoint.ahead_s for endpoint in endpoints if endpoint.ahead_s is not None]
    if not reported:
        return CLOCK.skipped("no endpoint's answer had a date")
    ahead_s = min(reported, key=abs)
    if abs(ahead_s) <= CLOCK_S_MAX:
        return CLOCK.ok("agrees with the endpoints")
    found = f"{abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead of'} the endpoints"
    return CLOCK.failed("wrong", found)


async def greetings_of(network: Network, settings: EngineSettings) -> list[Greeting]:
    """Connect to a mail host of each provider."""
    return await all_at_once(
        partial(greeting_of, domain, network, settings) for domain in PROVIDERS
    )


async def greeting_of(domain: str, network: Network, settings: EngineSettings) -> Greeting:
    """Connect to the first mail host of this domain, read its banner, say EHLO and QUIT."""
    address = ""
    try:
        with trio.fail_after(FIND_S):
            host, address = await _find(domain, network.routes)
    except (trio.TooSlowError, LookupError) as error:
        host = KNOWN_HOSTS[domain]
        reason = str(error) or "the look-up took too long"
        with trio.move_on_after(FIND_S):
            try:
                address = (await network.system(host))[0]
            except (OSError, IndexError):
                return Greeting(domain, "not found", reason)
        if not address:
            return Greeting(domain, "not found", reason)
    greeting = Greeting(domain, "not connected", f"{host}: no answer to connect")
    with trio.move_on_after(MEET_S):
        try:
            connection = SmtpConnection(await network.dial(address, settings.smtp_port), MEET_S)
        except OSError as error:
            return Greeting(domain, "not connected", f"{host}: {error}")
        greeting = Greeting(domain, "refused", f"{host}: no greeting in time")
        try:
            greeting = await _introduce(domain, host, connection, settings)
            await connection.quit()
        except (ConnectionLost, RemoteProtocolError) as error:
            greeting = Greeting(domain, "refused", f"{host}: {error}")
        except ReadTimedOut:
            pass
        finally:
            await connection.close()
    return greeting


async def _find(domain: str, routes: Routes) -> tuple[str, str]:
    """The first mail host of a domain and its address, or LookupError with the reason."""
    route = await routes.find(domain)
    if not isinstance(route, Route):
        raise LookupError(route.reason)
    if not route.exchanges:
        raise LookupError("no mail host")
    host = routes.in_order(route)[0].name
    found = await routes.addresses(host)
    if not isinstance(found, Addresses):
        raise LookupError(f"{host}: {found.reason}")
    return host, found.ips[0]


async def _introduce(
    domain: str, host: str, connection: SmtpConnection, settings: EngineSettings
) -> Greeting:
    reply = (await connection.receive_reply()).reply
    if reply.positive:
        await connection.send(ehlo(settings.helo_name))
        reply = (await connection.receive_reply()).reply
    words = f"{host}: {str(reply).splitlines()[0]}"
    if not reply.positive:
        return Greeting(domain, "refused", words)
    return Greeting(domain, "welcome", words, _address_in(reply, settings))


_BRACKETED = re.compile(r"\[(?:IPv6:)?([0-9A-Fa-f.:]+)\]")


def _address_in(reply: SmtpReply, settings: EngineSettings) -> str | None:
    """Our address as the host sees it: `mx.google.com at your service, [11.0.0.5]`."""
    for text in _BRACKETED.findall(reply.lines[0]):
        try:
            address = str(ip_address(text))
        except ValueError:
            continue
        if settings.allow_private or is_public(address):
            return address
    return None


def our_address(greetings: list[Greeting]) -> str | None:
    return next((greeting.our_address for greeting in greetings if greeting.our_address), None)


def check_port(
    settings: EngineSettings, greetings: list[Greeting], *, resolved: bool = True
) -> Check:
    """One welcome is enough: the port is open, and not every host refuses us."""
    name = f"{settings.smtp_port}, outgoing" + (", by proxy" if settings.proxies else "")
    if not settings.asks_hosts:
        return PORT.skipped("not needed: MAILPROBE_LAYERS is 1-3,5", name)
    words = _causes(greetings)
    came = {greeting.received: greeting for greeting in reversed(greetings)}
    if "welcome" in came:
        return PORT.ok(came["welcome"].words, name)
    if "refused" in came:
        return PORT.failed("refused", words, name)
    if "not connected" in came:
        return PORT.failed("proxies" if settings.proxies else "closed", words, name)
    return PORT.skipped(words if resolved else "no mail host is found: see above", name)


def _causes(greetings: Sequence[Greeting]) -> str:
    """Each cause once, with the providers whose hosts it concerns."""
    hosts: dict[str, list[str]] = {}
    for greeting in greetings:
        cause = greeting.words.partition(": ")[2] or greeting.words
        hosts.setdefault(cause, []).append(greeting.domain)
    return "; ".join(f"{', '.join(domains)}: {cause}" for cause, domains in hosts.items())


def check_helo_form(settings: EngineSettings) -> Check | None:
    """The failed check of an EHLO name that no other host can resolve; else None."""
    if not settings.helo_is_local:
        return None
    return HELO.failed("local", "not a public host name", settings.helo_name)


async def check_helo(settings: EngineSettings, routes: Routes, ours: str | None) -> Check:
    """Check that the EHLO name resolves to our address, and our address back to it."""
    if (fault := check_helo_form(settings)) is not None:
        return fault
    helo = settings.helo_name
    with trio.move_on_after(HELO_S):
        try:
            found = await routes.addresses(helo)
        except ValueError:
            return HELO.failed("no name", "not a host name", helo)
        if isinstance(found, LookupFailed):
            return HELO.skipped(f"the look-up failed ({found.reason})", helo)
        if isinstance(found, NoAddress):
            given = ours or "the public address of this host"
            unresolved = f"does not resolve ({found.reason})"
            return HELO.failed("no address", unresolved, helo, helo=helo, ours=given)
        if ours is not None and not _includes(found, ours):
            seen = f"is {found.ips[0]}, but we are seen as {ours}"
            return HELO.failed("elsewhere", seen, helo, helo=helo, ours=ours)
        return await _check_reverse(helo, ours or found.ips[0], routes)
    return HELO.skipped(f"no answer within {HELO_S:g} s", helo)


def _includes(found: Addresses, ours: str) -> bool:
    """Whether our address is among these; true if they are all of the other family."""
    family = [ip for ip in found.ips if (":" in ip) == (":" in ours)]
    return ours in family or not family


async def _check_reverse(helo: str, address: str, routes: Routes) -> Check:
    names = await routes.pointers(address)
    if isinstance(names, LookupFailed):
        return HELO.skipped(f"the look-up of {address} failed ({names.reason})", helo)
    if helo.lower().rstrip(".") in names:
        return HELO.ok(f"is {address}, and back", helo)
    if not names:
        found = f"{address} has no reverse name"
        return HELO.failed("no reverse name", found, helo, helo=helo, ours=address)
    found = f"{address} is called {names[0]}"
    return HELO.failed("other reverse name", found, helo, helo=helo, ours=address, reverse=names[0])


async def check_store(database: str, secret_key: bytes | None) -> Check:
    """Check the database: query PostgreSQL, or look at the SQLite file."""
    from mailprobe.storage import is_postgres, open_store, shown
    from mailprobe.storage.contract import StoreUnavailable

    if not is_postgres(database):
        return check_database(database, secret_key)
    try:
        async with open_store(database, secret_key=secret_key) as store:
            await store.check()
    except StoreUnavailable as unavailable:
        return DATABASE.failed("no server", str(unavailable))
    return DATABASE.ok(f"{shown(database)} answers")


def check_database(database: str, secret_key: bytes | None = None) -> Check:
    """Check that a service can use the database file or create it; leaves nothing behind."""
    from mailprobe.storage import schema_state
    from mailprobe.storage.contract import StoreUnavailable

    path = Path(database).absolute()
    key = path.with_name(f"{path.name}.key")
    if not path.parent.exists() and Path(database).parent != DEFAULT_FOLDER:
        return DATABASE.failed("no folder", f"{path.parent} does not exist")
    folder = next(parent for parent in path.parents if parent.exists())
    try:
        if path.exists():
            path.open("r+b").close()
        if secret_key is None and key.exists():
            key.open("rb").close()
        with tempfile.TemporaryFile(dir=folder) as trial:  # SQLite writes beside the file too
            trial.write(b"x")
    except OSError as error:
        where = error.filename or folder
        found = f"{where}: {(error.strerror or 'not writable').lower()}"
        return DATABASE.failed("not writable", found)
    if not path.exists():
        return DATABASE.ok(f"{path} can be created")
    try:
        schema_state(str(path))
    except StoreUnavailable as refused:  # as a start would refuse it
        return DATABASE.failed("refused", str(refused))
    return DATABASE.ok(f"{path} is writable")
