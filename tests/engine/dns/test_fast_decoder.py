"""The quick reader against its oracle: the same answer as dnspython's, or "I don't know"."""

import random
import sys
from contextlib import suppress
from struct import pack

import dns.exception
import dns.message
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mailprobe.engine.dns.messages
from mailprobe.engine.dns.fast_decoder import Uncertain, read_records
from mailprobe.engine.dns.messages import (
    OPT,
    TYPES,
    Addresses,
    Kind,
    LookupFailed,
    NoMail,
    Route,
    encode_query,
    read_addresses,
    read_pointers,
    read_route,
)
from tests.seeds import seeds

NAME = "shop.test"
IP = "11.0.0.9"
REVERSE = "9.0.0.11.in-addr.arpa"
KINDS: dict[Kind, str] = {"MX": NAME, "A": NAME, "AAAA": NAME, "PTR": REVERSE}


def question_of(name: str, kind: str) -> bytes:
    """The query without its EDNS record."""
    return encode_query(name, kind)[: -len(OPT)]


def labels(*names: str | bytes) -> bytes:
    octets = [name.encode("latin-1") if isinstance(name, str) else name for name in names]
    return b"".join(bytes([len(name)]) + name for name in octets)


class Writer:
    """Writes messages that are mostly well formed, and now and then are not, by chance."""

    def __init__(self, rng: random.Random, kind: Kind) -> None:
        self.rng = rng
        self.kind = kind
        self.octets = bytearray()
        self.names: list[int] = []  # where names begin, for pointers

    def message(self) -> bytes:
        rng = self.rng
        name = KINDS[self.kind]
        if rng.random() < 0.2:
            name = "".join(rng.choice((letter, letter.upper())) for letter in name)
        counts = [
            rng.choice((0, 1, 1, 2, 3)),
            rng.choice((0, 0, 1, 2)),
            rng.choice((0, 0, 0, 1, 2)),
        ]
        rcode = rng.choice((0, 0, 0, 0, 3, 3, 2))
        self.octets += pack(">HHHHHH", 0, 0x8180 | rcode, 1, *counts)
        at = 12
        for label in name.split("."):
            self.names.append(at)
            at += len(label) + 1
        self.octets += question_of(name, self.kind)[12:]
        for _ in range(counts[0]):
            self.record(rng.choice((self.kind,) * 16 + ("CNAME",) * 6 + ("A", "TXT", "SOA")))
        for _ in range(counts[1]):
            self.record(rng.choice(("SOA",) * 9 + ("NS",) * 6 + ("A", "TXT")))
        for _ in range(counts[2]):
            self.record(rng.choice(("OPT",) * 5 + ("A", "AAAA") * 2 + ("MX", "TXT")))
        return bytes(self.octets + (b"!" if rng.random() < 0.02 else b""))

    def record(self, kind: str) -> None:
        rng = self.rng
        if kind == "OPT":
            self.octets += b"\0" if rng.random() < 0.9 else self.name()
        else:
            self.octets += b"\xc0\x0c" if rng.random() < 0.6 else self.name()
        numbers = dict[str, int](TYPES.items()) | {
            "CNAME": 5,
            "SOA": 6,
            "NS": 2,
            "TXT": 16,
            "OPT": 41,
        }
        class_ = 1 if rng.random() < 0.97 else rng.choice((3, 254, 255, 1232))
        ttl = rng.choice((0, 60, 300, 86400) * 6 + (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
        head = pack(">HHI", numbers[kind], class_, ttl)
        length_at = len(self.octets) + len(head)
        self.octets += head + b"\0\0"
        self.data(kind)
        length = len(self.octets) - length_at - 2
        if rng.random() < 0.02:
            length = max(0, length + rng.choice((-1, 1, 5)))
        self.octets[length_at : length_at + 2] = pack(">H", length)

    def data(self, kind: str) -> None:
        rng = self.rng
        match kind:
            case "MX":
                self.octets += pack(">H", rng.choice((0, 10, 10, 20, 65535)))
                self.octets += b"\0" if rng.random() < 0.15 else self.name()
            case "CNAME" | "NS" | "PTR":
                self.octets += self.name()
            case "A":
                self.octets += rng.randbytes(4 if rng.random() < 0.97 else 5)
            case "AAAA":
                address = bytearray(rng.randbytes(16))
                for at in range(0, 16, 2):
                    if rng.random() < 0.5:
                        address[at : at + 2] = rng.choice((b"\0\0", b"\xff\xff", b"\0\1"))
                self.octets += address
            case "SOA":
                self.octets += self.name()
                self.octets += self.name()
                self.octets += pack(
                    ">IIIII", *(rng.choice((1, 300) * 20 + (1 << 31,)) for _ in range(5))
                )
            case "TXT":
                self.octets += b"\6v=spf1"
            case "OPT":
                self.octets += rng.choice(
                    (
                        b"",
                        b"",
                        b"\0\x0c\0\3\0\0\0",
                        b"\0\x0c\0\0",
                        b"\0\x0f\0\2\0\1",
                        b"\0\x0f\0\2\0\x0f",
                        b"\0\x0f\0\5\0\3why\0\x0f\0\3\0\x11!",
                        b"\0\x0f\0\3\0\3\xff",
                        b"\0\x0f\0\1\0",
                        b"\0\x0c\0\5x",
                    )
                )

    def name(self) -> bytes:
        """A name: whole, or ended by a pointer; also to itself, forwards, or into the middle."""
        rng = self.rng
        here = len(self.octets)
        written = b"".join(self.label(here) for _ in range(rng.choice((0, 1, 1, 2, 3))))
        chance = rng.random()
        if chance < 0.65:
            target = rng.choice(self.names)
        elif chance < 0.68:
            target = rng.choice((0, 5, 11, 13, here, here + len(written), here + 4, 0x3FFF))
        elif chance < 0.70:
            return written + bytes([rng.choice((0x40, 0x80, 0xBF))])
        else:
            self.names.append(here)
            return written + rng.choice((labels("test"), b"", labels("a", "test"))) + b"\0"
        if rng.random() < 0.9:
            self.names.append(here)
        return written + pack(">H", 0xC000 | target)

    def label(self, _here: int) -> bytes:
        rng = self.rng
        if rng.random() < 0.97:
            return labels(rng.choice(("mx", "a", "b", "shop", "A", "1x", "mail_1")))
        junk = ("1", "-a", "a-", "a.b", "\0", "\xff", "*", "x" * 63, 'q"', "u@s", " ", "y" * 62)
        return labels(rng.choice(junk))


def damage(octets: bytes, rng: random.Random) -> bytes:
    chance = rng.random()
    if chance < 0.6:
        return octets
    if chance < 0.75:
        return octets[: rng.randrange(len(octets))]
    damaged = bytearray(octets)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(2, len(damaged))
        damaged[place] = rng.choice((0, 1, 12, 0xC0, 0xFF, rng.randrange(256), damaged[place] ^ 1))
    return bytes(damaged)


READ = {
    "MX": lambda octets: read_route(octets, NAME),
    "A": lambda octets: read_addresses(octets, NAME, "A"),
    "AAAA": lambda octets: read_addresses(octets, NAME, "AAAA"),
    "PTR": lambda octets: read_pointers(octets, IP),
}


def quick(octets: bytes, kind: Kind):
    """What the quick reader alone says of octets behind a header that is right."""
    question = question_of(KINDS[kind], kind)
    missing = mailprobe.engine.dns.messages.check_header(octets, question)
    return read_records(octets, KINDS[kind], TYPES[kind], len(question), missing=missing)


@pytest.fixture
def by_dnspython(monkeypatch):
    """Reads by dnspython alone."""

    def read(octets: bytes, kind: str):
        with monkeypatch.context() as patch:
            patch.setattr(mailprobe.engine.dns.messages, "read_records", lambda *_, **__: None)
            return READ[kind](octets)

    return read


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_the_quick_reader_says_what_dnspython_says(by_dnspython, kind, seed):
    rng = random.Random(f"{kind}{seed}")
    known = certain = 0
    for _ in range(1_000):
        octets = damage(Writer(rng, kind).message(), rng)
        reported = READ[kind](octets)
        assert reported == by_dnspython(octets, kind), octets
        try:
            known += quick(octets, kind) is not None
        except mailprobe.engine.dns.messages.NoAnswer:
            continue
        certain += not isinstance(reported, LookupFailed)
    assert known > certain / 3 > 40  # else the two were compared about nothing


def known_and_same(octets: bytes, kind: Kind, by_dnspython) -> object:
    assert quick(octets, kind) is not None
    reported = READ[kind](octets)
    assert reported == by_dnspython(octets, kind)
    return reported


def message(
    kind: Kind, *answers: bytes, rcode: int = 0, authority: bytes = b"", others: bytes = b""
) -> bytes:
    counts = (1, len(answers), bool(authority), bool(others))
    head = pack(">HHHHHH", 0, 0x8180 | rcode, *counts)
    return head + question_of(KINDS[kind], kind)[12:] + b"".join(answers) + authority + others


def record(kind: int, data: bytes, owner: bytes = b"\xc0\x0c", ttl_s: int = 300) -> bytes:
    return owner + pack(">HHIH", kind, 1, ttl_s, len(data)) + data


SOA = record(6, b"\2ns\xc0\x11\4host\xc0\x11" + pack(">IIIII", 1, 2, 3, 4, 900), b"\xc0\x11", 60)
MX = record(15, b"\0\x0a\2mx\xc0\x0c")
EVERY_DAY = {
    "two exchanges": ("MX", message("MX", MX, record(15, b"\0\x14\3MX2\xc0\x0c")), Route),
    "null MX": ("MX", message("MX", record(15, b"\0\0\0")), NoMail),
    "no such domain": ("MX", message("MX", rcode=3, authority=SOA), NoMail),
    "no exchanges": ("MX", message("MX", authority=SOA), NoMail),
    "an alias": ("A", message("A", record(5, b"\1a\xc0\x0c"), record(1, b"\1\2\3\4", b"\1a\xc0\x0c")), Addresses),
    "EDNS": ("MX", message("MX", MX, others=b"\0\0\x29\x04\xd0" + bytes(6)), Route),
    "EDNS padding": (
        "MX",
        message("MX", MX, others=b"\0\0\x29\x04\xd0\0\0\0\0\0\x08\0\x0c\0\4" + bytes(4)),
        Route,
    ),
    "an extended error": (
        "MX",
        message("MX", rcode=3, authority=SOA, others=b"\0\0\x29\x04\xd0\0\0\0\0\0\x06\0\x0f\0\2\0\x1d"),
        NoMail,
    ),
    "an exchange that is not a host": ("MX", message("MX", record(15, b"\0\x0a\x03192\0"), MX), Route),
    "an address beside": ("MX", message("MX", MX, others=record(1, b"\1\2\3\4", b"\2mx\xc0\x0c")), Route),
    "IPv6": ("AAAA", message("AAAA", record(28, b"\x2a" + bytes(14) + b"\1")), Addresses),
    "a pointer": ("PTR", message("PTR", record(12, b"\4mail\4shop\4test\0")), tuple),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "octets", "reported"), EVERY_DAY.values(), ids=EVERY_DAY)
def test_everyday_answers_of_resolvers_are_decoded(by_dnspython, kind, octets, reported):
    assert isinstance(known_and_same(octets, kind, by_dnspython), reported)


@pytest.mark.parametrize(("kind", "octets", "_"), EVERY_DAY.values(), ids=EVERY_DAY)
def test_a_cut_at_any_place_is_unknown(kind, octets, _):
    for length in range(len(octets)):
        with suppress(mailprobe.engine.dns.messages.NoAnswer):
            assert quick(octets[:length], kind) is None


def test_every_day_s_answers_need_no_dnspython(monkeypatch):
    monkeypatch.setitem(sys.modules, "dns", None)  # fails every import of it
    for kind, octets, reported in EVERY_DAY.values():
        assert isinstance(READ[kind](octets), reported)


POINTERS = {
    "to itself": record(15, b"\0\x0a\xc0\x29"),
    "forwards": record(15, b"\0\x0a\xc0\x30"),
    "into the header": record(15, b"\0\x0a\xc0\x04"),
    "into its own labels": record(15, b"\0\x0a\1a\xc0\x29"),
    "beyond the message": record(15, b"\0\x0a\xff\xff"),
    "half of one": record(15, b"\0\x0a\xc0"),
}


@pytest.mark.parametrize("answer", POINTERS.values(), ids=POINTERS)
def test_a_pointer_that_leads_nowhere_good_is_unknown(answer):
    octets = message("MX", answer)
    assert quick(octets, "MX") is None
    assert not isinstance(read_route(octets, NAME), Route)


def test_a_long_chain_of_pointers_ends():
    octets, place = bytearray(message("MX")), 12
    for _ in range(60):  # a.a.a...shop.test, each by a pointer to the one before
        place, answer = len(octets) + 12 + 2, record(15, b"\0\x0a\1a" + pack(">H", 0xC000 | place))
        octets += answer
    octets[6:8] = pack(">H", 60)
    assert quick(bytes(octets), "MX") is None


@settings(max_examples=seeds(500))
@given(st.binary(max_size=200), st.integers(0, 9), st.integers(0, 9), st.sampled_from([0, 3]))
def test_no_octets_raise(octets, answers, others, rcode):
    head = pack(">HHHHHH", 0, 0x8180 | rcode, 1, answers, others, others)
    for kind, name in KINDS.items():
        question = question_of(name, kind)
        with suppress(Uncertain):
            read_records(
                head + question[12:] + octets, name, TYPES[kind], len(question), missing=rcode == 3
            )
    with suppress(Uncertain):
        read_records(octets, NAME, 15, 27, missing=False)


def test_the_oracle_reads_what_the_writer_writes():
    """A test of the tests: most of the messages are whole, and each kind of trouble is there."""
    rng = random.Random(3)
    whole = 0
    for _ in range(500):
        octets = Writer(rng, "MX").message()
        try:
            dns.message.from_wire(octets)
        except (dns.exception.DNSException, ValueError):
            continue
        whole += 1
    assert 200 < whole < 495
