"""Callbacks: which addresses a delivery may connect to, and in which order."""

import random
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from mailprobe.api.jobs.delivery import (
    open_webhook_sender,
)
from mailprobe.bench.world.fake_network import FakeTransport
from mailprobe.bench.world.zone import Zone, ZoneMode
from mailprobe.engine.dns.messages import AddressAnswer, Addresses
from mailprobe.engine.dns.routes import open_routes
from mailprobe.engine.net.tcp import CannotConnect
from mailprobe.engine.settings import EngineSettings
from tests.api.jobs.delivery_fixture import (
    HOST,
    NO_ANSWER,
    PUBLIC,
    deliver,
    finds,
    open_listener,
    open_local,
    open_receiver,
    says,
)
from tests.engine.net.test_public_addresses import NO_ADDRESSES, NOT_PUBLIC

pytestmark = pytest.mark.usefixtures("names_are_never_resolved")

# -- allowed addresses ------------------------------------------------------------------------


@dataclass
class CountingServer:
    """A loopback server that counts its connections."""

    connections: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        await stream.aclose()


@pytest.mark.parametrize("family", ["127.0.0.1", "::1"])
@pytest.mark.parametrize(
    "others", [(), (PUBLIC,), (PUBLIC, "2620:fe::fe")], ids=["alone", "one", "two"]
)
async def test_not_one_connection_is_made_to_a_host_that_is_not_public(ca_file, family, others):
    """Neither to its private address nor to the public ones beside it."""
    at_home, dialled = CountingServer(), []

    async def dial(address: str, port: int) -> trio.abc.Stream:
        dialled.append(address)
        raise CannotConnect("connection refused")

    async with open_listener(at_home.serve, None, family) as port:
        for ips in ((*others, family), (family, *others)):
            for chosen in (None, dial):
                async with open_webhook_sender(
                    finds(*ips), allow_private=False, ca_file=ca_file, dial=chosen
                ) as webhook_sender:
                    assert (await deliver(webhook_sender, port)).error == (
                        "the host has an address that is not public"
                    )
    assert dialled == []
    assert at_home.connections == 0


@pytest.mark.parametrize("ip", [*NOT_PUBLIC, *NO_ADDRESSES])
async def test_no_kind_of_address_that_is_not_public_is_dialled(ca_file, ip):
    dialled = []

    async def dial(address: str, port: int) -> trio.abc.Stream:
        dialled.append(address)
        raise CannotConnect("connection refused")

    for ips in ((ip,), (PUBLIC, ip), (ip, PUBLIC), (PUBLIC, "2620:fe::fe", ip)):
        async with open_webhook_sender(
            finds(*ips), allow_private=False, ca_file=ca_file, dial=dial
        ) as webhook_sender:
            delivered = await deliver(webhook_sender, 443)
            assert (delivered.status, delivered.error) == (
                None,
                "the host has an address that is not public",
            )
    assert dialled == []


async def test_a_name_that_changes_between_look_ups_gains_nothing(ca_file):
    """The sender connects to the addresses that it checked, without a second look-up."""
    reported = [(PUBLIC,), ("127.0.0.1",), (PUBLIC,), (PUBLIC, "127.0.0.1")]
    looked_up, dialled = [], []
    at_home = CountingServer()

    async def find(name: str) -> AddressAnswer:
        looked_up.append(name)
        return Addresses(reported[len(looked_up) - 1], 0)

    async def dial(address: str, port: int) -> trio.abc.Stream:
        dialled.append(address)
        raise CannotConnect("connection refused")

    async with (
        open_listener(at_home.serve, None) as port,
        open_webhook_sender(
            find, allow_private=False, ca_file=ca_file, dial=dial
        ) as webhook_sender,
    ):
        errors = [(await deliver(webhook_sender, port)).error for _ in reported]
    assert errors == ["connection refused", "the host has an address that is not public"] * 2
    assert len(looked_up) == len(reported)
    assert dialled == [PUBLIC, PUBLIC]
    assert at_home.connections == 0


async def test_where_private_addresses_are_allowed_names_are_still_none(ca_file):
    async with open_webhook_sender(
        finds("localhost"), allow_private=True, ca_file=ca_file
    ) as webhook_sender:
        assert (await deliver(webhook_sender, 443)).error == "not an IP address: 'localhost'"


@asynccontextmanager
async def open_zone(zone: Zone, ca_file: str, *, allow_private: bool):
    """Open a webhook sender with the engine's own resolver on a table of names."""
    settings = EngineSettings(doh_urls=("https://11.0.0.9/q",), allow_private=allow_private)
    async with (
        open_routes(settings, transport=FakeTransport(zone), rng=random.Random(1)) as routes,
        open_webhook_sender(
            routes.addresses_now, allow_private=allow_private, ca_file=ca_file
        ) as webhook_sender,
    ):
        yield webhook_sender


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("11.0.0.1", "127.0.0.1"),
        ("11.0.0.1", "::1"),
        ("11.0.0.1", "::ffff:127.0.0.1"),
    ],
)
async def test_the_engines_resolver_looks_up_both_kinds(ca_file, addresses):
    """A probe prefers IPv4 addresses; for a callback, IPv6 ones must be public too."""
    zone, at_home = Zone(), CountingServer()
    zone.host("real.test", *addresses)
    zone.cname(HOST, "real.test")
    async with (
        open_listener(at_home.serve, None) as port,
        open_zone(zone, ca_file, allow_private=False) as webhook_sender,
    ):
        delivered = await deliver(webhook_sender, port)
    assert delivered.error == "the host has an address that is not public"
    assert at_home.connections == 0


async def test_a_change_of_address_is_followed_at_once(authority, ca_file):
    zone = Zone()
    zone.host(HOST, "127.0.0.2", ttl_s=86_400)
    async with (
        open_receiver(authority) as receiver,
        open_zone(zone, ca_file, allow_private=True) as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).error == "connection refused"
        zone.host(HOST, "127.0.0.1")
        assert (await deliver(webhook_sender, receiver.port)).status == 204


NAMES = {
    "there is none": (ZoneMode.NXDOMAIN, "the host has no address: NXDOMAIN"),
    "nobody knows": (ZoneMode.SERVFAIL, "the look-up failed: 11.0.0.9: SERVFAIL"),
    "garbage": (ZoneMode.GARBAGE, "the look-up failed: 11.0.0.9: "),
}


@pytest.mark.parametrize("what", NAMES)
async def test_a_name_that_leads_nowhere(ca_file, what):
    mood, words = NAMES[what]
    zone = Zone()
    zone.mode(HOST, mood)
    async with open_zone(zone, ca_file, allow_private=False) as webhook_sender:
        delivered = await deliver(webhook_sender, 443)
        assert delivered.status is None
        assert delivered.error is not None
        assert delivered.error.startswith(words)


async def test_the_next_address_is_tried_where_one_cannot_be_connected_to(authority, ca_file):
    async with open_receiver(authority) as receiver:
        async with open_local(ca_file, "127.0.0.2", "127.0.0.3", "127.0.0.1") as webhook_sender:
            assert (await deliver(webhook_sender, receiver.port)).status == 204
        async with open_local(ca_file, "127.0.0.2", "127.0.0.3") as webhook_sender:
            assert (await deliver(webhook_sender, receiver.port)).error == "connection refused"


async def test_a_body_that_was_sent_is_not_sent_to_the_next_address(authority, ca_file):
    async with (
        open_receiver(authority, says()) as receiver,
        open_local(ca_file, "127.0.0.1", "127.0.0.1") as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).error == NO_ANSWER
        assert receiver.connections == 1
