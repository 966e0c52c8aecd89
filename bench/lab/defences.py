"""Lists of addresses at hosts that defend themselves, each with its product's defaults.

Two lists in the shares that business lists have: 35 % of the domains behind gateways, 25 %
at a provider like Google's, 25 % at one like Microsoft's, 15 % at servers of their own or at
hosting companies. Beside them 40 living addresses, one a domain, at one shared host of each
kind; slow hosts; and shared hosts that are slow or near.

The providers' and gateways' exchanges have names under the real operators' endings, so that
a client may treat them as it treats those. Every truth is known. The hosts count an hour by
the real clock, so refusals beyond a host's hour cannot be asked about in one run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from msgspec import Struct

from ..world.defended_hosts import DEFENDED_HOSTS, defended_host
from ..world.faults import Late
from ..world.host_profiles import EXCHANGE, new_host
from ..world.mail_host import MailHost
from .internet import LIVING, SENDER
from .scenario import Scenario, Truth
from .sequences import NAMES, OUTCOMES

AWAY_S = (0.03, 0.05, 0.07, 0.09)  # the round trips to hosts of the lists
GROUP_AWAY_S = 0.03

# -- what there is to ask ----------------------------------------------------------------------


class ListShape(Struct, frozen=True):
    """A list: how long it is, of how many domains, and the share of its addresses that is bad."""

    name: str  # of its group, and in its domains' names
    addresses: int
    domains: int
    bad_share: float


LISTS = (ListShape("first", 10_000, 2_500, 0.05), ListShape("second", 20_000, 2_000, 0.08))

GATEWAY_KINDS = ("forcepoint", "cisco", "trendmicro")
ACCEPTS_ALL = "-accepts-all"
# three gateways of each kind; the last one of each accepts everybody
GATEWAY_NAMES: Mapping[str, str] = {
    "forcepoint": "cust{}-s.in.mailcontrol.com",
    "cisco": "mx1.hc{}.iphmx.com",
    "trendmicro": "shop{}.in.tmes.trendmicro.com",
}
GATEWAYS_EACH = 3
SHARES = {"gateway": 0.35, "google-like": 0.25, "microsoft-like": 0.25}  # others: the rest
HOSTING_HOSTS = 15  # cPanel's: shared by 40 % of the others' domains
OTHER_KINDS = (
    "fail2ban",
    "mdaemon",
    "exim-recipe",
    "kerio",
    "exchange",
    "postscreen",
    "postfix",
    "exim",
)
HOSTED_OF_TEN = 4

PREFERENCE = 10  # of an only exchange
GOOGLE_EXCHANGES = {
    "aspmx.l.google.com": 1,
    "alt1.aspmx.l.google.com": 5,
    "alt2.aspmx.l.google.com": 5,
    "alt3.aspmx.l.google.com": 10,
    "alt4.aspmx.l.google.com": 10,
}
MICROSOFT_REFUSALS = (
    "550 5.4.1 Recipient address rejected: Access denied. "
    "[AM0PR01MB0001.eurprd01.prod.exchangelabs.com]",
    EXCHANGE.default_unknown,
)
MICROSOFT_ADDRESSES, MICROSOFT_SHOWN = 6, 3  # of a region, and of one exchange's name

LIVING_OF_ONE_HOST = 40
ONE_HOST = "one-host-"  # beginning of these groups' names; the kind follows
SLOW = "slow-"
SLOW_ADDRESSES, SLOW_BAD = 20, 2
SLOW_HOSTS: Mapping[str, MailHost] = {
    "banner": MailHost(faults={"CONNECT": Late(1.5)}),
    "postscreen": DEFENDED_HOSTS["postscreen"],
    "callout": MailHost(slow_s={"": 1.5}),
    "replies": MailHost(latency_s=1.2),
    "tarpit-1500-ms": MailHost(unknown_delay_s=1.5, sleeps_on=True),
    "tarpit-5-s": DEFENDED_HOSTS["exchange"],
}
FAR, NEAR = "far-host", "near-host"
SHARED_HOSTS = {FAR: (50, 0.3), NEAR: (200, 0.02)}  # domains of two addresses, round trip
STRANGERS_WAIT = "slow host"  # why a request cannot know: the host answers after its clock


class MailRoute(Struct, frozen=True):
    """Where a domain's mail goes, and what kind of host that is."""

    kind: str
    exchanges: tuple[tuple[int, str], ...]  # (preference, name)

    @property
    def accepts_all(self) -> bool:
        return self.kind.endswith(ACCEPTS_ALL)


