"""A list of 5,000 addresses at hosts and names such as the Internet has, in its shares.

More than half are customers of few big providers; the others have hosts of their own,
of which every third or so is odd in some way. Of each address it is known what it is
(`Truth`) and what a prober that keeps to its clocks and limits can find out (`Outcome`):
where that is no sure outcome, nobody outside can know.

Who exists is the same at all hosts (`LIVING`), but no address is said twice.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import inf
from random import Random

from msgspec import Struct, field

from mailprobe.engine.verdict import Outcome

from ..world.faults import Drop, Late, Sometimes, Swap, Twice
from ..world.host_profiles import (
    DISABLED,
    FULL,
    HOSTILE_TEXTS,
    NO_PIPELINING,
    OVER_QUOTA,
    SPAMHAUS,
    new_host,
)
from ..world.mail_host import MailHost
from ..world.zone import ZoneMode
from .fixture_domains import FIRST_NAMES, LAST_NAMES, plain
from .scenario import Scenario, Truth

ADDRESSES = 5_000
SENDER = "probe@probe.lab.test"  # some hosts refuse the null sender, some every other one
GONE_SHARE = 0.2  # of a list that nobody has cleaned for a while
CATCH_ALL_SHARE = 0.15  # of the domains at shared hosts
ODD_MAILBOXES = 0.03  # full or disabled, each, of those at shared hosts
FULL_MAILBOXES = {"full.alpha": FULL, "full.beta": FULL, "full.gamma": OVER_QUOTA}
DISABLED_MAILBOXES = {f"left.{name}": DISABLED for name in ("alpha", "beta", "gamma")}
SILENT_START = "silent."  # mailboxes about which some hosts never answer
SILENT_MAILBOXES = tuple(f"{SILENT_START}{name}" for name in ("alpha", "beta", "gamma"))
LIVING = frozenset(f"{plain(f)}.{plain(n)}" for f, n in product(FIRST_NAMES, LAST_NAMES)) | {
    *SILENT_MAILBOXES
}
KNOWABLE = frozenset(
    {
        Outcome.DELIVERABLE,
        Outcome.DELIVERABLE_UNTESTED,
        Outcome.UNDELIVERABLE,
        Outcome.CATCH_ALL,
        Outcome.NO_MX,
    }
)

# -- what hosts say --------------------------------------------------------------------------

NO_SUCH_USER = (
    "550 5.1.1 <{rcpt}>: Empfängeradresse unbekannt",
    "550 5.1.1 <{rcpt}> : utilisateur inconnu",
    "550 5.1.1 <{rcpt}>: El usuario no existe",
    "550 5.1.1 <{rcpt}>: utente sconosciuto",
    "550 5.1.1 <{rcpt}>: Usuário desconhecido",
    "550 5.1.1 <{rcpt}>: nieznany użytkownik",
    "550 5.1.1 <{rcpt}>: Пользователь не найден",
    "550 5.1.1 <{rcpt}>: 宛先のユーザーが見つかりません",
    "550 5.1.1 <{rcpt}>: 用户不存在",
    "550 5.1.1 <{rcpt}>: gebruiker onbekend",
)
AGAINST_US = (
    "550 5.7.1 Votre adresse IP [192.0.2.25] est sur liste noire",
    "550 5.7.1 Ihre IP-Adresse 192.0.2.25 wurde gesperrt",
    "554 5.7.1 Twój adres IP 192.0.2.25 znajduje się na czarnej liście",
    "550 5.7.1 Адрес отправителя отклонен: домен не найден",
    "550 5.7.1 送信元IPアドレスの逆引きが見つかりません",
    "550 5.7.1 发件人域名不存在",
    "550 Adresse de l'expéditeur refusée : domaine inexistant",
    "550 Indirizzo del mittente rifiutato: dominio non trovato",
    "550 5.7.51 TenantInboundAttribution; there is a partner connector configured that matched",
    "550 5.7.54 SMTP; unable to relay recipient in non-accepted domain",
    "550 IP 192.0.2.25 not found in our whitelist",
    "550 bad WHOIS info on IP 192.0.2.25",
    "550 5.1.8 <>: Failed to find sender's MX",
    "550 Malformed DNS server reply",
)
OWN_FAULT = (
    "550 5.3.0 mailbox database unavailable",
    "550 <{rcpt}> could not verify recipient: backend unavailable",
    "550 5.4.3 LDAP server down",
    "550 unknown error",
    "550 5.2.0 <{rcpt}>: mailbox locked for migration",
    "554 5.3.0 Error: user lookup failed, unknown error",
    "450 4.1.1 <{rcpt}>: unverified address: Address verification in progress",
    "451 4.3.0 <{rcpt}>: Temporary lookup failure",
)

# -- domains with hosts of their own ---------------------------------------------------------

Build = Callable[[Random, str], list[MailHost]]
Found = Callable[[Scenario, Random, str], None]


class DomainKind(Struct, frozen=True):
    """Domains of one kind: how many, and what becomes of who lives there and who doesn't.

    Most have one host or several by preference (`hosts`); what is not a host is `open`.
    """

    name: str
    domains: int
    hosts: Build | None = None
    living: Outcome = Outcome.DELIVERABLE
    gone: Outcome = Outcome.UNDELIVERABLE
    open: Found | None = None
    truth: Truth | None = None  # of everybody there; None: by the mailbox
    mailboxes: Mapping[str, Outcome] = field(default_factory=dict)  # existing ones beside LIVING
    addresses_max: int = 8  # of one domain in the list
    addresses_min: int = 1


def _one(profile: str, **changes: object) -> Build:
    """One host of this character, some milliseconds away."""

    def build(rng: Random, domain: str) -> list[MailHost]:
        settled = {"latency_s": rng.choice((0.002, 0.01, 0.03, 0.06)), **changes}
        return [new_host(profile, f"mx1.{domain}", mailboxes=LIVING, **settled)]

    return build


def _saying(*replies: str) -> Build:
    """One host that answers the same to each recipient, each host one of these."""

    def build(rng: Random, domain: str) -> list[MailHost]:
        reply = rng.choice(replies)
        return _one("postfix", default_known=reply, default_unknown=reply)(rng, domain)

    return build


def _in_tongues(rng: Random, domain: str) -> list[MailHost]:
    return _one("postfix", default_unknown=rng.choice(NO_SUCH_USER))(rng, domain)


def _behind(profile: str) -> Build:
    """A second exchange in order behind a first one that is not."""

    def build(rng: Random, domain: str) -> list[MailHost]:
        return [new_host(profile), *_one("postfix")(rng, domain)]

    return build


def _out_of_step(rng: Random, domain: str) -> list[MailHost]:
    """Every reply names its recipient, and now and then one comes twice, not at all or late."""
    fault = rng.choice((Twice(), Twice(0.005), Drop(), Swap(), Late(0.4)))
    in_step = {"ehlo_lines": NO_PIPELINING} if rng.random() < 0.5 else {}
    return _one(
        "friendly",
        default_known="250 2.1.5 <{rcpt}> Ok",
        faults={"RCPT": Sometimes(0.1, fault)},
        **in_step,
    )(rng, domain)


def _mode(mode: ZoneMode, *types: str) -> Found:
    def open_domain(scenario: Scenario, _: Random, domain: str) -> None:
        scenario.zone.mode(domain, mode, *types)

    return open_domain


def _null_mx(scenario: Scenario, _: Random, domain: str) -> None:
    scenario.zone.null_mx(domain)


def _no_records(scenario: Scenario, _: Random, domain: str) -> None:
    scenario.zone.exists(domain)


def _exchange_in_mode(mode: ZoneMode, *, second: bool) -> Found:
    """The first exchange's name goes wrong; perhaps a second one is in order."""

    def open_domain(scenario: Scenario, rng: Random, domain: str) -> None:
        names = [f"mx1.{domain}", *([f"mx2.{domain}"] if second else [])]
        scenario.zone.mx(domain, *names)
        scenario.zone.mode(names[0], mode)
        if second:
            scenario.settle(names[1], _one("postfix")(rng, domain)[0])

    return open_domain


