"""DNS queries and answers as bytes, and what an answer means (RFC 1035, 2308, 7505, 8484).

`encode_query` makes a query; `read_route`, `read_addresses` and `read_pointers` read its
answer and never raise, whatever the bytes. Only a certain answer counts: a failure, a
truncated answer, a CNAME loop or an answer to another question is `LookupFailed`, never
"this domain takes no mail". So is the answer of a resolver that filters: it carries an
EDE (RFC 8914), or it is an NXDOMAIN without the SOA record that a real one has.

fast_decoder reads plain answers, which are nearly all. dnspython reads the others, and is
imported only then. Both give the same result where both can read an answer. Pure: no
socket, no clock.
"""

import re
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from .fast_decoder import (
    FILTERED,
    UNSIGNED_NXDOMAIN,
    Records,
    Uncertain,
    filtered,
    read_records,
)

if TYPE_CHECKING:
    import dns.message
    import dns.name
    import dns.rdata
    import dns.rrset

Kind = Literal["A", "PTR", "MX", "TXT", "AAAA"]
TYPES: dict[Kind, int] = {"A": 1, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28}

MESSAGE_OCTETS_MAX = 65_535  # the length field of DNS over TCP
RECORDS_MAX = 256  # read by dnspython, which takes 0.1 ms for each and blocks the event loop
CNAMES_MAX = 8
# EDNS with 1,232 octets and no options (RFC 6891): a resolver sends the reason for a
# missing answer (RFC 8914) only to clients that use EDNS.
OPT = b"\0\0\x29\x04\xd0" + bytes(6)
# The NS records of the root, which every resolver has cached.
ROOT_QUESTION = b"\0\0\1\0\0\1\0\0\0\0\0\1" + b"\0" + b"\0\2\0\1" + OPT
QUERIES_CACHED = 1024  # encoded once for the query, and again to check its answer
EXCHANGES_MAX = 64  # a probe tries at most five addresses; no domain has more than about 20
ADDRESSES_MAX = 64


class MailExchange(Struct, frozen=True):
    """One MX record: a host name, lower case, no dot at the end; lower is preferred."""

    name: str
    preference: int


class Route(Struct, frozen=True):
    """Where a domain's mail goes: its exchanges by preference, ties by name.

    `mx_host` is the first of them. Records that name no host (an address, junk) are
    left out. If that leaves none, `exchanges` is empty and `mx_host` None; the verdict is
    then that of a failed look-up.
    """

    domain: str
    exchanges: tuple[MailExchange, ...]
    mx_host: str | None


class NoMail(Struct, frozen=True):
    """It is certain that this domain takes no mail."""

    reason: str


class Addresses(Struct, frozen=True):
    """A host's addresses as text, in the resolver's order, and how long they may be kept."""

    ips: tuple[str, ...]
    ttl_s: int


class NoAddress(Struct, frozen=True):
    """It is certain that this host has no address of the kind queried."""

    reason: str
    ttl_s: int = 0


# The rule of an address whose look-up failed by lag.
DNS_LAG_RULE = "clock.dns-lag"


@dataclass(frozen=True, slots=True)
class LookupFailed:
    """Nothing certain is known. The reason is for people.

    A hasty failure says nothing about the name: a caller that has time tries again. One by lag is
    ours: this process did not run for most of the time, and could not read an answer.
    """

    reason: str
    hasty: bool = field(default=False, compare=False)
    by_lag: bool = field(default=False, compare=False)


RouteAnswer = Route | NoMail | LookupFailed
AddressAnswer = Addresses | NoAddress | LookupFailed


@lru_cache(QUERIES_CACHED)
def encode_query(name: str, kind: Kind) -> bytes:
    """Encode a query with id 0, so that HTTP caches can share it (RFC 8484 4.1), and RD set.

    Raises ValueError for what is not a domain name in A-labels.
    """
    labels = [label.encode("ascii") for label in name.removesuffix(".").split(".")]
    if any(not 0 < len(label) < 64 for label in labels) or len(name) > 254:
        raise ValueError(f"not a domain name: {name[:260]!r}")
    owner = b"".join(bytes([len(label)]) + label for label in labels)
    header = b"\0\0\1\0\0\1\0\0\0\0\0\1"
    return header + owner + b"\0\0" + bytes([TYPES[kind]]) + b"\0\1" + OPT


