"""Reads the records of ordinary DNS answers, thirty times as fast as dnspython.

`read_records` reads ordinary answers: MX, A, AAAA and PTR with their CNAME chains, SOA
and NS in the authority section, addresses and EDNS in the additional section (RFC 1035,
2308, 6891, 8914). For anything broken, unknown or ambiguous it returns None, and
messages.py uses dnspython, which decides what is wrong with an answer. This reader
decides two things only: that a resolver filters, and that an answer is too much work.
Pure: no socket, no clock.
"""

import re
from ipaddress import IPv6Address
from struct import Struct, error

A, NS, CNAME, SOA, PTR, MX, AAAA, OPT = 1, 2, 5, 6, 12, 15, 28, 41
INTERNET = 1
PADDING = 12
EDE = 15  # the only EDNS option read here: an extended error (RFC 8914)
# Extended errors of an answer that is not the domain's own, or not certain (19: the domain's
# servers could not be reached).
FILTERED = {4: "forged", 15: "blocked", 16: "censored", 17: "filtered", 19: "kept past its time"}
UNSIGNED_NXDOMAIN = "NXDOMAIN without an SOA record: the resolver filters"
LABELS_MAX = 16_384  # of all names together, which takes 2 ms; 300 exchanges have 1,500

NAME_OCTETS_MAX = 253  # as text without its last dot: 255 as octets (RFC 1035 2.3.4)
POINTERS_MAX = 8  # in one name; a compressing server writes one
CHAIN_MAX = 8  # CNAMES_MAX of mailprobe.engine.dns.messages: longer chains are left to dnspython
TTL_MAX = 0x7FFFFFFF  # RFC 2181 8; greater values are left to dnspython

# The data of a record: text for an address or a target, a pair for an MX record.
# None for a name that is not a host name.
Datum = str | tuple[str | None, int] | None
# With the time in s for which they, or their absence, may be kept.
Records = tuple[list[Datum], int]

# A host name as octets, lower case. The same rule as in messages.py, for whole names.
_HOST = re.compile(
    rb"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)*"
    rb"(?![0-9]+\Z)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
)
_COUNTS = Struct(">HHH")
_RECORD = Struct(">HHIH")  # type, class, TTL, length
_SOA_NUMBERS = Struct(">IIIII")  # serial, refresh, retry, expire, minimum
_OPTION = Struct(">HH")


class Uncertain(Exception):
    """The answer is not certain. The message is for people."""


def filtered(code: int) -> Uncertain:
    return Uncertain(f"{FILTERED[code]} by the resolver")


class _Unknown(Exception):
    """Raised for an answer that dnspython must read."""


def read_records(octets: bytes, name: str, kind: int, at: int, *, missing: bool) -> Records | None:
    """The records of this kind at the end of the name's CNAME chain; None leaves it to dnspython.

    The caller has checked the header and the question, which ends at `at`; `missing` is
    NXDOMAIN. The list is empty if there certainly are no records. Raises Uncertain.
    """
    try:
        return _Message(octets, name.lower().removesuffix(".").encode("ascii")).read(
            kind, at, missing
        )
    except (_Unknown, IndexError, UnicodeDecodeError, error):
        return None