def _rotating(scenario: Scenario, rng: Random, domain: str) -> None:
    """One host's exchange whose answers hold another address each time."""
    scenario.move_in(domain, *_one("postfix")(rng, domain))
    name = f"mx1.{domain}"
    for spare in range(2):
        scenario.settle(f"spare{spare}.{name}", _one("postfix")(rng, domain)[0])
    spares = (scenario.zone.names[f"spare{n}.{name}"].addresses[0] for n in range(2))
    scenario.zone.host(name, *scenario.zone.names[name].addresses, *spares)
    scenario.zone.rotate(name)


TIMED_OUT, FAILED = Outcome.TIMED_OUT, Outcome.CONVERSATION_FAILED
TEMPORARY, POLICY = Outcome.TEMPORARY, Outcome.REFUSED_BY_POLICY
FULL_AND_DISABLED = {
    **dict.fromkeys(FULL_MAILBOXES, Outcome.MAILBOX_FULL),
    **dict.fromkeys(DISABLED_MAILBOXES, Outcome.UNDELIVERABLE),
}
ODD = {"replies": {**FULL_MAILBOXES, **DISABLED_MAILBOXES}}
SILENT = dict.fromkeys(SILENT_MAILBOXES, TIMED_OUT)

KINDS = (
    # in order
    DomainKind("postfix", 70, _one("postfix", **ODD), mailboxes=FULL_AND_DISABLED),
    DomainKind("exim", 40, _one("exim", **ODD), mailboxes=FULL_AND_DISABLED),
    DomainKind("opensmtpd", 12, _one("opensmtpd")),
    DomainKind("exchange", 25, _one("exchange", **ODD), mailboxes=FULL_AND_DISABLED),
    DomainKind("in-tongues", 20, _in_tongues),
    DomainKind("in-step", 8, _one("no pipelining")),
    DomainKind("one-each", 5, _one("one recipient")),
    DomainKind("splitting", 4, _one("splitting")),
    DomainKind("far-away", 8, _one("postfix", latency_s=0.25)),
    DomainKind("few-connections", 5, _one("few connections")),
    DomainKind("helo-only", 2, _one("helo only")),
    DomainKind("catch-all", 40, _one("catch all"), Outcome.CATCH_ALL, truth=Truth.CATCH_ALL),
    # right for whoever asks well
    DomainKind("tarpit", 14, _one("tarpit"), gone=TIMED_OUT),
    DomainKind("big-tarpit", 4, _one("tarpit"), gone=TIMED_OUT, addresses_max=80, addresses_min=40),
    DomainKind("tarpit-in-step", 4, _one("tarpit in step"), gone=TIMED_OUT),
    DomainKind("mild-tarpit", 6, _one("tarpit", unknown_delay_s=0.5)),
    DomainKind("some-silent", 4, _one("postfix", slow_s={SILENT_START: inf}), mailboxes=SILENT),
    DomainKind("null-sender", 6, _one("no null sender")),
    DomainKind("null-sender-rcpt", 4, _one("no null sender at rcpt")),
    DomainKind("named-sender", 3, _one("no named sender")),
    DomainKind("tls", 6, _one("starttls demanded")),
    DomainKind("tls-rcpt", 3, _one("starttls demanded at rcpt")),
    DomainKind("tls-in-step", 3, _one("starttls demanded, in step")),
    DomainKind("one-transaction", 3, _one("one transaction", mails_accepted=3)),
    DomainKind("stale", 3, _one("stale")),
    DomainKind("first-dead", 8, _behind("refused")),
    DomainKind("first-silent", 6, _behind("silent")),
    DomainKind("first-unanswered", 4, _behind("unanswered")),
    DomainKind("first-shut", 4, _behind("shutting down")),
    DomainKind("first-hung", 4, open=_exchange_in_mode(ZoneMode.HANG, second=True)),
    DomainKind("first-servfail", 3, open=_exchange_in_mode(ZoneMode.SERVFAIL, second=True)),
    DomainKind("rotating", 4, open=_rotating),
    DomainKind("out-of-step", 8, _out_of_step),
    DomainKind(
        "wary", 6, _one("friendly", default_unknown=SPAMHAUS), Outcome.DELIVERABLE_UNTESTED, POLICY
    ),
    # with nothing to be found out
    DomainKind("greylisting", 25, _one("greylisting"), TEMPORARY, TEMPORARY),
    DomainKind("blocklisted", 12, _one("blocklisted"), POLICY, POLICY),
    DomainKind("no-reverse-name", 6, _one("no reverse name"), POLICY, POLICY),
    DomainKind("banned", 6, _one("banned"), POLICY, POLICY),
    DomainKind("against-us", 20, _saying(*AGAINST_US), POLICY, POLICY),
    DomainKind("own-trouble", 14, _saying(*OWN_FAULT), POLICY, POLICY),
    DomainKind("hostile-text", 6, _saying(*HOSTILE_TEXTS), POLICY, POLICY),
    DomainKind("tls-refused", 2, _one("starttls refused"), FAILED, FAILED),
    DomainKind("blocked-early", 5, _one("blocked at mail"), FAILED, FAILED),
    DomainKind("blocked-at-banner", 4, _one("blocked at banner"), FAILED, FAILED),
    DomainKind("busy", 4, _one("421 at rcpt"), FAILED, FAILED),
    DomainKind("refused", 8, _one("refused"), FAILED, FAILED),
    DomainKind("closing", 3, _one("closing"), FAILED, FAILED),
    DomainKind("closing-at-rcpt", 3, _one("closing at rcpt"), FAILED, FAILED),
    DomainKind("resetting", 2, _one("resetting"), FAILED, FAILED),
    DomainKind("garbage", 2, _one("garbage"), FAILED, FAILED),
    DomainKind("silent", 6, _one("silent"), TIMED_OUT, TIMED_OUT),
    DomainKind("silent-at-rcpt", 3, _one("silent at rcpt"), TIMED_OUT, TIMED_OUT),
    DomainKind("unanswered", 6, _one("unanswered"), TIMED_OUT, TIMED_OUT),
    DomainKind("dripping", 2, _one("dripping"), TIMED_OUT, TIMED_OUT),
    # names
    *(
        DomainKind(
            name, domains, living=outcome, gone=outcome, open=found, truth=truth, addresses_max=3
        )
        for name, domains, outcome, found, truth in (
            ("gone", 40, Outcome.NO_MX, _mode(ZoneMode.NXDOMAIN), Truth.NO_MAIL),
            ("parked", 15, Outcome.NO_MX, _no_records, Truth.NO_MAIL),
            ("null-mx", 8, Outcome.NO_MX, _null_mx, Truth.NO_MAIL),
            ("hung", 25, Outcome.RESOLVER_FAILED, _mode(ZoneMode.HANG), None),
            ("servfail", 12, Outcome.RESOLVER_FAILED, _mode(ZoneMode.SERVFAIL), None),
            (
                "lost",
                4,
                Outcome.RESOLVER_FAILED,
                _exchange_in_mode(ZoneMode.HANG, second=False),
                None,
            ),
        )
    ),
)