def is_success(octets: bytes) -> bool:
    """Whether these octets begin as an answer that is not a failure: NOERROR or NXDOMAIN."""
    return len(octets) >= 12 and octets[3] & 15 in (0, 3)


def reverse_name(ip: str) -> str:
    """The name whose PTR record names this address (RFC 1035 3.5, 3596 2.5)."""
    return ip_address(ip).reverse_pointer


def read_route(octets: bytes, domain: str) -> RouteAnswer:
    """Read the answer to the MX query of a domain."""
    try:
        found = _read(octets, domain, "MX")
    except NoAnswer as error:
        return LookupFailed(str(error))
    if not found.data:
        return NoMail(found.absence)
    if not any(name != "" for name, _ in found.data):
        return NoMail("null MX")  # RFC 7505; beside other records the root is junk
    best: dict[str, int] = {}
    for name, preference in found.data:
        if name:
            best[name] = min(preference, best.get(name, preference))
    ordered = sorted(best, key=lambda name: (best[name], name))[:EXCHANGES_MAX]
    # Thousands of domains share the exchanges of an operator: keep one string for all.
    exchanges = tuple(MailExchange(sys.intern(name), best[name]) for name in ordered)
    return Route(domain, exchanges, exchanges[0].name if exchanges else None)


def read_addresses(octets: bytes, name: str, kind: Literal["A", "AAAA"]) -> AddressAnswer:
    """Read the answer to the A or AAAA query of a host."""
    try:
        found = _read(octets, name, kind)
    except NoAnswer as error:
        return LookupFailed(str(error))
    if not found.data:
        return NoAddress(found.absence, found.ttl_s)
    return Addresses(tuple(dict.fromkeys(found.data))[:ADDRESSES_MAX], found.ttl_s)


def read_pointers(octets: bytes, ip: str) -> tuple[str, ...] | LookupFailed:
    """Read the host names in the answer to the PTR query of an address; there may be none."""
    try:
        found = _read(octets, reverse_name(ip), "PTR")
    except NoAnswer as error:
        return LookupFailed(str(error))
    return tuple(dict.fromkeys(name for name in found.data if name))


# A host name by RFC 1123 2.1. The underscore is forbidden, but in use: mail is delivered
# to such hosts (Postfix accepts it too).
_LABEL = re.compile(rb"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")


def _host_name(labels: tuple[bytes, ...]) -> str | None:
    """These labels as a host name, or None for what is not one, such as `192.0.2.1.`"""
    labels = tuple(label.lower() for label in labels)
    if not labels or labels[-1].isdigit() or not all(map(_LABEL.fullmatch, labels)):
        return None
    return b".".join(labels).decode("ascii")


NoAnswer = Uncertain


class _Found(Struct, frozen=True):
    """The data of the queried records; if there certainly are none, `absence` says why.

    An address is text. A host is its name, "" for the root, or None for what is not a host
    name. An MX record is a pair of host and preference.
    """

    data: list[Any]
    ttl_s: int
    absence: str = ""


def _read(octets: bytes, name: str, kind: Kind) -> _Found:
    """The records of this kind at the end of the name's CNAME chain. Raises NoAnswer."""
    question = encode_query(name, kind)[: -len(OPT)]
    missing = check_header(octets, question)
    plain = read_records(octets, name, TYPES[kind], len(question), missing=missing)
    data, ttl_s = plain if plain is not None else _read_slowly(octets, kind, missing)
    if data:
        return _Found(data, ttl_s)
    return _Found(data, ttl_s, "NXDOMAIN" if missing else f"no {kind} records")


def _read_slowly(octets: bytes, kind: Kind, missing: bool) -> Records:
    """The same by dnspython, for what fast_decoder cannot read."""
    message = _parse(octets)
    aliases, records = _by_owner(message, TYPES[kind])
    owner, ttls = _end_of_chain(message.question[0].name, aliases)
    found = records.get(owner)
    if missing and records:
        raise NoAnswer("NXDOMAIN with records contradicts itself")
    if found is not None:
        return [_datum(record, kind) for record in found], min([*ttls, found.ttl])
    if records:
        raise NoAnswer("the records are of another name")
    return [], _ttl_of_absence(message, ttls, missing)


def _datum(record: Any, kind: Kind) -> Any:  # a dns.rdata.Rdata, whose fields depend on its type
    if kind == "MX":
        return _host_or_root(record.exchange), record.preference
    return _host_or_root(record.target) if kind == "PTR" else str(record.address)