class _Message:
    """One message, and what was read of its answer section."""

    __slots__ = ("_aliases", "_asked", "_at", "_labels", "_octets", "_records")

    def __init__(self, octets: bytes, asked: bytes) -> None:
        self._octets = octets
        self._asked = asked
        self._at = 0
        self._labels = 0  # read so far
        self._aliases: dict[bytes, tuple[bytes, int]] = {}  # owner -> target, TTL
        self._records: dict[bytes, tuple[list[Datum], list[int]]] = {}  # owner -> data, TTLs

    def read(self, kind: int, at: int, missing: bool) -> Records:
        answers, authorities, others = _COUNTS.unpack_from(self._octets, 6)
        self._at = at
        for _ in range(answers):
            self._read_answer(kind)
        absence = self._read_authority(authorities, answers)
        error = self._read_others(others)
        if self._at != len(self._octets) or (missing and self._records):
            raise _Unknown
        if error in FILTERED:
            raise filtered(error)
        owner, ttls = self._end_of_chain()
        found = self._records.get(owner)
        if found is not None:
            return found[0], min(ttls + found[1])
        if self._records or absence is None:
            raise _Unknown
        if missing and not absence:
            raise Uncertain(UNSIGNED_NXDOMAIN)
        return [], min([*ttls, *absence]) if absence else 0

    def _head(self) -> tuple[bytes, int, int, int]:
        """Read a record's owner, type, TTL and end; move to its data."""
        octets, at = self._octets, self._at
        if octets[at] == 0xC0 and octets[at + 1] == 12:  # the name queried, nearly always
            owner, at = self._asked, at + 2
        else:
            owner, at = self._name(at, len(octets))
        kind, class_, ttl, length = _RECORD.unpack_from(octets, at)
        self._at = at + 10
        end = self._at + length
        if end > len(octets) or (kind != OPT and (class_ != INTERNET or ttl > TTL_MAX)):
            raise _Unknown
        if kind == OPT and ttl >> 24:
            raise _Unknown  # the upper bits of the rcode
        return owner, kind, ttl, end

    def _read_answer(self, wanted: int) -> None:
        owner, kind, ttl, end = self._head()
        if kind == wanted:
            data, ttls = self._records.setdefault(owner, ([], []))
            data.append(self._datum(kind, end))
            ttls.append(ttl)
        elif kind == CNAME and owner not in self._aliases:
            self._aliases[owner] = self._name_to(self._at, end), ttl
        else:
            raise _Unknown
        self._at = end

    def _datum(self, kind: int, end: int) -> Datum:
        octets, at = self._octets, self._at
        if kind == MX:
            preference = octets[at] << 8 | octets[at + 1]
            return _host(self._name_to(at + 2, end)), preference
        if kind == A and end - at == 4:
            return f"{octets[at]}.{octets[at + 1]}.{octets[at + 2]}.{octets[at + 3]}"
        if kind == AAAA and end - at == 16 and any(octets[at : at + 8]):
            # Others may embed IPv4, which has two spellings.
            return str(IPv6Address(octets[at:end]))
        if kind == PTR:
            return _host(self._name_to(at, end))
        raise _Unknown

    def _read_authority(self, count: int, answers: int) -> tuple[int, ...] | None:
        """The TTLs that limit how long an absence may be kept (RFC 2308 5); None for a referral."""
        absence: tuple[int, ...] = ()
        referral = False
        for _ in range(count):
            _, kind, ttl, end = self._head()
            if kind == SOA and not absence:
                absence = (ttl, self._minimum(end))
            elif kind == NS:
                self._name_to(self._at, end)
                referral = True
            else:
                raise _Unknown
            self._at = end
        return None if referral and not absence and not answers else absence

    def _minimum(self, end: int) -> int:
        _, at = self._name(self._at, end)
        _, at = self._name(at, end)
        if at + 20 != end:
            raise _Unknown
        _, refresh, retry, expire, minimum = _SOA_NUMBERS.unpack_from(self._octets, at)
        if max(refresh, retry, expire, minimum) > TTL_MAX:
            raise _Unknown
        return int(minimum)

    def _read_others(self, count: int) -> int:
        """Read the additional section to its end; return the extended error in it, or -1."""
        options, error = False, -1
        for _ in range(count):
            at = self._at
            _, kind, _, end = self._head()
            if kind == OPT and not options and self._octets[at] == 0:
                options = True
                error = self._read_options(end)
            elif (kind, end - self._at) not in ((A, 4), (AAAA, 16)):
                raise _Unknown
            self._at = end
        return error

    def _read_options(self, end: int) -> int:
        """The extended error among the options that shows filtering, else any, else -1."""
        octets, at, error = self._octets, self._at, -1
        while at < end:
            code, length = _OPTION.unpack_from(octets, at)
            at += 4
            if code == EDE and length >= 2 and at + 2 <= end:
                octets[at + 2 : at + length].decode()  # raises where dnspython finds it broken
                number = octets[at] << 8 | octets[at + 1]
                error = number if error not in FILTERED else error
            elif code != PADDING:
                raise _Unknown  # dnspython parses it, and may find it broken
            at += length
        if at != end:
            raise _Unknown
        return error

    def _end_of_chain(self) -> tuple[bytes, list[int]]:
        """Where the aliases lead, and their TTLs."""
        owner, ttls = self._asked, list[int]()
        while (alias := self._aliases.get(owner)) is not None:
            owner, ttl = alias
            ttls.append(ttl)
            if len(ttls) > CHAIN_MAX:  # a loop, or too long: messages.py words the failure
                raise _Unknown
        return owner, ttls

    def _name_to(self, at: int, end: int) -> bytes:
        """The name that fills these data."""
        name, after = self._name(at, end)
        if after != end:
            raise _Unknown
        return name

    def _name(self, at: int, end: int) -> tuple[bytes, int]:
        name, after = _name(self._octets, at, end)
        self._labels += name.count(b".") + 1
        if self._labels > LABELS_MAX:
            raise Uncertain("too long an answer")
        return name, after


def _host(name: bytes) -> str | None:
    """A host name as text, "" for the root, None for what is not a host name."""
    if name and not _HOST.fullmatch(name):
        return None
    return name.decode("ascii")


def _name(octets: bytes, at: int, end: int) -> tuple[bytes, int]:
    """The name at this position, in lower case with dots, and the position after it.

    A pointer must lead to before the part that it ends, so each octet of the message is
    read at most once.
    """
    labels: list[bytes] = []
    start, after, pointers = at, 0, 0
    while at < end:
        count = octets[at]
        at += 1
        if not count:
            break
        if count < 64:
            labels.append(octets[at : at + count])
            at += count
        elif count >= 192 and at < end and pointers < POINTERS_MAX:
            target = (count & 63) << 8 | octets[at]
            if not 12 <= target < start:
                raise _Unknown
            after = after or at + 1
            pointers += 1
            end, start, at = start, target, target
        else:
            raise _Unknown
    else:
        raise _Unknown
    name = b".".join(labels).lower()
    if len(name) > NAME_OCTETS_MAX or name.count(b".") != max(len(labels) - 1, 0):
        raise _Unknown  # too long, or a label holds a dot
    return name, after or at
