"""Scenarios of the lab by name: a zone, mail hosts, and the outcome of each address."""

from collections.abc import Callable, Mapping
from random import Random

import idna
from msgspec import Struct

from mailprobe.engine.verdict import Outcome

from ..world.host_profiles import NO_PTR, new_host
from ..world.mail_host import MailHost
from ..world.zone import ZoneMode
from . import fixture_domains
from .adverse_hosts import adverse
from .dead_host import dead
from .defences import defences
from .internet import internet
from .scenario import Scenario
from .sequences import sequences

HUB_KIND = "hub"  # of the firms that share a provider
HUB_HOSTS = 2


class FirmKind(Struct, frozen=True):
    """What a firm's mail is like, and what its staff's addresses turn out to be."""

    outcome: Outcome
    profile: str = ""  # of its one host
    reports_leavers: bool = False  # does it say that a mailbox is unknown?
    # Where it is not one host.
    settle: Callable[[Scenario, str, frozenset[str]], None] | None = None


def _spare_exchange(scenario: Scenario, domain: str, people: frozenset[str]) -> None:
    good = new_host("plain", f"mx2.{domain}", mailboxes=people)
    scenario.move_in(domain, new_host("refused"), good)


def _slow_first_exchange(scenario: Scenario, domain: str, people: frozenset[str]) -> None:
    good = new_host("plain", f"mx2.{domain}", mailboxes=people)
    scenario.move_in(domain, new_host("silent"), good)


def _refusing_by_policy(scenario: Scenario, domain: str, people: frozenset[str]) -> None:
    scenario.move_in(domain, MailHost(mailboxes=people, default_unknown=NO_PTR))


def _unverifying(scenario: Scenario, domain: str, people: frozenset[str]) -> None:
    unsure = "450 4.1.1 <{rcpt}>: Recipient address rejected: unverified address: try later"
    scenario.move_in(domain, MailHost(mailboxes=people, default_unknown=unsure))


def _relaying(scenario: Scenario, domain: str, _: frozenset[str]) -> None:
    scenario.move_in(domain, MailHost(domains=frozenset()))


def _no_address(scenario: Scenario, domain: str, _: frozenset[str]) -> None:
    scenario.zone.mx(domain, f"mx1.{domain}")


def _exchange_servfail(scenario: Scenario, domain: str, _: frozenset[str]) -> None:
    scenario.zone.mx(domain, f"mx1.{domain}")
    scenario.zone.mode(f"mx1.{domain}", ZoneMode.SERVFAIL)


def _null_mx(scenario: Scenario, domain: str, _: frozenset[str]) -> None:
    scenario.zone.null_mx(domain)


def _no_records(scenario: Scenario, domain: str, _: frozenset[str]) -> None:
    scenario.zone.exists(domain)


def _no_such_name(scenario: Scenario, domain: str, _: frozenset[str]) -> None:
    scenario.zone.mode(domain, ZoneMode.NXDOMAIN)


def _alias_loop(scenario: Scenario, domain: str, _: frozenset[str]) -> None:
    scenario.zone.cname(domain, f"www.{domain}")
    scenario.zone.cname(f"www.{domain}", domain)


def _mode(mode: ZoneMode) -> Callable[[Scenario, str, frozenset[str]], None]:
    def settle(scenario: Scenario, domain: str, _: frozenset[str]) -> None:
        scenario.zone.mode(domain, mode)

    return settle


GOOD = (
    *("postfix", "exim", "opensmtpd", "exchange", "google"),
    *("helo only", "no pipelining", "one recipient", "one recipient declared"),
    *("far away", "splitting", "latin-1"),
)
FAILING = (
    *("refused", "closing", "closing at ehlo", "closing at mail", "closing in mid reply"),
    *("shutting down", "shutting down at rcpt", "blocked at banner", "blocked at mail"),
    *("garbage", "resetting", "endless ehlo"),
)
OUTLASTING = ("silent", "unanswered", "dripping", "stalling at rcpt", "late")

