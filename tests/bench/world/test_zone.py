"""The zone answers as a recursive resolver would, and goes wrong in every known way."""

import dns.message
import dns.rcode
import dns.rdatatype
import pytest
import trio

from mailprobe.bench.world.fake_network import FakeEndpoint, open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.resolver_faults import ResolverFaults, RetryAfter, Unavailable
from mailprobe.bench.world.zone import HTML, Zone, ZoneMode

URL = "https://9.9.9.9/dns-query"


def resolve(zone: Zone, name: str, kind: str = "MX") -> dns.message.Message:
    question = dns.message.make_query(name, kind, id=0)
    answer = zone.answer(question.to_wire())
    assert isinstance(answer, bytes)
    return dns.message.from_wire(answer)


def texts(answer: dns.message.Message) -> list[str]:
    return sorted(
        f"{s.name} {dns.rdatatype.to_text(s.rdtype)} {r}" for s in answer.answer for r in s
    )


@pytest.fixture
def zone() -> Zone:
    zone = Zone()
    zone.mx("shop.test", "mx1.shop.test", "mx2.shop.test", (10, "mx3.shop.test"))
    zone.host("mx1.shop.test", "11.0.0.1", "11.0.0.2", "2a00::1")
    zone.null_mx("nomail.test")
    zone.exists("parked.test")
    zone.cname("alias.test", "alias2.test")
    zone.cname("alias2.test", "shop.test")
    zone.cname("loop.test", "pool.test")
    zone.cname("pool.test", "loop.test")
    zone.cname("dangling.test", "nowhere.test")
    return zone


@pytest.mark.parametrize(
    ("name", "kind", "records"),
    [
        (
            "SHOP.test.",
            "MX",
            [
                "shop.test. MX 10 mx1.shop.test.",
                "shop.test. MX 10 mx3.shop.test.",
                "shop.test. MX 20 mx2.shop.test.",
            ],
        ),
        ("mx1.shop.test", "A", ["mx1.shop.test. A 11.0.0.1", "mx1.shop.test. A 11.0.0.2"]),
        ("mx1.shop.test", "AAAA", ["mx1.shop.test. AAAA 2a00::1"]),
        ("nomail.test", "MX", ["nomail.test. MX 0 ."]),
        ("parked.test", "MX", []),
        ("shop.test", "A", []),
        ("dangling.test", "MX", ["dangling.test. CNAME nowhere.test."]),
    ],
)
def test_a_name_answers_with_its_records(zone, name, kind, records):
    answer = resolve(zone, name, kind)
    question = dns.message.make_query(name, kind, id=0)
    assert question.is_response(answer)
    assert [text.replace("SHOP", "shop") for text in texts(answer)] == records
    assert answer.rcode() == dns.rcode.NOERROR
    assert bool(answer.authority) == (not records)


def test_an_unknown_name_does_not_exist(zone):
    answer = resolve(zone, "elsewhere.example")
    assert answer.rcode() == dns.rcode.NXDOMAIN
    assert answer.authority  # RFC 2308: with the SOA that says how long


def test_a_chain_of_aliases_comes_in_one_answer(zone):
    answer = resolve(zone, "alias.test")
    assert isinstance(answer, dns.message.QueryMessage)
    chain = answer.resolve_chaining()
    assert len(chain.cnames) == 2
    assert chain.canonical_name.to_text() == "shop.test."


def test_a_loop_of_aliases_is_bounded(zone):
    assert len(resolve(zone, "loop.test").answer) >= 2


@pytest.mark.parametrize(
    ("mode", "rcode"),
    [
        (ZoneMode.SERVFAIL, "SERVFAIL"),
        (ZoneMode.REFUSED, "REFUSED"),
        (ZoneMode.NXDOMAIN, "NXDOMAIN"),
    ],
)
def test_a_mood_has_its_rcode(zone, mode, rcode):
    zone.mode("shop.test", mode)
    assert dns.rcode.to_text(resolve(zone, "shop.test").rcode()) == rcode


def test_a_mood_can_be_for_one_type_alone(zone):
    zone.mode("mx1.shop.test", ZoneMode.SERVFAIL, "AAAA")
    assert resolve(zone, "mx1.shop.test", "A").rcode() == dns.rcode.NOERROR
    assert resolve(zone, "mx1.shop.test", "AAAA").rcode() == dns.rcode.SERVFAIL


def test_an_answer_to_another_question_is_recognized(zone):
    zone.mode("shop.test", ZoneMode.WRONG_QUESTION)
    question = dns.message.make_query("shop.test", "MX", id=0)
    answer = zone.answer(question.to_wire())
    assert isinstance(answer, bytes)
    assert not question.is_response(dns.message.from_wire(answer))


@pytest.mark.parametrize(
    "mode", [ZoneMode.HANG, ZoneMode.HTML, ZoneMode.HTTP_ERROR, ZoneMode.UNREACHABLE]
)
def test_faults_that_no_message_can_express_are_behaviours(zone, mode):
    zone.mode("shop.test", mode)
    assert zone.answer(dns.message.make_query("shop.test", "MX").to_wire()) is mode


def test_octets_that_are_no_question_are_refused(zone):
    with pytest.raises(ValueError, match="not a DNS question"):
        zone.answer(b"GET / HTTP/1.1")