def _host_or_root(name: "dns.name.Name") -> str | None:
    labels = name.labels[:-1]
    return _host_name(labels) if labels else ""


_RCODES = {1: "FORMERR", 2: "SERVFAIL", 4: "NOTIMP", 5: "REFUSED"}
_NXDOMAIN = 3


def check_header(octets: bytes, question: bytes) -> bool:
    """Return whether the answer is NXDOMAIN. Raises NoAnswer if it does not answer this."""
    if len(octets) > MESSAGE_OCTETS_MAX:
        raise NoAnswer(f"a message of more than {MESSAGE_OCTETS_MAX} octets")
    if len(octets) < 12 or octets[2] & 0xF8 != 0x80:  # QR set, opcode QUERY
        raise NoAnswer("not a DNS answer")
    rcode = octets[3] & 0x0F
    if rcode not in (0, _NXDOMAIN):  # such answers often leave the question out
        raise NoAnswer(_RCODES.get(rcode, f"rcode {rcode}"))
    # Names match in any case. No length octet of a label is a letter (at most 63), nor is
    # an octet of our types: so the whole question can be lowered.
    asked = question[12:].lower()
    if octets[4:6] != b"\0\1" or octets[12 : 12 + len(asked)].lower() != asked:
        raise NoAnswer("an answer to another question")
    if octets[2] & 0x02:
        raise NoAnswer("the answer is truncated")
    return rcode == _NXDOMAIN


def _parse(octets: bytes) -> "dns.message.Message":
    import dns.edns  # here, not above: it takes 40 ms to import, and is seldom needed
    import dns.exception
    import dns.message

    counts = (int.from_bytes(octets[at : at + 2], "big") for at in (6, 8, 10))
    if sum(counts) > RECORDS_MAX:
        raise NoAnswer(f"more than {RECORDS_MAX} unusual records")
    try:
        message = dns.message.from_wire(octets)
    except (dns.exception.DNSException, ValueError) as error:
        raise NoAnswer(f"a broken DNS message ({type(error).__name__})") from error
    if (rcode := message.rcode()) != octets[3] & 0x0F:
        raise NoAnswer(f"rcode {int(rcode)}")  # its upper bits are in the OPT record
    for option in message.options:
        if isinstance(option, dns.edns.EDEOption) and option.code in FILTERED:
            raise filtered(option.code)
    return message


def _by_owner(
    message: "dns.message.Message", wanted: int
) -> tuple[dict["dns.name.Name", "dns.rrset.RRset"], dict["dns.name.Name", "dns.rrset.RRset"]]:
    """The answer's aliases and its records of the wanted type, each by owner."""
    internet, alias = 1, 5
    aliases, records = {}, {}
    for rrset in message.answer:
        if rrset.rdclass == internet and rrset.rdtype == alias:
            aliases[rrset.name] = rrset
        elif rrset.rdclass == internet and rrset.rdtype == wanted:
            records[rrset.name] = rrset
    return aliases, records


def _end_of_chain(
    owner: "dns.name.Name", aliases: dict["dns.name.Name", "dns.rrset.RRset"]
) -> tuple["dns.name.Name", list[int]]:
    """Where the aliases lead from this owner, and their TTLs."""
    passed = {owner}
    ttls: list[int] = []
    while (alias := aliases.get(owner)) is not None:
        owner = alias[0].target
        ttls.append(alias.ttl)
        if owner in passed:
            raise NoAnswer("a CNAME loop")
        if len(passed) > CNAMES_MAX:
            raise NoAnswer(f"a chain of more than {CNAMES_MAX} CNAMEs")
        passed.add(owner)
    return owner, ttls


def _ttl_of_absence(message: "dns.message.Message", ttls: list[int], missing: bool) -> int:
    """How long an absence may be kept, in s (RFC 2308 5). Raises NoAnswer for a referral (2.2)."""
    authority_of_names, start_of_authority = 2, 6
    referral = False
    for rrset in message.authority:
        if rrset.rdtype == start_of_authority:
            minimum: int = rrset[0].minimum
            return min([*ttls, rrset.ttl, minimum])
        referral = referral or rrset.rdtype == authority_of_names
    if missing:
        raise Uncertain(UNSIGNED_NXDOMAIN)
    if referral and not message.answer:
        raise NoAnswer("a referral to other servers")
    return 0