# -- shared hosts ----------------------------------------------------------------------------


class Provider(Struct, frozen=True):
    """Many domains on few hosts; a fifth of each provider's are catch-alls.

    `own_names`: each domain has an exchange's name of its own, as at Microsoft 365.
    """

    name: str
    profile: str
    hosts: int
    share: float  # of the addresses at shared hosts
    own_names: bool = False
    latency_s: float = 0.02


PROVIDERS = (
    Provider("suite", "google", 5, 0.38),
    Provider("office", "exchange", 6, 0.32, own_names=True, latency_s=0.03),
    Provider("hosting", "postfix", 4, 0.18),
    Provider("panel", "exim", 6, 0.12, own_names=True),
)
CUSTOMER_ADDRESSES_MAX = 5  # of one customer's domain


def internet(rng: Random) -> Scenario:
    """What the module says; the same for the same seed."""
    scenario = Scenario(mail_from=SENDER)
    for kind in KINDS:
        for place in range(kind.domains):
            _open(scenario, rng, kind, f"{kind.name}{place}.test")
    left = ADDRESSES - sum(map(len, scenario.truth.values()))
    for provider in PROVIDERS[1:]:
        _provide(scenario, rng, provider, round(left * provider.share))
    _provide(scenario, rng, PROVIDERS[0], ADDRESSES - sum(map(len, scenario.truth.values())))
    return scenario