KINDS: Mapping[str, FirmKind] = {
    **{name: FirmKind(Outcome.DELIVERABLE, name, reports_leavers=True) for name in GOOD},
    "spare exchange": FirmKind(Outcome.DELIVERABLE, reports_leavers=True, settle=_spare_exchange),
    "slow first exchange": FirmKind(Outcome.DELIVERABLE, settle=_slow_first_exchange),
    "free provider": FirmKind(Outcome.DELIVERABLE, "postfix", reports_leavers=True),
    "catch all": FirmKind(Outcome.CATCH_ALL, "catch all"),
    "wary": FirmKind(Outcome.DELIVERABLE_UNTESTED, settle=_refusing_by_policy),
    "unverifying": FirmKind(Outcome.DELIVERABLE_UNTESTED, settle=_unverifying),
    "greylisting": FirmKind(Outcome.TEMPORARY, "greylisting"),
    "not now": FirmKind(Outcome.TEMPORARY, "not now"),
    "blocklisted": FirmKind(Outcome.REFUSED_BY_POLICY, "blocklisted"),
    "no reverse name": FirmKind(Outcome.REFUSED_BY_POLICY, "no reverse name"),
    "banned": FirmKind(Outcome.REFUSED_BY_POLICY, "banned"),
    "relaying": FirmKind(Outcome.REFUSED_BY_POLICY, settle=_relaying),
    "full": FirmKind(Outcome.MAILBOX_FULL, "full"),
    "over quota": FirmKind(Outcome.MAILBOX_FULL, "over quota"),
    "disabled": FirmKind(Outcome.UNDELIVERABLE, "disabled"),
    **{name: FirmKind(Outcome.CONVERSATION_FAILED, name) for name in FAILING},
    "exchange without address": FirmKind(Outcome.CONVERSATION_FAILED, settle=_no_address),
    **{name: FirmKind(Outcome.TIMED_OUT, name) for name in OUTLASTING},
    "null mx": FirmKind(Outcome.NO_MX, settle=_null_mx),
    "no records": FirmKind(Outcome.NO_MX, settle=_no_records),
    "no such name": FirmKind(Outcome.NO_MX, settle=_no_such_name),
    "servfail": FirmKind(Outcome.RESOLVER_FAILED, settle=_mode(ZoneMode.SERVFAIL)),
    "refused name": FirmKind(Outcome.RESOLVER_FAILED, settle=_mode(ZoneMode.REFUSED)),
    "html": FirmKind(Outcome.RESOLVER_FAILED, settle=_mode(ZoneMode.HTML)),
    "wrong question": FirmKind(Outcome.RESOLVER_FAILED, settle=_mode(ZoneMode.WRONG_QUESTION)),
    "alias loop": FirmKind(Outcome.RESOLVER_FAILED, settle=_alias_loop),
    "exchange servfail": FirmKind(Outcome.RESOLVER_FAILED, settle=_exchange_servfail),
    "throwaway": FirmKind(Outcome.DISPOSABLE, "friendly"),
}


def default(_: Random) -> Scenario:
    """Every outcome, over realistic firms."""
    scenario = Scenario()
    _open_hub(scenario)
    for firm in fixture_domains.FIRMS:
        _open_firm(scenario, firm)
    scenario.expect(Outcome.SYNTAX, *fixture_domains.NOT_ADDRESSES)
    return scenario


def _open_hub(scenario: Scenario) -> None:
    """A provider's two exchanges, which know the staff of all its customers."""
    people = frozenset[str]().union(
        *(_mailboxes(firm) for firm in fixture_domains.FIRMS if firm.kind == HUB_KIND)
    )
    domains = frozenset(
        alabel(firm.domain) for firm in fixture_domains.FIRMS if firm.kind == HUB_KIND
    )
    for place in range(1, HUB_HOSTS + 1):
        name = f"mx{place}.mailhub.test"
        host = new_host("plain", name, mailboxes=people, domains=domains, latency_s=0.01)
        scenario.settle(name, host)


def _open_firm(scenario: Scenario, firm: fixture_domains.Firm) -> None:
    domain, people = alabel(firm.domain), _mailboxes(firm)
    staff = [
        person.address for person in (*fixture_domains.staff(firm), *fixture_domains.offices(firm))
    ]
    if firm.kind == HUB_KIND:
        scenario.zone.mx(domain, *(f"mx{n}.mailhub.test" for n in range(1, HUB_HOSTS + 1)))
        scenario.expect(Outcome.DELIVERABLE, *staff)
        scenario.expect(Outcome.UNDELIVERABLE, *(p.address for p in fixture_domains.leavers(firm)))
    elif firm.kind == "no smtputf8":
        scenario.move_in(domain, new_host("no smtputf8", f"mx1.{domain}", mailboxes=people))
        scenario.expect(Outcome.DELIVERABLE, *staff)
        needing = (f"{local}@{firm.domain}" for local in fixture_domains.INTERNATIONAL)
        scenario.expect(Outcome.NEEDS_SMTPUTF8, *needing)
    elif firm.kind.startswith("provider "):
        exchange = firm.kind.removeprefix("provider ")
        scenario.zone.mx(domain, exchange)
        if exchange not in scenario.zone.names:
            scenario.settle(exchange, new_host("blocklisted", exchange))
        scenario.expect(Outcome.SMTP_BLOCKED, *staff)
    else:
        kind = KINDS[firm.kind]
        if kind.settle is not None:
            kind.settle(scenario, domain, people)
        else:
            scenario.move_in(domain, new_host(kind.profile, f"mx1.{domain}", mailboxes=people))
        scenario.expect(kind.outcome, *staff)
        if kind.reports_leavers:
            scenario.expect(
                Outcome.UNDELIVERABLE, *(p.address for p in fixture_domains.leavers(firm))
            )


