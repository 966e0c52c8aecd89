"""Mail hosts, domains and addresses without sockets: what a simulation of the tolerance asks.

A host judges recipients, may ban a client that names unknown ones, and may turn: refuse or
accept everybody after a number of refusals. The bans are those of the lab's hosts
(mailprobe.bench.world.host_defences). Pure: time is an argument, and chance is a seeded Random.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum
from random import Random

from msgspec import Struct, field
from msgspec.structs import replace

from ..world.defended_hosts import DEFENDED_HOSTS, FAIL2BAN
from ..world.host_defences import (
    HOUR_S,
    Defence,
    SessionDefence,
    SourceHistory,
)

AWAY_S = (0.02, 0.04, 0.06, 0.08)  # round trips
JAIL_DELAY_S = (1.0, 6.0)  # from the fifth refusal until the ban holds
GUARDED_SHARE = 0.15  # of small hosts
TURNING_SHARE = 0.03
TURNS_AFTER = (6, 12, 20, 40)  # refusals within the hour
CATCH_ALL_SHARE = 0.1  # of domains; of those,
CHOOSY_SHARE = 0.5  # so many refuse some listed names: former staff
FORMER_SHARE = 0.2  # of their listed names
NO_POSTMASTER_SHARE = 0.2  # of domains

# A guard of a small host -> how many of a hundred guards it is
GUARDS = {"fail2ban": 60, "exim-recipe": 15, "mdaemon": 10, "kerio": 10, "cisco": 5}


class HostAnswer(Enum):
    """What a host says to a recipient."""

    ACCEPTED = "accepted"
    REFUSED = "refused as unknown"
    BLOCKED = "blocked"  # it hangs up, or says that there were too many

    __hash__ = object.__hash__


class MarketHost(Struct, eq=False):
    """One mail host, and what it remembers of its one client."""

    name: str
    greeting: str = ""  # without a name, as most that a client does not know
    refusal: str = ""
    away_s: float = 0.04
    defence: Defence | None = None
    turns_after: int | None = None  # refusals within an hour; then for an hour
    turns_to: HostAnswer = HostAnswer.REFUSED  # it treats everybody so
    source: SourceHistory = field(default_factory=SourceHistory)
    _refused_at: deque[float] = field(default_factory=deque)
    _turned_until: float = 0.0

    def lets_in(self, now: float) -> bool:
        defence = self.defence
        return defence is None or defence.bans_recipients or not self.source.is_banned(now)

    def open_session(self) -> "MarketSession":
        defence = self.defence
        return MarketSession(
            self, None if defence is None else SessionDefence(defence, self.source)
        )

    def treats(self, *, lives: bool, now: float) -> HostAnswer:
        """Accept or refuse a recipient, unless the host has turned."""
        if self.turns_after is None:
            return HostAnswer.ACCEPTED if lives else HostAnswer.REFUSED
        if now < self._turned_until:
            return self.turns_to
        if lives:
            return HostAnswer.ACCEPTED
        refused_at = self._refused_at
        refused_at.append(now)
        while refused_at[0] <= now - HOUR_S:
            refused_at.popleft()
        if len(refused_at) >= self.turns_after:
            self._turned_until = now + HOUR_S
            refused_at.clear()
        return HostAnswer.REFUSED


class MarketSession(Struct, eq=False):
    """One connection to a host."""

    host: MarketHost
    _defence: SessionDefence | None

    def answer(self, *, lives: bool, now: float) -> HostAnswer:
        """`lives`: the host would accept this recipient of everybody."""
        defence = self._defence
        if defence is None:
            return self.host.treats(lives=lives, now=now)
        if not defence.admits(now):
            return HostAnswer.BLOCKED
        answer = self.host.treats(lives=lives, now=now)
        defence.count(now, refused=answer is HostAnswer.REFUSED)
        return answer


class MarketDomain(Struct, eq=False):
    """One mail domain."""

    name: str
    host: MarketHost
    accepts_all: bool = False  # but perhaps for some listed names
    has_postmaster: bool = True
    is_own: bool = True  # the host is below the domain


class MarketAddress(Struct, eq=False):
    """One address, and whether its host accepts it."""

    mailbox: str
    domain: MarketDomain
    lives: bool


class Market(Struct):
    """Hosts and the addresses at them, in a random order."""

    hosts: list[MarketHost] = field(default_factory=list)
    addresses: list[MarketAddress] = field(default_factory=list)

    def deal(self, hands: int) -> list[list[MarketAddress]]:
        """The addresses as so many lists."""
        return [self.addresses[hand::hands] for hand in range(hands)]

    @property
    def hosts_that_ban(self) -> int:
        return sum(host.source.bans > 0 for host in self.hosts)


# -- making ------------------------------------------------------------------------------------


def make_host(
    rng: Random, name: str, guard: str = "", turns_after: int | None = None
) -> MarketHost:
    """A host of this guard, with the words of its product, or of none."""
    host = MarketHost(name, away_s=rng.choice(AWAY_S), turns_after=turns_after)
    if turns_after is not None:
        host.turns_to = rng.choice((HostAnswer.REFUSED, HostAnswer.ACCEPTED))
    if guard:
        like = DEFENDED_HOSTS[guard]
        host.greeting, host.refusal, host.defence = like.banner, like.default_unknown, like.defence
    if guard == "fail2ban":  # hidden: any server may have one
        host.greeting = host.refusal = ""
        host.defence = replace(FAIL2BAN, ban_delay_s=rng.uniform(*JAIL_DELAY_S))
    return host


def small_hosts(rng: Random, count: int, name: str = "own") -> list[MarketHost]:
    """Somebody's own servers: exact shares of guards and of hosts that turn, in random order."""
    guarded, turning = round(count * GUARDED_SHARE), round(count * TURNING_SHARE)
    guards = rng.choices(list(GUARDS), list(GUARDS.values()), k=guarded)
    kinds: list[tuple[str, int | None]] = [(guard, None) for guard in guards]
    kinds += [("", rng.choice(TURNS_AFTER)) for _ in range(turning)]
    kinds += [("", None)] * (count - len(kinds))
    rng.shuffle(kinds)
    return [make_host(rng, f"mx.{name}{n}.test", *kind) for n, kind in enumerate(kinds)]


