"""What an answer's bytes are read as. dnspython makes the answers here."""

import random
from typing import Any, Literal

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.engine.dns.messages import (
    EXCHANGES_MAX,
    RECORDS_MAX,
    AddressAnswer,
    Addresses,
    LookupFailed,
    MailExchange,
    NoAddress,
    NoMail,
    Route,
    encode_query,
    read_addresses,
    read_pointers,
    read_route,
    reverse_name,
)

SOA = "ns.test. hostmaster.test. 1 7200 3600 86400 900"


def answer(
    *records: str,
    name: str = "shop.test",
    kind: str = "MX",
    rcode: str = "NOERROR",
    authority: tuple[str, ...] | None = None,
    clear: int = 0,
    set_: int = 0,
    errors: tuple[int, ...] = (),
) -> bytes:
    """An answer to (name, kind) with records such as `shop.test 300 MX 10 mx.shop.test.`

    NXDOMAIN comes with a SOA, unless the authority section says otherwise.
    """
    if authority is None:
        authority = (f"test 60 SOA {SOA}",) if rcode == "NXDOMAIN" else ()
    message = dns.message.make_response(dns.message.make_query(f"{name}.", kind))
    message.id = 0
    message.set_rcode(dns.rcode.from_text(rcode))
    for section, lines in ((message.answer, records), (message.authority, authority)):
        for line in lines:
            owner, ttl, type_, rest = line.split(" ", 3)
            section.append(dns.rrset.from_text(f"{owner}.", int(ttl), "IN", type_, rest))
    if errors:
        options: list[dns.edns.Option] = [
            dns.edns.EDEOption(dns.edns.EDECode(code), "a reason") for code in errors
        ]
        message.use_edns(0, payload=1232, options=options)
    message.flags = (message.flags & ~clear) | set_
    return message.to_wire(max_size=65535)


def mx(*pairs: tuple[int, str], owner: str = "shop.test") -> list[str]:
    return [f"{owner} 300 MX {preference} {name}." for preference, name in pairs]


def test_a_question_has_id_0_and_wants_recursion():
    question = encode_query("shop.test", "MX")
    assert question[:4] == b"\0\0\1\0"
    read = dns.message.from_wire(question)
    assert read.flags == dns.flags.RD
    assert read.question[0].to_text() == "shop.test. IN MX"
    assert (read.edns, read.payload, read.options) == (0, 1232, ())


@pytest.mark.parametrize("kind", ["MX", "A", "AAAA", "PTR"])
def test_a_question_is_what_dnspython_would_write(kind):
    theirs = dns.message.make_query("a.b.shop.test.", kind, use_edns=0, payload=1232)
    theirs.id = 0
    assert encode_query("a.b.shop.test", kind) == theirs.to_wire()
    assert encode_query("a.b.shop.test.", kind) == theirs.to_wire()


@pytest.mark.parametrize("name", ["", ".", "a..b", "x" * 64 + ".test", "bücher.test", "a." * 128])
def test_an_invalid_name_is_not_queried(name):
    with pytest.raises(ValueError):  # noqa: PT011  # UnicodeEncodeError is one, with its own words
        encode_query(name, "MX")


def routed(octets: bytes) -> Route:
    route = read_route(octets, "shop.test")
    assert isinstance(route, Route)
    return route


def test_exchanges_come_by_preference_then_by_name():
    octets = answer(*mx((20, "b.test"), (10, "z.test"), (20, "a.test")))
    assert read_route(octets, "shop.test") == Route(
        "shop.test",
        (MailExchange("z.test", 10), MailExchange("a.test", 20), MailExchange("b.test", 20)),
        "z.test",
    )


def test_names_are_lower_case_without_a_dot_at_the_end():
    route = routed(answer(*mx((10, "MX.Shop.TEST"))))
    assert route.mx_host == "mx.shop.test"


def test_the_same_exchange_twice_counts_once_at_its_best_preference():
    route = routed(answer(*mx((20, "a.test"), (10, "A.test"), (10, "a.test"))))
    assert route.exchanges == (MailExchange("a.test", 10),)


