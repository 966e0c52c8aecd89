"""DoH endpoints that answer from a script, in virtual time."""

from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import dns.message
import dns.rcode
import dns.rrset
import trio

from mailprobe.engine.dns.doh import DohTransport
from mailprobe.engine.dns.messages import (
    MailExchange,
    Route,
)
from mailprobe.engine.dns.response import TransportFailed
from mailprobe.engine.dns.routes import Routes, open_routes
from mailprobe.engine.settings import EngineSettings

FIRST, SECOND, THIRD = "https://11.0.0.1/q", "https://11.0.0.2/q", "https://11.0.0.3/q"


def reply(query: bytes, *records: str, rcode: str = "NOERROR") -> bytes:
    """An answer with records such as `300 MX 10 mx.test.`, all of the name asked about."""
    question = dns.message.from_wire(query)
    message = dns.message.make_response(question)
    message.set_rcode(dns.rcode.from_text(rcode))
    for record in records:
        ttl, kind, rest = record.split(" ", 2)
        owner = question.question[0].name
        message.answer.append(dns.rrset.from_text(owner, int(ttl), "IN", kind, rest))
    if rcode == "NXDOMAIN":
        soa = "ns.test. hostmaster.test. 1 7200 3600 86400 300"
        message.authority.append(dns.rrset.from_text("test.", 0, "IN", "SOA", soa))
    return message.to_wire()


@dataclass(frozen=True)
class Says:
    """How an endpoint answers one kind of question."""

    records: tuple[str, ...] = ("300 MX 10 mx.shop.test.",)
    rcode: str = "NOERROR"
    delay_s: float = 0.0
    failure: str | None = None


GOOD = Says()
SILENT = Says(delay_s=3600)
BROKEN = Says(failure="connection refused")
SERVFAIL = Says((), "SERVFAIL")
NXDOMAIN = Says((), "NXDOMAIN")
EMPTY = Says(())


def address(*records: str, delay_s: float = 0.0) -> Says:
    return Says(records, delay_s=delay_s)


def kind_of(query: bytes) -> str:
    return {1: "A", 2: "NS", 12: "PTR", 15: "MX", 28: "AAAA"}[query[query.index(b"\0", 12) + 2]]


@dataclass
class Endpoints:
    """A DohTransport of scripts: by (url, kind), else by url, else GOOD."""

    script: dict[Any, Says] = field(default_factory=dict)
    asked: list[tuple[float, str, str]] = field(default_factory=list)  # (when, url, kind)
    ended: Counter[str] = field(default_factory=Counter)
    at_once: int = 0
    at_once_max: int = 0

    async def exchange(self, url: str, query: bytes) -> bytes:
        kind = kind_of(query)
        self.asked.append((trio.current_time(), url, kind))
        says = self.script.get((url, kind)) or self.script.get(url) or self.script.get(kind, GOOD)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await trio.sleep(says.delay_s)
        finally:
            self.at_once -= 1
        if says.failure:
            raise TransportFailed(says.failure)
        self.ended[url] += 1
        return reply(query, *says.records, rcode=says.rcode)

    def times(self, since: float) -> list[tuple[float, str]]:
        return [(round(when - since, 3), url) for when, url, _ in self.asked]


def open_test(
    endpoints: DohTransport, *urls: str, **more: Any
) -> AbstractAsyncContextManager[Routes]:
    settings = EngineSettings(doh_urls=urls or (FIRST, SECOND), **more)
    return open_routes(settings, transport=endpoints, rng=Random(1))


ROUTE = Route("shop.test", (MailExchange("mx.shop.test", 10),), "mx.shop.test")