def _mailboxes(firm: fixture_domains.Firm) -> frozenset[str]:
    everyone = (*fixture_domains.staff(firm), *fixture_domains.offices(firm))
    return frozenset(p.address.partition("@")[0] for p in everyone) | set(
        fixture_domains.INTERNATIONAL
    )


def alabel(domain: str) -> str:
    return domain if domain.isascii() else idna.encode(domain).decode()


HOSTILE: tuple[tuple[str, Outcome], ...] = (
    # four in five outlast the clocks
    ("silent", Outcome.TIMED_OUT),
    ("silent at ehlo", Outcome.TIMED_OUT),
    ("silent at mail", Outcome.TIMED_OUT),
    ("silent at rcpt", Outcome.TIMED_OUT),
    ("dripping", Outcome.TIMED_OUT),
    ("dripping at ehlo", Outcome.TIMED_OUT),
    ("dripping at rcpt", Outcome.TIMED_OUT),
    ("stalling", Outcome.TIMED_OUT),
    ("stalling at rcpt", Outcome.TIMED_OUT),
    ("late", Outcome.TIMED_OUT),
    ("late banner", Outcome.TIMED_OUT),
    ("unanswered", Outcome.TIMED_OUT),
    ("silent", Outcome.TIMED_OUT),
    ("dripping", Outcome.TIMED_OUT),
    ("stalling", Outcome.TIMED_OUT),
    ("silent at rcpt", Outcome.TIMED_OUT),
    ("endless banner", Outcome.CONVERSATION_FAILED),
    ("endless line", Outcome.CONVERSATION_FAILED),
    ("garbage", Outcome.CONVERSATION_FAILED),
    ("resetting", Outcome.CONVERSATION_FAILED),
)
HEALTHY = ("postfix", "exim", "opensmtpd", "exchange", "google", "no pipelining", "one recipient")
HOSTILE_HOSTS = 1_000
HEALTHY_HOSTS = 1_000
HEALTHY_LATENCY_S_MAX = 0.1


def hostile(rng: Random) -> Scenario:
    """1,000 hosts that outlast, drip, stall or lie, and 1,000 that answer within 100 ms."""
    scenario = Scenario()
    for place in range(HOSTILE_HOSTS):
        profile, outcome = HOSTILE[place % len(HOSTILE)]
        domain = f"hostile{place:04}.test"
        scenario.move_in(domain, new_host(profile))
        scenario.expect(outcome, f"known.ann@{domain}")
    for place in range(HEALTHY_HOSTS):
        domain = f"healthy{place:04}.test"
        latency_s = rng.uniform(0, HEALTHY_LATENCY_S_MAX)
        host = new_host(HEALTHY[place % len(HEALTHY)], f"mx1.{domain}", latency_s=latency_s)
        scenario.move_in(domain, host)
        scenario.expect(Outcome.DELIVERABLE, f"known.ann@{domain}")
    return scenario


def slow(_: Random) -> Scenario:
    """Fifty addresses of one domain whose host's replies take 50 ms, pipelined ones together."""
    scenario = Scenario()
    scenario.move_in("slow.test", new_host("plain", "mx1.slow.test", latency_s=0.05))
    scenario.expect(Outcome.DELIVERABLE, *(f"known.{n:02}@slow.test" for n in range(50)))
    return scenario


MANY_DOMAINS = 10_000
MANY_HOSTS = 200


def many(_: Random) -> Scenario:
    """10,000 domains with one address each, on 200 shared hosts."""
    scenario = Scenario()
    for place in range(MANY_HOSTS):
        name = f"mx{place}.hub.test"
        scenario.settle(name, new_host("plain", name))
    for place in range(MANY_DOMAINS):
        domain = f"shop{place:05}.test"
        scenario.zone.mx(domain, f"mx{place % MANY_HOSTS}.hub.test")
        scenario.expect(Outcome.DELIVERABLE, f"known.ann@{domain}")
    return scenario


WAITING_HOSTS = 2_000


