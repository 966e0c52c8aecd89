"""DNS as a table: answers to wire-format queries (RFC 1035, 8484).

A zone answers as a recursive resolver would; a name that it does not hold is NXDOMAIN.
It never sends queries itself.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
from msgspec import Struct, field
from msgspec.structs import replace

from .resolver_faults import ResolverFaults, Unavailable

RRSETS_KEPT = 1_000
MESSAGES_KEPT = 2_000  # that were read, or made
QUERIES_KEPT = 100_000  # different questions counted
CHAIN_MAX = 20  # steps of CNAME that are put into one answer
HTML = b"<!DOCTYPE html><html><body>Please sign in to the network</body></html>"


class ZoneMode(Enum):
    """How a resolver fails for a name, or an endpoint of a fake network for every name."""

    NXDOMAIN = "NXDOMAIN"
    SERVFAIL = "SERVFAIL"
    REFUSED = "REFUSED"
    WRONG_QUESTION = "wrong question"  # an answer to another question
    GARBAGE = "garbage"  # octets that are not a DNS message
    BLOCKED = "blocked"  # NXDOMAIN made up by a resolver that filters: without a SOA
    CENSORED = "censored"  # an empty answer, with the error that says why (RFC 8914)
    HANG = "hang"  # no answer, ever
    HTML = "html"  # a sign-in page in place of DNS
    HTTP_ERROR = "http error"  # status 503
    UNREACHABLE = "unreachable"  # the connection fails


# Failures without a DNS message: the transport has to act them out.
Behaviour = ZoneMode | Unavailable
ACTED = frozenset({ZoneMode.HANG, ZoneMode.HTML, ZoneMode.HTTP_ERROR, ZoneMode.UNREACHABLE})


class Name(Struct, frozen=True):
    """The records of one name. An exchange of "" is a null MX (RFC 7505)."""

    mx: tuple[tuple[int, str], ...] = ()
    addresses: tuple[str, ...] = ()  # IPv4 and IPv6
    cname: str | None = None
    mode: ZoneMode | None = None
    mode_types: frozenset[str] = frozenset()  # record types that the mode applies to; empty: all
    mode_times: int | None = None  # queries that the mode applies to, the first ones; None: all
    ttl_s: int = 3600
    shown: int | None = None  # addresses in each answer, in rotation


class RecordTexts(NamedTuple):
    """The records of one name and type, as texts."""

    name: str
    ttl_s: int
    kind: str
    texts: tuple[str, ...]


NOTHING = Name()
NULL_MX = ((0, ""),)


class Zone(Struct):
    """Names -> records; names in lower case, without a final dot."""

    names: dict[str, Name] = field(default_factory=dict)
    queries: Counter[tuple[str, str]] = field(default_factory=Counter)  # (name, "MX")
    _failed: Counter[str] = field(default_factory=Counter)  # queries of a name in its mode
    faults: ResolverFaults = field(default_factory=ResolverFaults)  # of the resolver as a whole
    _turns: Counter[str] = field(default_factory=Counter)  # answers of a name that rotates

    def mx(self, domain: str, *exchanges: str | tuple[int, str], ttl_s: int = 3600) -> None:
        """Set the exchanges of a domain; names alone get preferences 10, 20, …"""
        pairs = tuple(
            (10 * (place + 1), exchange) if isinstance(exchange, str) else exchange
            for place, exchange in enumerate(exchanges)
        )
        self._change(domain, mx=pairs, ttl_s=ttl_s)

    def null_mx(self, domain: str) -> None:
        self._change(domain, mx=NULL_MX)

    def exists(self, domain: str) -> None:
        """Add a name without records: every query gets an empty answer."""
        self._change(domain)

    def host(self, name: str, *addresses: str, ttl_s: int = 3600) -> None:
        self._change(name, addresses=addresses, ttl_s=ttl_s)

    def rotate(self, name: str, shown: int = 1) -> None:
        """From now on each answer holds `shown` of the name's addresses, in rotation."""
        self._change(name, shown=shown)

    def cname(self, name: str, target: str) -> None:
        self._change(name, cname=_plain(target))

    def mode(self, name: str, mode: ZoneMode | None, *types: str, times: int | None = None) -> None:
        """Fail for this name; with `types`, only for queries of these types, and so many times."""
        self._change(name, mode=mode, mode_types=frozenset(types), mode_times=times)

    def forget(self) -> None:
        """Count queries anew; what fails for some of them fails again."""
        self.queries.clear()
        self._failed.clear()

    def _change(self, name: str, **changes: object) -> None:
        name = _plain(name)
        self.names[name] = replace(
            self.names.get(name, NOTHING), **changes
        )  # typed by the callers above

    def answer(self, query: bytes) -> bytes | Behaviour:
        """Return the answer to a query, or how the transport must fail.

        Raises ValueError for octets that are not a DNS query.
        """
        question = read_question(query)
        name, kind = question.name, question.kind
        if (name, kind) in self.queries or len(self.queries) < QUERIES_KEPT:
            self.queries[name, kind] += 1
        if (failed := answer_of_faults(question, self.faults)) is not None:
            return failed
        known = self.names.get(name)
        mode = known.mode if known else ZoneMode.NXDOMAIN
        if mode is not None and (known is None or self._is_failing(name, known, kind)):
            return answer_in_mode(question.message, mode)
        return _answered(query, self._chain(name, kind))

    def _is_failing(self, name: str, known: Name, kind: str) -> bool:
        """Whether the name's mode applies to this query."""
        if known.mode_types and kind not in known.mode_types:
            return False
        self._failed[name] += 1
        return known.mode_times is None or self._failed[name] <= known.mode_times

    def _chain(self, name: str, kind: str) -> tuple[RecordTexts, ...] | None:
        """The records that answer, with CNAMEs; None if the name does not exist."""
        found: tuple[RecordTexts, ...] = ()
        for _ in range(CHAIN_MAX):
            known = self.names.get(name)
            if known is None:
                return found or None
            if known.cname is None or kind == "CNAME":
                return found + _records(name, self._turned(name, known, kind), kind)
            found += (RecordTexts(name, known.ttl_s, "CNAME", (f"{known.cname}.",)),)
            name = known.cname
        return found

    def _turned(self, name: str, known: Name, kind: str) -> Name:
        """The records, with the addresses that this answer shows."""
        if known.shown is None or kind not in ("A", "AAAA"):
            return known
        first = self._turns[name] % max(1, len(known.addresses))
        self._turns[name] += kind == "A"
        turned = known.addresses[first:] + known.addresses[:first]
        return replace(known, addresses=turned[: known.shown])