def add_domains(
    market: Market,
    rng: Random,
    host: MarketHost,
    domains: int,
    addresses: int,
    bad_share: float,
    *,
    catch_all_share: float = CATCH_ALL_SHARE,
) -> None:
    """Domains of one host with so many addresses each; of one domain it is the own server."""
    if host not in market.hosts[-1:]:
        market.hosts.append(host)
    for number in range(domains):
        accepts_all = rng.random() < catch_all_share
        domain = MarketDomain(
            f"d{number}.{host.name}", host, accepts_all,
            rng.random() >= NO_POSTMASTER_SHARE, is_own=domains == 1,
        )  # fmt: skip
        is_choosy = accepts_all and rng.random() < CHOOSY_SHARE
        for each in range(addresses):
            is_bad = rng.random() < (FORMER_SHARE if is_choosy else bad_share)
            lives = not is_bad or (accepts_all and not is_choosy)
            market.addresses.append(MarketAddress(f"a{each}@{domain.name}", domain, lives))


def one_host(addresses: int, bad: int, guard: str = "", seed: int = 1) -> Market:
    """One domain on its own server, with exactly so many bad addresses."""
    rng, market = Random(seed), Market()
    domain = MarketDomain("d0.mx.one.test", make_host(rng, "mx.one.test", guard))
    market.hosts.append(domain.host)
    lives = [False] * bad + [True] * (addresses - bad)
    rng.shuffle(lives)
    market.addresses = [
        MarketAddress(f"a{n}@{domain.name}", domain, each) for n, each in enumerate(lives)
    ]
    return market


def hosting(addresses: int, seed: int = 1) -> Market:
    """Half at hosters that many domains share, half at small servers; 10 % bad."""
    rng, market = Random(seed), Market()
    hosters = [
        make_host(rng, f"mx.hoster{n}.test", "cpanel" if n % 3 == 0 else "") for n in range(45)
    ]
    for host in hosters:
        add_domains(market, rng, host, max(1, addresses // 45 // 8), 4, 0.1)
    for host in small_hosts(rng, 750):
        add_domains(market, rng, host, 1, addresses // 1500, 0.1)
    return _shuffled(market, rng, addresses)


def business(addresses: int, seed: int = 1) -> Market:
    """Two thirds at large providers and gateways, the rest at own servers; 6 % bad."""
    rng, market = Random(seed), Market()
    for n in range(12):
        host = make_host(rng, f"mx.provider{n}.test")
        add_domains(market, rng, host, addresses // 12 // 6, 4, 0.06, catch_all_share=0.2)
    for host in small_hosts(rng, addresses // 24):
        add_domains(market, rng, host, 1, 8, 0.06, catch_all_share=0.2)
    return _shuffled(market, rng, addresses)


def companies(hosts: int, addresses: int, bad_share: float, seed: int = 1) -> Market:
    """Each on a server of its own."""
    rng, market = Random(seed), Market()
    for host in small_hosts(rng, hosts):
        add_domains(market, rng, host, 1, addresses, bad_share)
    return market


def shuffled(addresses: Sequence[MarketAddress], seed: int = 1) -> list[MarketAddress]:
    ordered = list(addresses)
    Random(seed).shuffle(ordered)
    return ordered


def _shuffled(market: Market, rng: Random, addresses: int) -> Market:
    rng.shuffle(market.addresses)
    del market.addresses[addresses:]
    return market