def waiting(_: Random) -> Scenario:
    """2,000 hosts that greet us and say no more: every probe stays under way."""
    scenario = Scenario()
    for place in range(WAITING_HOSTS):
        domain = f"waiting{place:04}.test"
        scenario.move_in(domain, new_host("silent at rcpt", f"mx1.{domain}", reply_s=0.6))
        scenario.expect(Outcome.TIMED_OUT, f"known.ann@{domain}")
    return scenario


DISTANT_HOSTS = 240
DISTANT_LATENCY_S = 0.4
REFUSED_SOURCE = "127.0.0.66"


def distant(_: Random) -> Scenario:
    """240 hosts whose replies take 0.4 s: an address is under way for long, and costs little.

    They refuse clients at REFUSED_SOURCE, as hosts do with an egress that has lost its reputation.
    """
    scenario = Scenario()
    for place in range(DISTANT_HOSTS):
        domain = f"distant{place:03}.test"
        refused = frozenset({REFUSED_SOURCE})
        host = new_host(
            "plain", f"mx1.{domain}", latency_s=DISTANT_LATENCY_S, refused_sources=refused
        )
        scenario.move_in(domain, host)
        scenario.expect(Outcome.DELIVERABLE, f"known.ann@{domain}")
    return scenario


STRICT = ("postfix", "exim", "opensmtpd", "one recipient", "few connections")


def strict(_: Random) -> Scenario:
    """Hosts that enforce their limits, with 40 real and 40 unknown mailboxes each."""
    scenario = Scenario()
    for profile in STRICT:
        domain = f"{profile.replace(' ', '-')}.test"
        scenario.move_in(domain, new_host(profile, f"mx1.{domain}"))
        scenario.expect(Outcome.DELIVERABLE, *(f"known.{n:02}@{domain}" for n in range(40)))
        scenario.expect(Outcome.UNDELIVERABLE, *(f"gone.{n:02}@{domain}" for n in range(40)))
    return scenario


GREYLISTING = ("postfix", "exim", "opensmtpd", "exchange", "no pipelining", "one recipient")
GREYLISTING_HOSTS = 30
GREYLISTING_EACH = 20  # addresses of a host
GREYLIST_S = 2.0  # real hosts say five minutes


def greylisting(_: Random) -> Scenario:
    """30 hosts that reject an address for 2 seconds after it was first asked about."""
    scenario = Scenario()
    for place in range(GREYLISTING_HOSTS):
        domain, profile = f"grey{place:02}.test", GREYLISTING[place % len(GREYLISTING)]
        host = new_host(profile, f"mx1.{domain}", greylist_s=GREYLIST_S)
        scenario.move_in(domain, host)
        known = (f"known.{number:02}@{domain}" for number in range(GREYLISTING_EACH))
        scenario.expect(Outcome.TEMPORARY, *known)
    return scenario


PARTICULAR = (
    *("starttls offered", "starttls demanded", "starttls demanded at rcpt"),
    *("starttls demanded, in step", "starttls demanded at rcpt, in step"),
    *("no null sender", "no null sender at rcpt", "no named sender"),
)


def particular(_: Random) -> Scenario:
    """Hosts that demand TLS or refuse a kind of sender, with 40 real and 40 unknown mailboxes."""
    scenario = Scenario(mail_from="check@probe.lab.test")
    for profile in PARTICULAR:
        domain = f"{profile.replace(',', '').replace(' ', '-')}.test"
        scenario.move_in(domain, new_host(profile, f"mx1.{domain}"))
        scenario.expect(Outcome.DELIVERABLE, *(f"known.{n:02}@{domain}" for n in range(40)))
        scenario.expect(Outcome.UNDELIVERABLE, *(f"gone.{n:02}@{domain}" for n in range(40)))
    return scenario


def restless(rng: Random) -> Scenario:
    """As `default`, with a resolver that ends each connection after 50 questions (GOAWAY)."""
    scenario = default(rng)
    scenario.doh_requests_max = 50
    return scenario


SCENARIOS: Mapping[str, Callable[[Random], Scenario]] = {
    "default": default,
    "hostile": hostile,
    "slow": slow,
    "many": many,
    "strict": strict,
    "greylisting": greylisting,
    "particular": particular,
    "waiting": waiting,
    "distant": distant,
    "restless": restless,
    "adverse": adverse,
    "internet": internet,
    "sequences": sequences,
    "dead": dead,
    "defences": defences,
}


def build(name: str, seed: int) -> Scenario:
    """The scenario of this name; KeyError where there is none."""
    return SCENARIOS[name](Random(f"{name}/{seed}"))