NOT_CERTAIN = {
    "SERVFAIL": answer(rcode="SERVFAIL"),
    "REFUSED": answer(rcode="REFUSED"),
    "NOTIMP": answer(rcode="NOTIMP"),
    "another rcode": answer(rcode="YXDOMAIN"),
    "SERVFAIL with records": answer(*mx((10, "a.test")), rcode="SERVFAIL"),
    "truncated": answer(*mx((10, "a.test")), set_=dns.flags.TC),
    "truncated and empty": answer(set_=dns.flags.TC),
    "a question": answer(clear=dns.flags.QR),
    "another opcode": answer(set_=0x2800),
    "another name": answer(name="other.test"),
    "another name, and it does not exist": answer(name="other.test", rcode="NXDOMAIN"),
    "a longer name": answer(name="www.shop.test"),
    "another type": answer(kind="A"),
    "nothing": b"",
    "half a header": b"\0\0\x81\x80\0",
    "HTML": b"<!DOCTYPE html><html><body>Please sign in to the network</body></html>",
    "no question": answer()[:4] + b"\0\0" + answer()[6:12],
    "cut short": answer(*mx((10, "a.test")))[:-3],
    "octets after the end": answer(*mx((10, "a.test"))) + b"!",
    "too long": answer() + bytes(65536),
    "a loop": answer("shop.test 60 CNAME a.test.", "a.test 60 CNAME shop.test."),
    "a loop of one": answer("shop.test 60 CNAME shop.test."),
    "a loop of NXDOMAIN": answer("shop.test 60 CNAME shop.test.", rcode="NXDOMAIN"),
    "records of another name": answer(*mx((10, "a.test"), owner="other.test")),
    "records before the end of the chain": answer(
        "shop.test 60 CNAME a.test.", *mx((10, "mx.test"), owner="shop.test")
    ),
    "NXDOMAIN with records": answer(*mx((10, "a.test")), rcode="NXDOMAIN"),
    "a referral": answer(authority=("test 60 NS ns.test.",)),
    "NXDOMAIN without a SOA": answer(rcode="NXDOMAIN", authority=()),
    "NXDOMAIN of an alias without a SOA": answer(
        "shop.test 60 CNAME gone.test.", rcode="NXDOMAIN", authority=()
    ),
    "NXDOMAIN with NS alone": answer(rcode="NXDOMAIN", authority=("test 60 NS ns.test.",)),
    "blocked": answer(rcode="NXDOMAIN", errors=(15,)),
    "censored": answer(errors=(16,)),
    "forged": answer(*mx((10, "a.test")), errors=(4,)),
    "a stale NXDOMAIN": answer(rcode="NXDOMAIN", errors=(19,)),
    "filtered": answer(*mx((10, "a.test")), errors=(17,)),
    "filtered, and more": answer(*mx((10, "a.test")), errors=(3, 17, 3)),
    "another rcode, in EDNS": answer(*mx((10, "a.test"))).replace(b"!", b"")[:10]
    + b"\0\1"
    + answer(*mx((10, "a.test")))[12:]
    + b"\0\0\x29\x04\xd0\1\0\0\0\0\0",
}


@pytest.mark.parametrize("octets", NOT_CERTAIN.values(), ids=NOT_CERTAIN)
def test_nothing_uncertain_is_called_no_mail(octets):
    reported = read_route(octets, "shop.test")
    assert isinstance(reported, LookupFailed)
    assert reported.reason


def test_another_class_is_another_question():
    octets = bytearray(answer(*mx((10, "a.test"))))
    octets[12 + len("shop.test") + 2 + 3] = 3  # CHAOS
    assert read_route(bytes(octets), "shop.test") == LookupFailed("an answer to another question")


CERTAIN = {
    "NXDOMAIN": (answer(rcode="NXDOMAIN"), "NXDOMAIN"),
    "NXDOMAIN with an error that is no filter": (
        answer(rcode="NXDOMAIN", errors=(29,)),
        "NXDOMAIN",
    ),
    "empty": (answer(), "no MX records"),
    "empty, with a SOA": (answer(authority=(f"test 60 SOA {SOA}",)), "no MX records"),
    "SOA and NS": (
        answer(authority=("test 60 NS ns.test.", f"test 60 SOA {SOA}")),
        "no MX records",
    ),
    "other records alone": (answer('shop.test 60 TXT "v=spf1 -all"'), "no MX records"),
    "an alias to nothing": (answer("shop.test 60 CNAME gone.test.", rcode="NXDOMAIN"), "NXDOMAIN"),
    "an alias to no mail": (answer("shop.test 60 CNAME www.test."), "no MX records"),
    "null MX": (answer("shop.test 60 MX 0 ."), "null MX"),
    "null MX at another preference": (answer("shop.test 60 MX 10 ."), "null MX"),
}


