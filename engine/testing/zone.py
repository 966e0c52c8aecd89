"""DNS as a table: which question gets which answer, as wire messages (RFC 1035, 8484).

A zone answers as a recursive resolver would: whatever it does not hold is
NXDOMAIN. It never asks anybody.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

QUERIES_KEPT = 100_000  # different questions counted
CHAIN_MAX = 20  # steps of CNAME that are put into one answer
HTML = b"<!DOCTYPE html><html><body>Please sign in to the network</body></html>"


class ZoneMode(Enum):
    """How the resolver goes wrong about a name (or, in a world, an endpoint about every name)."""

    NXDOMAIN = "NXDOMAIN"
    SERVFAIL = "SERVFAIL"
    REFUSED = "REFUSED"
    WRONG_QUESTION = "wrong question"  # an answer to something that nobody asked
    GARBAGE = "garbage"  # octets that are no DNS message
    BLOCKED = "blocked"  # NXDOMAIN made up by a resolver that filters: without a SOA
    CENSORED = "censored"  # an empty answer, with the error that says why (RFC 8914)
    HANG = "hang"  # no answer, ever
    HTML = "html"  # a sign-in page in place of DNS
    HTTP_ERROR = "http error"  # status 503
    UNREACHABLE = "unreachable"  # the connection fails


# What can't be told by a DNS message: the transport has to act it out.
Behaviour = ZoneMode
ACTED = frozenset({ZoneMode.HANG, ZoneMode.HTML, ZoneMode.HTTP_ERROR, ZoneMode.UNREACHABLE})


@dataclass(frozen=True, slots=True)
class Name:
    """All that is known of one name. An exchange of "" is a null MX (RFC 7505)."""

    mx: tuple[tuple[int, str], ...] = ()
    addresses: tuple[str, ...] = ()  # IPv4 and IPv6
    cname: str | None = None
    mode: ZoneMode | None = None
    mode_types: frozenset[str] = frozenset()  # record types the mood holds for; empty: all
    ttl_s: int = 3600
    shown: int | None = None  # so many of the addresses at a time, others at each question


NOTHING = Name()
NULL_MX = ((0, ""),)


@dataclass(slots=True)
class Zone:
    """Names -> what is known of them; lower case, no dot at the end."""

    names: dict[str, Name] = field(default_factory=dict)
    queries: Counter[tuple[str, str]] = field(default_factory=Counter)  # (name, "MX")
    _turns: Counter[str] = field(default_factory=Counter)  # answers of a name that rotates

    def mx(self, domain: str, *exchanges: str | tuple[int, str], ttl_s: int = 3600) -> None:
        """Give a domain its exchanges, at preference 10, 20, … where only names are given."""
        pairs = tuple(
            (10 * (place + 1), exchange) if isinstance(exchange, str) else exchange
            for place, exchange in enumerate(exchanges)
        )
        self._change(domain, mx=pairs, ttl_s=ttl_s)

    def null_mx(self, domain: str) -> None:
        self._change(domain, mx=NULL_MX)

    def exists(self, domain: str) -> None:
        """A name with nothing under it: every question gets an empty answer."""
        self._change(domain)

    def host(self, name: str, *addresses: str, ttl_s: int = 3600) -> None:
        self._change(name, addresses=addresses, ttl_s=ttl_s)

    def rotate(self, name: str, shown: int = 1) -> None:
        """From now on each answer holds so many of the name's addresses, the next ones in turn."""
        self._change(name, shown=shown)

    def cname(self, name: str, target: str) -> None:
        self._change(name, cname=_plain(target))

    def mode(self, name: str, mode: ZoneMode | None, *types: str) -> None:
        """Go wrong about this name; with types, only when asked for one of these."""
        self._change(name, mode=mode, mode_types=frozenset(types))

    def _change(self, name: str, **changes: object) -> None:
        name = _plain(name)
        self.names[name] = replace(self.names.get(name, NOTHING), **changes)  # type: ignore[arg-type]  # typed by the callers above

    def answer(self, query: bytes) -> bytes | Behaviour:
        """Answer a wire message with another, or say how the transport must behave.

        Raises ValueError for octets that are no question.
        """
        try:
            question = dns.message.from_wire(query)
            asked = question.question[0]
        except (dns.exception.DNSException, IndexError) as wrong:
            raise ValueError("not a DNS question") from wrong
        name, kind = _plain(asked.name.to_text()), dns.rdatatype.to_text(asked.rdtype)
        if (name, kind) in self.queries or len(self.queries) < QUERIES_KEPT:
            self.queries[name, kind] += 1
        known = self.names.get(name)
        mode = known.mode if known else ZoneMode.NXDOMAIN
        if mode is not None and (known is None or not known.mode_types or kind in known.mode_types):
            return answer_in_mode(question, mode)
        return _response(question, self._chain(name, kind)).to_wire()

    def _chain(self, name: str, kind: str) -> "list[dns.rrset.RRset] | None":
        """The records that answer, through its CNAMEs; None where the chain ends in nothing."""
        found: list[dns.rrset.RRset] = []
        for _ in range(CHAIN_MAX):
            known = self.names.get(name)
            if known is None:
                return found or None
            if known.cname is None or kind == "CNAME":
                return found + _records(name, self._turned(name, known, kind), kind)
            found.append(_rrset(name, known.ttl_s, "CNAME", [f"{known.cname}."]))
            name = known.cname
        return found

    def _turned(self, name: str, known: Name, kind: str) -> Name:
        """What is known, with those addresses that this answer shows."""
        if known.shown is None or kind not in ("A", "AAAA"):
            return known
        first = self._turns[name] % max(1, len(known.addresses))
        self._turns[name] += kind == "A"
        turned = known.addresses[first:] + known.addresses[:first]
        return replace(known, addresses=turned[: known.shown])


def answer_in_mode(question: dns.message.Message, mode: ZoneMode) -> bytes | Behaviour:
    """What a resolver in this mood says to the question."""
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


def _response(
    question: dns.message.Message, records: Sequence[dns.rrset.RRset] | None
) -> dns.message.Message:
    """A recursive resolver's response; None means that the name does not exist."""
    response = dns.message.make_response(question, recursion_available=True)
    if records is None:
        response.set_rcode(dns.rcode.NXDOMAIN)
    response.answer.extend(records or ())
    if not records:  # RFC 2308: how long the nothing may be kept
        soa = "ns.test. hostmaster.test. 1 7200 3600 86400 300"
        response.authority.append(_rrset("test", 300, "SOA", [soa]))
    return response


def _records(name: str, known: Name, kind: str) -> list[dns.rrset.RRset]:
    texts: Mapping[str, list[str]] = {
        "MX": [f"{preference} {exchange}." for preference, exchange in known.mx],
        "A": [a for a in known.addresses if ":" not in a],
        "AAAA": [a for a in known.addresses if ":" in a],
        "CNAME": [f"{known.cname}."] if known.cname else [],
    }
    if not (lines := texts.get(kind, [])):
        return []
    return [_rrset(name, known.ttl_s, kind, lines)]


def _rrset(name: str, ttl_s: int, kind: str, texts: Sequence[str]) -> dns.rrset.RRset:
    return dns.rrset.from_text_list(f"{name}.", ttl_s, "IN", kind, texts)


def _plain(name: str) -> str:
    return name.rstrip(".").lower()