# -- hosts -------------------------------------------------------------------------------------


def _settle(scenario: Scenario, kind: str, host: MailHost) -> str:
    """Give the host an address under its name, and return it."""
    scenario.settle(host.name, host)
    (address,) = scenario.zone.names[host.name].addresses
    scenario.kinds[address] = kind
    return address


def _defended(rng: Random, kind: str, name: str, **changes: Any) -> MailHost:
    return defended_host(
        kind, name, **{"mailboxes": LIVING, "latency_s": rng.choice(AWAY_S), **changes}
    )


def _gateways(scenario: Scenario, rng: Random) -> Iterator[MailRoute]:
    for kind in GATEWAY_KINDS:
        for number in range(1, GATEWAYS_EACH + 1):
            name = GATEWAY_NAMES[kind].format(number)
            everybody = number == GATEWAYS_EACH
            shown = f"{kind}{ACCEPTS_ALL}" if everybody else kind
            _settle(scenario, shown, _defended(rng, kind, name, catch_all=everybody))
            yield MailRoute(shown, ((PREFERENCE, name),))


def _google(scenario: Scenario, rng: Random) -> MailRoute:
    for name in GOOGLE_EXCHANGES:
        host = new_host("google", name, mailboxes=LIVING, latency_s=rng.choice(AWAY_S))
        _settle(scenario, "google-like", host)
    pairs = tuple((preference, name) for name, preference in GOOGLE_EXCHANGES.items())
    return MailRoute("google-like", pairs)


def _microsoft(scenario: Scenario, rng: Random) -> list[list[str]]:
    """The addresses of each region; a tenant's exchange shows some of one region's."""
    return [
        [
            _settle(
                scenario,
                "microsoft-like",
                new_host(
                    "exchange", f"mx{number}.region{region}.mail.protection.outlook.com",
                    mailboxes=LIVING, default_unknown=refusal, latency_s=rng.choice(AWAY_S),
                ),
            )
            for number in range(MICROSOFT_ADDRESSES)
        ]
        for region, refusal in enumerate(MICROSOFT_REFUSALS)
    ]  # fmt: skip


class Providers(Struct, frozen=True):
    """Hosts that are shared by the domains of all lists."""

    gateways: list[MailRoute]
    google: MailRoute
    microsoft: list[list[str]]
    hosting: list[MailRoute]

    @classmethod
    def open(cls, scenario: Scenario, rng: Random) -> "Providers":
        hosting = []
        for number in range(1, HOSTING_HOSTS + 1):
            name = f"server{number}.hosting.test"
            _settle(scenario, "cpanel", _defended(rng, "cpanel", name))
            hosting.append(MailRoute("cpanel", ((PREFERENCE, name),)))
        return cls(
            list(_gateways(scenario, rng)),
            _google(scenario, rng),
            _microsoft(scenario, rng),
            hosting,
        )


# -- lists -------------------------------------------------------------------------------------


def add_list(scenario: Scenario, providers: Providers, rng: Random, shape: ListShape) -> None:
    """Add a list's domains and addresses; exact shares, in random order."""
    kinds = list(_kinds(shape.domains))
    rng.shuffle(kinds)
    domains = [
        _add_domain(scenario, providers, rng, kind, f"{number:04}-{shape.name}.test")
        for number, kind in enumerate(kinds)
    ]
    bad = round(shape.addresses * shape.bad_share)
    living = [True] * (shape.addresses - bad) + [False] * bad
    rng.shuffle(living)
    for number, (domain, route) in enumerate(domains):
        lives = living[number :: len(domains)]
        names = rng.sample(NAMES, len(lives))
        for name, lived in zip(names, lives, strict=True):
            local = name if lived else _nobody(rng, name)
            truth = _truth(lived=lived, everybody=route.accepts_all)
            _report(scenario, shape.name, f"{local}@{domain}", truth)


