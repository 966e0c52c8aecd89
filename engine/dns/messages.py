"""A DNS question and its answer as bytes, and what an answer says (RFC 1035, 2308, 7505, 8484).

`encode_query` makes a question; `read_route`, `read_addresses` and `read_pointers` read its
answer and never raise, whatever the bytes. Only an answer that is certain is told
as one: a resolver that failed, was cut short, loops or speaks of another question
is `LookupFailed`, never "there is no mail here". So is a resolver that filters: it says
so by an EDE (RFC 8914), or answers NXDOMAIN without the SOA that a real one brings along.
mailprobe.engine.dns.fast_decoder reads the plain
answers, which are nearly all; dnspython reads whatever that one does not know, and is
not even imported before. Both say the same of everything that both know.
Pure: no socket, no clock.
"""

import re
import sys
from collections.abc import MutableSequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mailprobe.engine.dns.fast_decoder import (
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

Kind = Literal["A", "PTR", "MX", "AAAA"]
TYPES: dict[Kind, int] = {"A": 1, "PTR": 12, "MX": 15, "AAAA": 28}

MESSAGE_OCTETS_MAX = 65_535  # the length that DNS over TCP can say
RECORDS_MAX = 256  # by dnspython: it takes about 0.1 ms for each, while the loop stands still
CNAMES_MAX = 8
# EDNS with room for 1,232 octets and no options (RFC 6891): a resolver says why it gives
# no answer (RFC 8914) only to those who speak EDNS themselves.
OPT = b"\0\0\x29\x04\xd0" + bytes(6)
# Its name servers: what every resolver remembers.
ROOT_QUESTION = b"\0\0\1\0\0\1\0\0\0\0\0\1" + b"\0" + b"\0\2\0\1" + OPT
QUERIES_CACHED = 1024  # those under way: each is made when asked, and again for its answer
EXCHANGES_MAX = 64  # a probe tries five addresses at most; nobody has more than about 20
ADDRESSES_MAX = 64


class Shuffles(Protocol):
    """What we need of a random.Random."""

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...


@dataclass(frozen=True, slots=True)
class MailExchange:
    """One MX record: a host name, lower case, no dot at the end; lower is preferred."""

    name: str
    preference: int


@dataclass(frozen=True, slots=True)
class Route:
    """Where a domain's mail goes: its exchanges by preference, ties by name.

    `mx_host` is the first of them. Records that name no host (an address, junk) are
    left out; where all are so, `exchanges` is empty and `mx_host` None: that is told as
    if no MX record had been found, but without certainty.
    """

    domain: str
    exchanges: tuple[MailExchange, ...]
    mx_host: str | None

    def in_order(self, rng: Shuffles) -> list[MailExchange]:
        """The exchanges in the order to try them: equal ones shuffled (RFC 5321 5.1)."""
        ordered: list[MailExchange] = []
        for _, equals in groupby(self.exchanges, key=lambda exchange: exchange.preference):
            group = list(equals)
            rng.shuffle(group)
            ordered += group
        return ordered


@dataclass(frozen=True, slots=True)
class NoMail:
    """The resolver says for certain that this domain takes no mail."""

    reason: str


@dataclass(frozen=True, slots=True)
class Addresses:
    """A host's addresses as text, in the resolver's order; how long they may be kept."""

    ips: tuple[str, ...]
    ttl_s: int


@dataclass(frozen=True, slots=True)
class NoAddress:
    """The resolver says for certain that this host has no address of the kind asked for."""

    reason: str
    ttl_s: int = 0


@dataclass(frozen=True, slots=True)
class LookupFailed:
    """Nothing certain is known; the reason is for a person.

    A hasty failure says nothing of the name: whoever has the time asks again.
    """

    reason: str
    hasty: bool = field(default=False, compare=False)


RouteAnswer = Route | NoMail | LookupFailed
AddressAnswer = Addresses | NoAddress | LookupFailed


@lru_cache(QUERIES_CACHED)
def encode_query(name: str, kind: Kind) -> bytes:
    """The question as bytes: id 0, so that caches may share it (RFC 8484 4.1), RD set.

    Raises ValueError for what is no domain name in A-labels.
    """
    labels = [label.encode("ascii") for label in name.removesuffix(".").split(".")]
    if any(not 0 < len(label) < 64 for label in labels) or len(name) > 254:
        raise ValueError(f"not a domain name: {name[:260]!r}")
    owner = b"".join(bytes([len(label)]) + label for label in labels)
    header = b"\0\0\1\0\0\1\0\0\0\0\0\1"
    return header + owner + b"\0\0" + bytes([TYPES[kind]]) + b"\0\1" + OPT


def reverse_name(ip: str) -> str:
    """The name whose PTR record names this address (RFC 1035 3.5, 3596 2.5)."""
    return ip_address(ip).reverse_pointer


def read_route(octets: bytes, domain: str) -> RouteAnswer:
    """What this answer to `ask(domain, "MX")` says of the domain's mail."""
    try:
        found = _read(octets, domain, "MX")
    except _NoAnswer as error:
        return LookupFailed(str(error))
    if not found.data:
        return NoMail(found.absence)
    if not any(name != "" for name, _ in found.data):
        return NoMail("null MX")  # RFC 7505; beside other records the root is only junk
    best: dict[str, int] = {}
    for name, preference in found.data:
        if name:
            best[name] = min(preference, best.get(name, preference))
    ordered = sorted(best, key=lambda name: (best[name], name))[:EXCHANGES_MAX]
    # Thousands of domains share an operator's exchanges: one string for all.
    exchanges = tuple(MailExchange(sys.intern(name), best[name]) for name in ordered)
    return Route(domain, exchanges, exchanges[0].name if exchanges else None)


def read_addresses(octets: bytes, name: str, kind: Literal["A", "AAAA"]) -> AddressAnswer:
    """What this answer to `ask(name, kind)` says of the host's addresses."""
    try:
        found = _read(octets, name, kind)
    except _NoAnswer as error:
        return LookupFailed(str(error))
    if not found.data:
        return NoAddress(found.absence, found.ttl_s)
    return Addresses(tuple(dict.fromkeys(found.data))[:ADDRESSES_MAX], found.ttl_s)


def read_pointers(octets: bytes, ip: str) -> tuple[str, ...] | LookupFailed:
    """The host names that this answer to `ask(reverse_name(ip), "PTR")` gives; maybe none."""
    try:
        found = _read(octets, reverse_name(ip), "PTR")
    except _NoAnswer as error:
        return LookupFailed(str(error))
    return tuple(dict.fromkeys(name for name in found.data if name))


# A host name by RFC 1123 2.1; the underscore is forbidden and exists, and mail is
# delivered there (Postfix takes it too).
_LABEL = re.compile(rb"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")


def _host_name(labels: tuple[bytes, ...]) -> str | None:
    """These labels as a host name, or None where they are none, as `192.0.2.1.` is none."""
    labels = tuple(label.lower() for label in labels)
    if not labels or labels[-1].isdigit() or not all(map(_LABEL.fullmatch, labels)):
        return None
    return b".".join(labels).decode("ascii")


_NoAnswer = Uncertain


@dataclass(frozen=True, slots=True)
class _Found:
    """What the records asked for say; where there are none for certain, why.

    An address is text; a host is its name, "" for the root, None where it names none;
    an MX record is a pair of host and preference.
    """

    data: list[Any]
    ttl_s: int
    absence: str = ""


def _read(octets: bytes, name: str, kind: Kind) -> _Found:
    """The records of this kind at the end of the name's CNAME chain, or raise _NoAnswer."""
    question = encode_query(name, kind)[: -len(OPT)]
    missing = _check_header(octets, question)
    plain = read_records(octets, name, TYPES[kind], len(question), missing=missing)
    data, ttl_s = plain if plain is not None else _read_slowly(octets, kind, missing)
    if data:
        return _Found(data, ttl_s)
    return _Found(data, ttl_s, "NXDOMAIN" if missing else f"no {kind} records")


def _read_slowly(octets: bytes, kind: Kind, missing: bool) -> Records:
    """The same by dnspython, for what the plain reader does not know."""
    message = _parse(octets)
    aliases, records = _by_owner(message, TYPES[kind])
    owner, ttls = _end_of_chain(message.question[0].name, aliases)
    found = records.get(owner)
    if missing and records:
        raise _NoAnswer("NXDOMAIN with records contradicts itself")
    if found is not None:
        return [_datum(record, kind) for record in found], min([*ttls, found.ttl])
    if records:
        raise _NoAnswer("the records are of another name")
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


def _check_header(octets: bytes, question: bytes) -> bool:
    """Say whether the answer is NXDOMAIN; raise _NoAnswer for what is no answer to this."""
    if len(octets) > MESSAGE_OCTETS_MAX:
        raise _NoAnswer(f"a message of more than {MESSAGE_OCTETS_MAX} octets")
    if len(octets) < 12 or octets[2] & 0xF8 != 0x80:  # QR set, opcode QUERY
        raise _NoAnswer("not a DNS answer")
    rcode = octets[3] & 0x0F
    if rcode not in (0, _NXDOMAIN):  # such answers often leave the question out
        raise _NoAnswer(_RCODES.get(rcode, f"rcode {rcode}"))
    # Names match whatever their case. No length octet of a label is a letter (at most
    # 63), nor is an octet of our types: so all may be lowered alike.
    asked = question[12:].lower()
    if octets[4:6] != b"\0\1" or octets[12 : 12 + len(asked)].lower() != asked:
        raise _NoAnswer("an answer to another question")
    if octets[2] & 0x02:
        raise _NoAnswer("the answer is truncated")
    return rcode == _NXDOMAIN


def _parse(octets: bytes) -> "dns.message.Message":
    import dns.edns  # here, not above: 40 ms that a cold start may not need
    import dns.exception
    import dns.message

    counts = (int.from_bytes(octets[at : at + 2], "big") for at in (6, 8, 10))
    if sum(counts) > RECORDS_MAX:
        raise _NoAnswer(f"more than {RECORDS_MAX} unusual records")
    try:
        message = dns.message.from_wire(octets)
    except (dns.exception.DNSException, ValueError) as error:
        raise _NoAnswer(f"a broken DNS message ({type(error).__name__})") from error
    if (rcode := message.rcode()) != octets[3] & 0x0F:
        raise _NoAnswer(f"rcode {int(rcode)}")  # its upper bits are in the OPT record
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
    """Where the aliases lead from this owner, and the TTLs on the way."""
    passed = {owner}
    ttls: list[int] = []
    while (alias := aliases.get(owner)) is not None:
        owner = alias[0].target
        ttls.append(alias.ttl)
        if owner in passed:
            raise _NoAnswer("a CNAME loop")
        if len(passed) > CNAMES_MAX:
            raise _NoAnswer(f"a chain of more than {CNAMES_MAX} CNAMEs")
        passed.add(owner)
    return owner, ttls


def _ttl_of_absence(message: "dns.message.Message", ttls: list[int], missing: bool) -> int:
    """How long an absence may be kept (RFC 2308 5); raise _NoAnswer for a referral (2.2)."""
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
        raise _NoAnswer("a referral to other servers")
    return 0
