"""Visitors: one network each, behind trusted proxies too, and so many checks a minute."""

from ipaddress import ip_network

import pytest
import trio

from mailprobe.api.forms import visitors
from mailprobe.api.forms.visitors import VisitorLimit, network_of, visitor_address

TRUSTED = (ip_network("10.0.0.0/24"), ip_network("2001:db8:1::1"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::9", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("", "no address", False),
    ],
)
def test_a_visitor_is_an_ipv4_address_or_an_ipv6_network_of_64_bits(one, other, same):
    assert (network_of(one) == network_of(other)) is same


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "address"),
    [
        ("192.0.2.1", "", "192.0.2.1"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),  # nobody's proxy
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.1", "198.51.100.1"),  # the first is the client's
        ("10.0.0.1", "203.0.113.9, 198.51.100.1 ,10.0.0.2", "198.51.100.1"),
        ("2001:db8:1::1", "2001:DB8::7", "2001:db8::7"),
        ("10.0.0.1", "198.51.100.1, unknown", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2," * 1000, "10.0.0.1"),
        ("10.0.0.1", "2001:db8::7%<b>a zone is any text", "2001:db8::7"),
        ("::ffff:192.0.2.1", "", "192.0.2.1"),  # of a socket for IPv4 and IPv6
        ("10.0.0.1", "::ffff:198.51.100.1", "198.51.100.1"),
        ("", "198.51.100.1", ""),
    ],
)
def test_a_header_is_believed_as_far_as_trusted_proxies_wrote_it(peer, forwarded_for, address):
    assert visitor_address(peer, forwarded_for, TRUSTED) == address


async def test_a_visitor_has_a_minutes_checks_and_then_one_after_the_other(autojump_clock):
    limit = VisitorLimit()
    waits = [limit.wait_s("key", "192.0.2.1", 20) for _ in range(21)]
    assert waits[:20] == [0.0] * 20
    assert 0 < waits[20] <= 3.0
    assert limit.wait_s("key", "192.0.2.2", 20) == 0.0
    assert limit.wait_s("other key", "192.0.2.1", 20) == 0.0
    for _ in range(3):
        await trio.sleep(waits[20])
        assert limit.wait_s("key", "192.0.2.1", 20) == 0.0
        assert limit.wait_s("key", "192.0.2.1", 20) > 0.0


async def test_the_longest_idle_visitor_is_forgotten_first(autojump_clock, monkeypatch):
    monkeypatch.setattr(visitors, "VISITORS_MAX", 2)
    limit = VisitorLimit()
    assert [limit.wait_s("key", f"192.0.2.{n}", 1) for n in (1, 2, 3)] == [0.0] * 3
    assert limit.wait_s("key", "192.0.2.3", 1) > 0.0
    assert limit.wait_s("key", "192.0.2.1", 1) == 0.0
