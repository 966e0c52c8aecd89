"""The addresses that the verifiers are compared on: six kinds with an undisputed answer.

The firms' domains are under example.com, example.net and example.org (RFC 2606),
because one of the peers takes no domain whose ending is not in the public
suffix list, as .test is not. The throwaway domains are real ones that the
lists of all verifiers hold, where they have a list. International addresses,
greylisting, hosts that block or stall are left out: a verifier may think of
them what it likes.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from ..lab.scenario import Scenario
from ..world.host_profiles import new_host
from .runner import BAD, CATCH_ALL, GOOD, UNSURE

# kind of address -> the answers that are right
RIGHT: Mapping[str, frozenset[str]] = {
    "deliverable": frozenset({GOOD}),
    "unknown mailbox": frozenset({BAD}),
    "catch-all": frozenset({CATCH_ALL, UNSURE}),  # the host would take anything: no plain yes
    "throwaway": frozenset({BAD}),
    "syntax": frozenset({BAD}),
    "no MX": frozenset({BAD}),
}
LATENCY_S = 0.02  # of a reply, in the list
LATENCY_ONE_DOMAIN_S = 0.05
ONE_DOMAIN = "slow.example.com"
ONE_DOMAIN_ADDRESSES = 50

SERVERS = ("postfix", "exim", "opensmtpd", "exchange", "google")
FIRMS = 20
STAFF = ("ann", "ben", "clara", "david", "emma")
LEAVERS = ("finn", "grace")
CATCH_ALL_FIRMS = 4
THROWAWAY = (
    *("mailinator.com", "guerrillamail.com", "yopmail.com"),
    *("10minutemail.com", "sharklasers.com"),
)
THROWAWAY_NAMES = STAFF[:4]
NO_MX_DOMAINS = 10
NOT_ADDRESSES = (
    "ann.miller",
    "@firm00.example.com",
    "ann..baker@firm00.example.com",
    "ben@",
    "clara@@firm01.example.net",
    "david dunne@firm02.example.org",
    ".finn@firm03.example.com",
    "grace.@firm04.example.net",
    "hugo@-willow-.example.org",
    f"{'j' * 65}@firm05.example.org",
)


class PeerDomains(Struct):
    """A scenario with its two workloads, each address with its kind."""

    scenario: Scenario = field(default_factory=Scenario)
    a_list: dict[str, str] = field(default_factory=dict)
    one_domain: dict[str, str] = field(default_factory=dict)


def build() -> PeerDomains:
    fixture_domains = PeerDomains()
    _open_firms(fixture_domains)
    _open_catch_alls(fixture_domains)
    _open_throwaways(fixture_domains)
    _leave_without_mail(fixture_domains)
    fixture_domains.a_list |= dict.fromkeys(NOT_ADDRESSES, "syntax")
    host = new_host("plain", f"mx1.{ONE_DOMAIN}", latency_s=LATENCY_ONE_DOMAIN_S)
    fixture_domains.scenario.move_in(ONE_DOMAIN, host)
    for number in range(ONE_DOMAIN_ADDRESSES):
        fixture_domains.one_domain[f"known.{number:02}@{ONE_DOMAIN}"] = "deliverable"
    return fixture_domains


def _domain(name: str, place: int) -> str:
    return f"{name}{place:02}.example.{('com', 'net', 'org')[place % 3]}"


def _open_firms(fixture_domains: PeerDomains) -> None:
    for place in range(FIRMS):
        domain = _domain("firm", place)
        server, people = SERVERS[place % len(SERVERS)], frozenset(STAFF)
        host = new_host(server, f"mx1.{domain}", mailboxes=people, latency_s=LATENCY_S)
        fixture_domains.scenario.move_in(domain, host)
        fixture_domains.a_list |= {f"{name}@{domain}": "deliverable" for name in STAFF}
        fixture_domains.a_list |= {f"{name}@{domain}": "unknown mailbox" for name in LEAVERS}


def _open_catch_alls(fixture_domains: PeerDomains) -> None:
    for place in range(CATCH_ALL_FIRMS):
        domain = _domain("every", place)
        host = new_host("catch all", f"mx1.{domain}", latency_s=LATENCY_S)
        fixture_domains.scenario.move_in(domain, host)
        fixture_domains.a_list |= {f"{name}@{domain}": "catch-all" for name in STAFF}


def _open_throwaways(fixture_domains: PeerDomains) -> None:
    """Their hosts take mail for anybody, as they do in the field."""
    for domain in THROWAWAY:
        host = new_host("catch all", f"mx1.{domain}", latency_s=LATENCY_S)
        fixture_domains.scenario.move_in(domain, host)
        fixture_domains.a_list |= {f"{name}@{domain}": "throwaway" for name in THROWAWAY_NAMES}


def _leave_without_mail(fixture_domains: PeerDomains) -> None:
    """By turns a null MX (RFC 7505), a name with no record at all, and no such name."""
    zone = fixture_domains.scenario.zone
    for place in range(NO_MX_DOMAINS):
        domain = _domain("nomail", place)
        if place % 3 == 0:
            zone.null_mx(domain)
        elif place % 3 == 1:
            zone.exists(domain)
        fixture_domains.a_list[f"ann@{domain}"] = "no MX"