class Question(NamedTuple):
    """A query that was read."""

    message: dns.message.Message
    name: str
    kind: str


@lru_cache(maxsize=MESSAGES_KEPT)
def read_question(query: bytes) -> Question:
    """Read a query; nothing changes its message. Raises ValueError."""
    try:
        message = dns.message.from_wire(query)
        asked = message.question[0]
    except (dns.exception.DNSException, IndexError) as wrong:
        raise ValueError("not a DNS question") from wrong
    return Question(message, _plain(asked.name.to_text()), dns.rdatatype.to_text(asked.rdtype))


def answer_of_faults(question: Question, faults: ResolverFaults) -> bytes | Behaviour | None:
    """How a resolver with these faults fails for this query, or None if it does not."""
    fault = faults.fault(question.name, question.kind)
    return answer_in_mode(question.message, ZoneMode.SERVFAIL) if fault is True else fault or None


def answer_in_mode(question: dns.message.Message, mode: ZoneMode) -> bytes | Behaviour:
    """How a resolver in this mode answers the query."""
    if mode in ACTED:
        return mode
    if mode is ZoneMode.GARBAGE:
        return b"\x00\x00\x81\x80\xff\xff\xff\xffgarbage"
    if mode is ZoneMode.WRONG_QUESTION:
        other = dns.message.make_query("somewhere.else.test", "MX", id=question.id)
        return _response(
            other, [_rrset("somewhere.else.test", 60, "MX", ["10 mx.else.test."])]
        ).to_wire()
    response = _response(question, None)
    if mode is ZoneMode.BLOCKED:
        response.authority.clear()
    elif mode is ZoneMode.CENSORED:
        response.set_rcode(dns.rcode.NOERROR)
        response.use_edns(0, payload=1232, options=[dns.edns.EDEOption(dns.edns.EDECode.CENSORED)])
    else:
        response.set_rcode(dns.rcode.from_text(mode.value))
    return response.to_wire()


@lru_cache(maxsize=MESSAGES_KEPT)
def _answered(query: bytes, records: tuple[RecordTexts, ...] | None) -> bytes:
    found = None if records is None else [_rrset(*each) for each in records]
    return _response(read_question(query).message, found).to_wire()


def _response(
    question: dns.message.Message, records: Sequence[dns.rrset.RRset] | None
) -> dns.message.Message:
    """A recursive resolver's response; None means that the name does not exist."""
    response = dns.message.make_response(question, recursion_available=True)
    if records is None:
        response.set_rcode(dns.rcode.NXDOMAIN)
    response.answer.extend(records or ())
    if not records:  # RFC 2308: how long the absence may be kept
        soa = "ns.test. hostmaster.test. 1 7200 3600 86400 300"
        response.authority.append(_rrset("test", 300, "SOA", [soa]))
    return response


def _records(name: str, known: Name, kind: str) -> tuple[RecordTexts, ...]:
    texts: Mapping[str, list[str]] = {
        "MX": [f"{preference} {exchange}." for preference, exchange in known.mx],
        "A": [a for a in known.addresses if ":" not in a],
        "AAAA": [a for a in known.addresses if ":" in a],
        "CNAME": [f"{known.cname}."] if known.cname else [],
    }
    if not (lines := texts.get(kind, [])):
        return ()
    return (RecordTexts(name, known.ttl_s, kind, tuple(lines)),)


def _rrset(name: str, ttl_s: int, kind: str, texts: Iterable[str]) -> dns.rrset.RRset:
    return _read_rrset(f"{name}.", ttl_s, kind, tuple(texts))


@lru_cache(maxsize=RRSETS_KEPT)
def _read_rrset(name: str, ttl_s: int, kind: str, texts: tuple[str, ...]) -> dns.rrset.RRset:
    """Nothing changes it: the same absence and the same exchange are in most answers."""
    return dns.rrset.from_text_list(name, ttl_s, "IN", kind, texts)


def _plain(name: str) -> str:
    return name.rstrip(".").lower()