def _kinds(domains: int) -> Iterator[str]:
    left = domains
    for kind, share in SHARES.items():
        left -= round(domains * share)
        yield from [kind] * round(domains * share)
    hosted = left * HOSTED_OF_TEN // 10
    yield from ["cpanel"] * hosted
    for number in range(left - hosted):
        yield OTHER_KINDS[number % len(OTHER_KINDS)]


def _add_domain(
    scenario: Scenario, providers: Providers, rng: Random, kind: str, ending: str
) -> tuple[str, MailRoute]:
    """Choose the route of one domain of this kind; return the domain and its route."""
    match kind:
        case "gateway":
            route = rng.choice(providers.gateways)
        case "google-like":
            route = providers.google
        case "microsoft-like":
            name = f"{kind}-{ending}".replace(".", "-") + ".mail.protection.outlook.com"
            region = rng.choice(providers.microsoft)
            scenario.zone.host(name, *rng.sample(region, MICROSOFT_SHOWN))
            route = MailRoute(kind, ((PREFERENCE, name),))
        case "cpanel":
            route = rng.choice(providers.hosting)
        case _:
            name = f"mx1.{kind}-{ending}"
            _settle(scenario, kind, _defended(rng, kind, name))
            route = MailRoute(kind, ((PREFERENCE, name),))
    domain = f"{route.kind}-{ending}"
    scenario.zone.mx(domain, *route.exchanges)
    return domain, route


def _nobody(rng: Random, name: str) -> str:
    return f"{name}{rng.randrange(70, 100)}"


def _truth(*, lived: bool, everybody: bool = False) -> Truth:
    if everybody:
        return Truth.CATCH_ALL
    return Truth.EXISTS if lived else Truth.ABSENT


def _report(
    scenario: Scenario, group: str, address: str, truth: Truth, *, waits: bool = False
) -> None:
    scenario.groups[group].append(address)
    scenario.truth[truth].append(address)
    if waits:
        scenario.hidden[STRANGERS_WAIT].append(address)
    else:
        scenario.expect(OUTCOMES[truth], address)


# -- groups ------------------------------------------------------------------------------------


def _add_shared_host(
    scenario: Scenario, rng: Random, group: str, host: MailHost, domains: int, addresses: int
) -> None:
    """Domains with living addresses, all at this one host."""
    _settle(scenario, group, host)
    waits = host.defence is not None and host.defence.greet_wait_s > 0
    for number in range(domains):
        domain = f"{group}-{number:04}.test"
        scenario.zone.mx(domain, host.name)
        for name in rng.sample(NAMES, addresses):
            _report(scenario, group, f"{name}@{domain}", Truth.EXISTS, waits=waits)


def _add_slow_host(scenario: Scenario, rng: Random, kind: str, host: MailHost) -> None:
    """One domain at a slow host of its own."""
    group = f"{SLOW}{kind}"
    domain = f"{group}-0000.test"
    _settle(scenario, group, host)
    scenario.zone.mx(domain, host.name)
    for number, name in enumerate(rng.sample(NAMES, SLOW_ADDRESSES)):
        lived = number >= SLOW_BAD
        local = name if lived else _nobody(rng, name)
        _report(scenario, group, f"{local}@{domain}", _truth(lived=lived), waits=True)


def defences(rng: Random) -> Scenario:
    """Both lists, and each group; a group's name begins the names of its domains."""
    scenario = Scenario(mail_from=SENDER)
    providers = Providers.open(scenario, rng)
    for shape in LISTS:
        add_list(scenario, providers, rng, shape)
    for kind in DEFENDED_HOSTS:
        group = f"{ONE_HOST}{kind}"
        host = _defended(rng, kind, f"mx1.{group}.test", latency_s=GROUP_AWAY_S)
        _add_shared_host(scenario, rng, group, host, LIVING_OF_ONE_HOST, 1)
    for kind, slow in SLOW_HOSTS.items():
        away_s = slow.latency_s or GROUP_AWAY_S
        name = f"mx1.{SLOW}{kind}.test"
        host = replace(slow, name=name, mailboxes=LIVING, latency_s=away_s)
        _add_slow_host(scenario, rng, kind, host)
    for group, (domains, away_s) in SHARED_HOSTS.items():
        host = new_host("plain", f"mx1.{group}.test", mailboxes=LIVING, latency_s=away_s)
        _add_shared_host(scenario, rng, group, host, domains, 2)
    return scenario