def test_addresses_can_rotate(zone):
    zone.host("mx.turning.test", "192.0.2.1", "192.0.2.2", "192.0.2.3")
    zone.rotate("mx.turning.test")
    seen = [
        [rr.address for rr in resolve(zone, "mx.turning.test", "A").answer[0]] for _ in range(4)
    ]
    assert seen == [["192.0.2.1"], ["192.0.2.2"], ["192.0.2.3"], ["192.0.2.1"]]


def test_questions_are_counted(zone):
    for kind in ("MX", "MX", "A"):
        resolve(zone, "Shop.test", kind)
    assert zone.queries == {("shop.test", "MX"): 2, ("shop.test", "A"): 1}


def statuses(zone: Zone, count: int, *names: str) -> list[int]:
    """The statuses of HTTP with which the zone answers so many questions; -2 is SERVFAIL."""
    found = []
    for number in range(count):
        name = names[number % len(names)] if names else "shop.test"
        answer = zone.answer(dns.message.make_query(name, "MX").to_wire())
        if isinstance(answer, Unavailable):
            found.append(answer.status)
        else:
            assert isinstance(answer, bytes)
            found.append(200 if dns.message.from_wire(answer).rcode() == 0 else -2)
    return found


@pytest.mark.parametrize(
    ("faults", "found"),
    [
        ({}, [200] * 6),
        ({"servfail_first": 1}, [-2, -2, 200, 200, 200, 200]),
        ({"servfail_first": 2}, [-2, -2, -2, -2, 200, 200]),
        ({"unavailable_first": 2}, [503, 503, 200, 200, 200, 200]),
        ({"limited_first": 2}, [429, 429, 200, 200, 200, 200]),
        ({"limited_every": 3}, [200, 200, 429, 200, 200, 429]),
        ({"limited_every": 1}, [429] * 6),
        ({"per_second": 4}, [200, 200, 200, 200, 429, 429]),
        ({"servfail_first": 1, "unavailable_first": 1}, [503, -2, -2, 200, 200, 200]),
        ({"limited_every": 1, "kinds": frozenset({"A"})}, [200] * 6),
    ],
)
def test_faults_count_the_questions(zone, faults, found):
    zone.mx("other.test", "mx1.shop.test")
    zone.faults = ResolverFaults(now=lambda: 5.0, **faults)
    assert statuses(zone, 6, "shop.test", "other.test") == found


@pytest.mark.parametrize(
    ("retry_after", "text"),
    [
        (RetryAfter.SECONDS, "7"),
        (RetryAfter.DATE, "Thu, 01 Jan 1970 00:00:12 GMT"),
    ],
)
def test_a_refusal_asks_for_a_pause(zone, retry_after, text):
    zone.faults = ResolverFaults(
        limited_first=1, retry_after_s=7, retry_after=retry_after, now=lambda: 5.0
    )
    answer = zone.answer(dns.message.make_query("shop.test", "MX").to_wire())
    assert answer == Unavailable(429, "Thu, 01 Jan 1970 00:00:05 GMT", text)


async def test_the_transport_acts_out_what_the_zone_says(autojump_clock):
    async with open_fake_network() as network:
        query = dns.message.make_query("shop.test", "MX", id=0)
        network.add("shop.test", MailHost())
        network.transport.endpoints["https://slow.test/"] = FakeEndpoint(delay_s=2.0)
        start = trio.current_time()
        answer = dns.message.from_wire(
            await network.transport.exchange("https://slow.test/", query.to_wire())
        )
        assert trio.current_time() - start == 2.0
        assert texts(answer) == ["shop.test. MX 10 mx.shop.test."]
        network.zone.mode("shop.test", ZoneMode.HTML)
        assert await network.transport.exchange(URL, query.to_wire()) == HTML
        network.zone.mode("shop.test", ZoneMode.UNREACHABLE)
        with pytest.raises(ConnectionError):
            await network.transport.exchange(URL, query.to_wire())
        network.zone.mode("shop.test", ZoneMode.HANG)
        with pytest.raises(trio.TooSlowError), trio.fail_after(1000):
            await network.transport.exchange(URL, query.to_wire())
        network.transport.endpoints[URL] = FakeEndpoint(mode=ZoneMode.SERVFAIL)
        failed = dns.message.from_wire(await network.transport.exchange(URL, query.to_wire()))
        assert failed.rcode() == dns.rcode.SERVFAIL
        assert network.transport.exchanged[URL] == 4


async def test_domains_can_share_hosts_and_have_several(autojump_clock):
    async with open_fake_network() as network:
        shared, spare = MailHost(), MailHost()
        first = network.add("a.test", shared, mx="mx.hub.test")
        assert network.add("b.test", shared, mx="mx.hub.test") == first
        assert network.add("b.test", spare, preference=20, mx="mx2.hub.test") != first
        assert texts(resolve(network.zone, "b.test")) == [
            "b.test. MX 10 mx.hub.test.",
            "b.test. MX 20 mx2.hub.test.",
        ]
        assert texts(resolve(network.zone, "mx.hub.test", "A")) == [f"mx.hub.test. A {first}"]


def test_a_name_fails_for_its_first_queries_alone(zone: Zone) -> None:
    zone.mode("mx1.shop.test", ZoneMode.SERVFAIL, "A", times=1)
    rcodes = [resolve(zone, "mx1.shop.test", kind).rcode() for kind in ("AAAA", "A", "A")]
    assert rcodes == [dns.rcode.NOERROR, dns.rcode.SERVFAIL, dns.rcode.NOERROR]
    zone.forget()
    assert resolve(zone, "mx1.shop.test", "A").rcode() == dns.rcode.SERVFAIL