def _open(scenario: Scenario, rng: Random, kind: DomainKind, domain: str) -> None:
    if kind.hosts is not None:
        scenario.move_in(domain, *kind.hosts(rng, domain))
    if kind.open is not None:
        kind.open(scenario, rng, domain)
    outcomes = (kind.living, kind.gone) if kind.truth is None else (kind.living, kind.living)
    for local, living in _people(rng, rng.randint(kind.addresses_min, kind.addresses_max)):
        truth = kind.truth or (Truth.EXISTS if living else Truth.ABSENT)
        _report(scenario, f"{local}@{domain}", truth, outcomes[not living])
    for local, outcome in kind.mailboxes.items():
        if rng.random() < ODD_MAILBOXES * 5:
            truth = Truth.ABSENT if outcome is Outcome.UNDELIVERABLE else Truth.EXISTS
            _report(scenario, f"{local}@{domain}", truth, outcome)


def _provide(scenario: Scenario, rng: Random, provider: Provider, addresses: int) -> None:
    """Customers' domains until there are so many addresses."""
    domains = _customers(rng, provider, addresses)
    catch_all = frozenset(d for d in domains if rng.random() < CATCH_ALL_SHARE)
    names = [f"mx{place}.{provider.name}.test" for place in range(1, provider.hosts + 1)]
    for name in names:
        changes = {"catch_all": catch_all, "latency_s": provider.latency_s, "mailboxes": LIVING}
        host = new_host(provider.profile, name, domains=frozenset(domains), **changes, **ODD)
        scenario.settle(name, host)
    for domain, count in domains.items():
        behind = rng.sample(names, 2)
        if provider.own_names:
            addresses_ = [a for name in behind for a in scenario.zone.names[name].addresses]
            scenario.zone.host(f"mail.{domain}", *addresses_)
            behind = [f"mail.{domain}"]
        scenario.zone.mx(domain, *behind)
        everyone = Truth.CATCH_ALL if domain in catch_all else None
        for local, living in _people(rng, count):
            truth = everyone or (Truth.EXISTS if living else Truth.ABSENT)
            outcome = Outcome.DELIVERABLE if living else Outcome.UNDELIVERABLE
            _report(
                scenario, f"{local}@{domain}", truth, Outcome.CATCH_ALL if everyone else outcome
            )


def _customers(rng: Random, provider: Provider, addresses: int) -> dict[str, int]:
    """Domains, and how many addresses of each are in the list."""
    domains: dict[str, int] = {}
    while addresses > 0:
        count = min(addresses, rng.randint(1, CUSTOMER_ADDRESSES_MAX))
        domains[f"{provider.name}{len(domains)}.test"] = count
        addresses -= count
    return domains


def _people(rng: Random, count: int) -> Iterator[tuple[str, bool]]:
    """So many local parts, each once, and whether they are mailboxes."""
    seen: set[str] = set()
    while len(seen) < count:
        local = f"{plain(rng.choice(FIRST_NAMES))}.{plain(rng.choice(LAST_NAMES))}"
        living = rng.random() >= GONE_SHARE
        local = local if living else f"{local}{rng.randrange(70, 100)}"
        if local not in seen:
            seen.add(local)
            yield local, living


def _report(scenario: Scenario, address: str, truth: Truth, outcome: Outcome) -> None:
    scenario.truth[truth].append(address)
    scenario.expect(outcome, address)