@pytest.mark.parametrize(("octets", "reason"), CERTAIN.values(), ids=CERTAIN)
def test_a_certain_no_has_its_reason(octets, reason):
    assert read_route(octets, "shop.test") == NoMail(reason)


def test_the_question_may_come_back_in_another_case():
    octets = answer("SHOP.test 300 MX 10 a.test.", name="ShOp.TeSt")
    assert routed(octets).mx_host == "a.test"


def chain(length: int, *, shuffled: bool = False) -> list[str]:
    names = ["shop.test", *(f"c{place}.test" for place in range(length))]
    records = [f"{names[at]} 60 CNAME {names[at + 1].upper()}." for at in range(length)]
    records.append(f"{names[-1]} 300 MX 10 end.test.")
    if shuffled:
        random.Random(7).shuffle(records)
    return records


@pytest.mark.parametrize("length", range(9))
@pytest.mark.parametrize("shuffled", [False, True])
def test_aliases_are_followed_in_any_order(length, shuffled):
    route = routed(answer(*chain(length, shuffled=shuffled)))
    assert route.mx_host == "end.test"
    assert route.domain == "shop.test"


def test_a_chain_of_more_than_eight_is_a_failure():
    reported = read_route(answer(*chain(9)), "shop.test")
    assert reported == LookupFailed("a chain of more than 8 CNAMEs")


def test_only_the_end_of_the_chain_speaks():
    octets = answer(
        *mx((1, "evil.test")),
        "shop.test 60 CNAME a.test.",
        *mx((10, "good.test"), owner="a.test"),
        *mx((1, "evil.test"), owner="other.test"),
    )
    assert routed(octets).exchanges == (MailExchange("good.test", 10),)


JUNK = [
    "192.0.2.1",
    "10",
    r"\042quoted\042.test",
    r"with\032space.test",
    r"dot\.in.label.test",
    r"\255\254.test",
    "-leading.test",
    "trailing-.test",
    r"user\@shop.test",
    r"line\013\010.test",
    "*.shop.test",
]


@pytest.mark.parametrize("name", JUNK)
def test_an_exchange_that_is_no_host_name_is_passed_over(name):
    route = routed(answer(*mx((0, name), (10, "good.test"))))
    assert route.exchanges == (MailExchange("good.test", 10),)
    assert route.mx_host == "good.test"


@pytest.mark.parametrize("name", JUNK)
def test_with_nothing_but_junk_the_records_still_exist(name):
    assert read_route(answer(*mx((0, name))), "shop.test") == Route("shop.test", (), None)


def test_a_null_mx_beside_others_is_only_junk():
    octets = answer("shop.test 60 MX 0 .", *mx((10, "good.test")))
    assert routed(octets).exchanges == (MailExchange("good.test", 10),)


def test_a_host_name_with_an_underscore_gets_its_mail():
    route = routed(answer(*mx((10, "mail_1._x.shop.test"))))
    assert route.mx_host == "mail_1._x.shop.test"


def test_the_best_exchanges_are_kept():
    octets = answer(*mx(*((1000 - n, f"mx{n}.test") for n in range(EXCHANGES_MAX + 50))))
    exchanges = routed(octets).exchanges
    assert len(exchanges) == EXCHANGES_MAX
    assert exchanges[0] == MailExchange(f"mx{EXCHANGES_MAX + 49}.test", 951 - EXCHANGES_MAX)


@pytest.mark.parametrize("count", [300, 2_000])
def test_of_an_answer_of_any_length_the_best_are_kept(count):
    """Also with one that names no host: that is no reason to read it in another way."""
    pairs = [(count - n, f"mx{n}.test") for n in range(count)]
    route = routed(answer(*mx((0, "192.0.2.1"), *pairs)))
    assert len(route.exchanges) == EXCHANGES_MAX
    assert route.mx_host == f"mx{count - 1}.test"


