"""Look-ups of the addresses of a host and of its names, in virtual time."""

import pytest
import trio

from mailprobe.engine.dns.messages import (
    Addresses,
    LookupFailed,
    NoAddress,
)
from mailprobe.engine.dns.resolver import HEDGE_S
from tests.engine.dns.scripted_endpoints import (
    EMPTY,
    FIRST,
    NXDOMAIN,
    SERVFAIL,
    SILENT,
    Endpoints,
    Says,
    address,
    open_test,
)

FOUR, SIX = "900 A 11.0.0.9", "700 AAAA 2a00::9"
PRIVATE_FOUR, PRIVATE_SIX = "900 A 10.0.0.9", "900 AAAA fd00::9"
IPV4, IPV6 = FOUR.split()[2], SIX.split()[2]


ADDRESSES = {
    "IPv4 is enough": ({"A": address(FOUR)}, Addresses((IPV4,), 900), ["A"]),
    "one public is enough": (
        {"A": address(PRIVATE_FOUR, FOUR)},
        Addresses(("10.0.0.9", IPV4), 900),
        ["A"],
    ),
    "IPv6 alone": ({"A": EMPTY, "AAAA": address(SIX)}, Addresses((IPV6,), 0), ["A", "AAAA"]),
    "private, and IPv6": (
        {"A": address(PRIVATE_FOUR), "AAAA": address(SIX)},
        Addresses(("10.0.0.9", IPV6), 700),
        ["A", "AAAA"],
    ),
    "private, no IPv6": (
        {"A": address(PRIVATE_FOUR), "AAAA": EMPTY},
        Addresses(("10.0.0.9",), 0),
        ["A", "AAAA"],
    ),
    "none": (
        {"A": EMPTY, "AAAA": EMPTY},
        NoAddress("no A records, no AAAA records", 0),
        ["A", "AAAA"],
    ),
    "no such name": ({"A": NXDOMAIN, "AAAA": NXDOMAIN}, NoAddress("NXDOMAIN", 0), ["A", "AAAA"]),
    "IPv4 unknown, IPv6": (
        {"A": SERVFAIL, "AAAA": address(SIX)},
        Addresses((IPV6,), 700),
        ["A", "AAAA"],
    ),
    "IPv4 unknown, no IPv6": (
        {"A": SERVFAIL, "AAAA": EMPTY},
        LookupFailed("11.0.0.1: SERVFAIL"),
        ["A", "AAAA"],
    ),
    "no IPv4, IPv6 unknown": (
        {"A": EMPTY, "AAAA": SERVFAIL},
        LookupFailed("11.0.0.1: SERVFAIL"),
        ["A", "AAAA"],
    ),
    "private, IPv6 unknown": (
        {"A": address(PRIVATE_FOUR), "AAAA": SERVFAIL},
        LookupFailed("11.0.0.1: SERVFAIL"),
        ["A", "AAAA"],
    ),
}


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize(("script", "reported", "asked"), ADDRESSES.values(), ids=ADDRESSES)
async def test_the_addresses_of_an_exchange(
    autojump_clock, script, reported, asked, deferred_start
):
    """A list asks for IPv6 where IPv4 is no help; whose clock runs asks for both together.

    A failure is asked about again, and is not kept.
    """
    endpoints = Endpoints(script)
    async with open_test(endpoints, FIRST) as routes:
        assert routes.cached_addresses("MX.test") is None
        assert await routes.addresses("MX.test", deferred_start=deferred_start) == reported
        failed = isinstance(reported, LookupFailed)
        assert routes.cached_addresses("mx.test") == (None if failed else reported)
        kinds = list(dict.fromkeys(kind for _, _, kind in endpoints.asked if kind != "NS"))
        assert kinds == asked if deferred_start else sorted(kinds) == ["A", "AAAA"]


async def test_a_silent_look_up_of_the_other_family_delays_nobody(autojump_clock):
    endpoints = Endpoints({"A": address(FOUR), "AAAA": SILENT})
    async with open_test(endpoints, FIRST) as routes:
        began = trio.current_time()
        assert await routes.addresses("mx.test") == Addresses((IPV4,), 900)
        assert trio.current_time() == began
        await trio.sleep(HEDGE_S + 0.01)
        assert endpoints.at_once == 0  # and it is given up soon