def test_an_answer_that_is_too_much_work_is_not_read():
    """Each record leads through all the labels that a name may have."""
    octets = bytearray(answer(*mx((1, ".".join("a" * 120)))))
    target = octets.index(b"\x01a")
    count = (65_535 - len(octets)) // 16
    octets += (b"\xc0\x0c\0\x0f\0\1\0\0\0\1\0\4\0\1" + bytes([0xC0, target])) * count
    octets[6:8] = (count + 1).to_bytes(2, "big")
    assert read_route(bytes(octets), "shop.test") == LookupFailed("too long an answer")


def test_of_unusual_records_only_some_are_read():
    records = [f'shop.test 60 TXT "{n}"' for n in range(RECORDS_MAX + 1)]
    reported = read_route(answer(*records), "shop.test")
    assert reported == LookupFailed(f"more than {RECORDS_MAX} unusual records")


def addresses(*records: str, kind: Literal["A", "AAAA"] = "A", **more: Any) -> AddressAnswer:
    return read_addresses(answer(*records, kind=kind, **more), "shop.test", kind)


def test_addresses_are_kept_as_long_as_the_shortest_record_says():
    reported = addresses(
        "shop.test 500 CNAME a.test.", "a.test 900 A 11.0.0.2", "a.test 900 A 11.0.0.1"
    )
    assert reported == Addresses(("11.0.0.2", "11.0.0.1"), 500)


def test_six_is_read_as_four_is():
    reported = addresses("shop.test 500 AAAA 2A00:0:0:0::1", kind="AAAA")
    assert reported == Addresses(("2a00::1",), 500)


def test_an_absence_is_kept_as_its_soa_says():
    reported = addresses(authority=(f"test 3600 SOA {SOA}",))
    assert reported == NoAddress("no A records", 900)
    assert addresses(rcode="NXDOMAIN") == NoAddress("NXDOMAIN", 60)


def test_the_other_family_is_no_address_of_this_one():
    assert addresses("shop.test 500 AAAA 2a00::1") == NoAddress("no A records", 0)


@pytest.mark.parametrize("octets", NOT_CERTAIN.values(), ids=NOT_CERTAIN)
def test_nothing_uncertain_is_called_no_address(octets):
    assert isinstance(read_addresses(octets, "shop.test", "AAAA"), LookupFailed)


@pytest.mark.parametrize(
    ("ip", "name"),
    [
        ("11.0.0.9", "9.0.0.11.in-addr.arpa"),
        ("2a00::1", "1" + ".0" * 28 + ".a.2.ip6.arpa"),
    ],
)
def test_an_address_names_its_hosts(ip, name):
    name = reverse_name(ip)
    octets = answer(f"{name} 60 PTR Mail.Shop.test.", f"{name} 60 PTR 1.2.", name=name, kind="PTR")
    assert read_pointers(octets, ip) == ("mail.shop.test",)
    assert read_pointers(answer(name=name, kind="PTR", rcode="NXDOMAIN"), ip) == ()
    assert isinstance(read_pointers(b"", ip), LookupFailed)


GOOD = (
    answer(*chain(3)),
    answer(*mx((10, "a.test"), (20, "b.a.test")), authority=("test 9 NS ns.test.",)),
    answer(authority=(f"test 60 SOA {SOA}",)),
    answer(rcode="NXDOMAIN"),
)


@given(st.binary(max_size=300))
def test_no_bytes_raise(octets):
    assert isinstance(read_route(octets, "shop.test"), LookupFailed)


@given(st.binary(max_size=120), st.integers(0, 3), st.integers(0, 40))
def test_no_bytes_behind_a_good_header_raise(octets, answers, others):
    header = b"\0\0\x81\x80\0\1" + bytes([0, answers, 0, others, 0, others])
    body = encode_query("shop.test", "MX")[12:] + octets
    read_route(header + body, "shop.test")
    read_addresses(header + body, "shop.test", "A")


@given(st.sampled_from(GOOD), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=6))
def test_no_damage_to_a_good_answer_raises(octets, damage):
    damaged = bytearray(octets)
    for place, octet in damage:
        damaged[place % len(damaged)] = octet
    reported = read_route(bytes(damaged), "shop.test")
    if isinstance(reported, Route):
        assert all(host.name == host.name.strip(".").lower() for host in reported.exchanges)