async def test_six_will_do_where_the_clock_runs_out_over_four(autojump_clock):
    endpoints = Endpoints({"A": SILENT, "AAAA": address(SIX)})
    async with open_test(endpoints, FIRST) as routes:
        began = trio.current_time()
        assert await routes.addresses("mx.test") == Addresses((IPV6,), 700)
        assert trio.current_time() - began == pytest.approx(1.5)


async def test_a_private_address_is_enough_where_private_ones_are_allowed(autojump_clock):
    endpoints = Endpoints({"A": address(PRIVATE_FOUR)})
    async with open_test(endpoints, FIRST, allow_private=True) as routes:
        assert await routes.addresses("mx.test", deferred_start=True) == Addresses(
            ("10.0.0.9",), 900
        )
        assert [kind for _, _, kind in endpoints.asked] == ["A"]


ALL_ADDRESSES = {
    "both": ({"A": address(FOUR), "AAAA": address(SIX)}, Addresses((IPV4, IPV6), 700)),
    "IPv4 alone": ({"A": address(FOUR), "AAAA": EMPTY}, Addresses((IPV4,), 0)),
    "IPv6 alone": ({"A": EMPTY, "AAAA": address(SIX)}, Addresses((IPV6,), 0)),
    "public beside private": (
        {"A": address(FOUR, PRIVATE_FOUR), "AAAA": address(PRIVATE_SIX)},
        Addresses((IPV4, "10.0.0.9", "fd00::9"), 900),
    ),
    "none": ({"A": EMPTY, "AAAA": EMPTY}, NoAddress("no A records, no AAAA records", 0)),
    "no such name": ({"A": NXDOMAIN, "AAAA": NXDOMAIN}, NoAddress("NXDOMAIN", 0)),
    "IPv4 unknown": (
        {"A": SERVFAIL, "AAAA": address(SIX)},
        LookupFailed("11.0.0.1: SERVFAIL"),
    ),
    "IPv6 unknown": (
        {"A": address(FOUR), "AAAA": SERVFAIL},
        LookupFailed("11.0.0.1: SERVFAIL"),
    ),
}


@pytest.mark.parametrize(("script", "reported"), ALL_ADDRESSES.values(), ids=ALL_ADDRESSES)
async def test_all_addresses_that_a_host_has_now(autojump_clock, script, reported):
    async with open_test(Endpoints(script), FIRST) as routes:
        assert await routes.addresses_now("Hooks.test") == reported


async def test_current_addresses_are_looked_up_each_time_and_not_cached(autojump_clock):
    endpoints = Endpoints({"A": address(FOUR), "AAAA": EMPTY})
    async with open_test(endpoints, FIRST) as routes:
        await routes.addresses("mx.test", deferred_start=True)
        endpoints.script["A"] = address(PRIVATE_FOUR)
        for _ in range(2):
            found = await routes.addresses_now("mx.test")
            assert isinstance(found, Addresses)
            assert found.ips == ("10.0.0.9",)
        assert [kind for _, _, kind in endpoints.asked] == ["A", *["A", "AAAA"] * 2]
        kept = routes.cached_addresses("mx.test")
        assert isinstance(kept, Addresses)
        assert kept.ips == (IPV4,)


@pytest.mark.parametrize(
    ("script", "kept_s"),
    [
        ({"A": address("0 A 11.0.0.9")}, 300),
        ({"A": address("1000 A 11.0.0.9")}, 1000),
        ({"A": address("999999 A 11.0.0.9")}, 6 * 3600),
        ({"A": EMPTY, "AAAA": EMPTY}, 300),
        ({"A": SERVFAIL, "AAAA": address(SIX)}, 5),
    ],
)
async def test_addresses_are_kept_by_their_ttl_within_bounds(autojump_clock, script, kept_s):
    async with open_test(Endpoints(script), FIRST) as routes:
        reported = await routes.addresses("mx.test")
        await trio.sleep(kept_s - 1)
        assert routes.cached_addresses("mx.test") == reported
        await trio.sleep(1.1)
        assert routes.cached_addresses("mx.test") is None


async def test_the_names_of_an_address_are_looked_up(autojump_clock):
    endpoints = Endpoints({"PTR": Says(("60 PTR mail.shop.test.",))})
    async with open_test(endpoints, FIRST) as routes:
        assert await routes.pointers("11.0.0.9") == ("mail.shop.test",)
        endpoints.script["PTR"] = NXDOMAIN
        assert await routes.pointers("11.0.0.9") == ()
        endpoints.script["PTR"] = SERVFAIL
        assert isinstance(await routes.pointers("11.0.0.9"), LookupFailed)
