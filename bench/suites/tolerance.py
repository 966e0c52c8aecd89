"""Simulates the learned tolerance of mail hosts on virtual time, beside no budget and a fixed one.

Lists and requests at markets of mail hosts (mailprobe.bench.market.hosts): hosters, businesses,
dirty lists, companies, attackers. Each case is asked by three policies: without a budget, with
four refusals in ten minutes and 24 an hour at every host, and by the rules of dev/engine.md with
the engine's own class. The table says for each what is lost (unknown, though it could be
known), catch-alls told 0.97, living told 0.90, wrong verdicts, hosts that ban, and minutes until
the median and the 95th of a hundred addresses is told. Every figure depends on the seed alone.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from ..harness.figures import Figure
from ..market.client import MarketClient
from ..market.hosts import (
    Market,
    MarketAddress,
    business,
    companies,
    hosting,
    one_host,
    shuffled,
)
from ..market.policies import POLICIES, THESE, Ending, Policy, Row

HOUR_S = 3600.0
PATIENCE_S = 4 * HOUR_S  # of a list job
STREAM_PER_S, STREAM_AT_A_TIME = 100.0, 50
ACCEPTED_ENDINGS = (Ending.DELIVERABLE, Ending.UNTESTED)


class CaseOutcome(Struct, frozen=True):
    """What one policy made of one case."""

    asked: int
    lost: int
    catch_alls_green: int  # told 0.97
    untested: int  # living ones told 0.90
    wrong: int
    hosts_that_ban: int
    median_min: float
    p95_min: float

    @classmethod
    def of(cls, rows: Sequence[Row], hosts_that_ban: int) -> "CaseOutcome":
        waits = sorted(row.said_at - row.began_at for row in rows)
        return cls(
            len(rows),
            sum(row.said is None or row.said.is_unknown for row in rows),
            sum(row.said is Ending.DELIVERABLE and _is_catch_all(row.address) for row in rows),
            sum(row.said is Ending.UNTESTED and not _is_catch_all(row.address) for row in rows),
            sum(map(_is_wrong, rows)),
            hosts_that_ban,
            waits[len(waits) // 2] / 60,
            waits[min(len(waits) - 1, math.ceil(len(waits) * 0.95))] / 60,
        )

    @property
    def lost_percent(self) -> float:
        return 100 * self.lost / max(1, self.asked)


def _is_catch_all(address: MarketAddress) -> bool:
    return address.domain.accepts_all and address.lives


def _is_wrong(row: Row) -> bool:
    """Ending what is not so; a catch-all told 0.97 is counted apart."""
    address = row.address
    if row.said in ACCEPTED_ENDINGS:
        return not address.lives
    if row.said is Ending.CATCH_ALL:
        return not _is_catch_all(address)
    return row.said is Ending.UNDELIVERABLE and address.lives


# -- cases -------------------------------------------------------------------------------------


Case = Callable[[Policy], CaseOutcome]


def _patience(policy: Policy, patience_s: float = PATIENCE_S) -> float:
    return patience_s if policy.waits else 0.0


def _lists(
    market: Callable[[], Market], lists: int, patience_s: float = PATIENCE_S, every_s: float = 0.0
) -> Case:
    """The market's addresses as so many lists, each of another account."""

    def run(policy: Policy) -> CaseOutcome:
        made, client = market(), MarketClient(policy)
        for number, addresses in enumerate(made.deal(lists)):
            account, at = f"account{number}", number * every_s
            client.add_list(addresses, account, _patience(policy, patience_s), at)
        client.run()
        return CaseOutcome.of(client.rows, made.hosts_that_ban)

    return run


def _blocks(market: Callable[[], Market], lists: int, patience_s: float = PATIENCE_S) -> Case:
    """Likewise, but each list has hosts of its own."""

    def run(policy: Policy) -> CaseOutcome:
        made, client = market(), MarketClient(policy)
        each = len(made.addresses) // lists
        for number in range(lists):
            addresses = shuffled(made.addresses[number * each : (number + 1) * each])
            client.add_list(addresses, f"account{number}", _patience(policy, patience_s))
        client.run()
        return CaseOutcome.of(client.rows, made.hosts_that_ban)

    return run


def _requests(market: Callable[[], Market], accounts: int = 1, per_s: float = STREAM_PER_S) -> Case:
    """The market's addresses as requests, as the stream endpoint asks them."""

    def run(policy: Policy) -> CaseOutcome:
        made, client = market(), MarketClient(policy)
        names = [f"account{number}" for number in range(accounts)]
        client.add_requests(made.addresses, names, per_s, STREAM_AT_A_TIME)
        client.run()
        return CaseOutcome.of(client.rows, made.hosts_that_ban)

    return run


def _neighbour(policy: Policy) -> CaseOutcome:
    """180 living addresses, asked over an hour, beside an attacker's 1,000 bad ones."""
    bad, living = one_host(1_000, 1_000), one_host(180, 0)
    host = bad.hosts[0]
    for address in living.addresses:
        address.domain.host = host
    client = MarketClient(policy)
    client.add_requests(bad.addresses, ["attacker"], 1_000 / HOUR_S, STREAM_AT_A_TIME)
    client.add_requests(living.addresses, ["neighbour"], 180 / HOUR_S, STREAM_AT_A_TIME, at=60.0)
    client.run()
    rows = [row for row in client.rows if row.account == "neighbour"]
    return CaseOutcome.of(rows, bad.hosts_that_ban)


def _dirty(patience_s: float = PATIENCE_S) -> Case:
    return _blocks(lambda: companies(200, 80, 0.5), 8, patience_s)


def _one(addresses: int, bad: int, guard: str = "") -> Callable[[], Market]:
    return lambda: one_host(addresses, bad, guard)


def cases(scale: float = 1.0) -> Mapping[str, Case]:
    """The cases by name; `scale` makes the large markets smaller, for tests."""
    large, single = round(60_000 * scale), round(20_000 * scale)
    found: dict[str, Case] = {
        "3 lists of 20,000, hosting": _lists(lambda: hosting(large), 3),
        "20,000 requests, hosting": _requests(lambda: hosting(single)),
        "3 lists of 20,000, business": _lists(lambda: business(large), 3),
        "8 lists of 2,000, half bad": _dirty(),
        "60 companies of 400": _blocks(lambda: companies(60, 400, 0.05), 60),
        "50 accounts, 18,000 requests": _requests(
            lambda: hosting(round(18_000 * scale)), accounts=50, per_s=5.0
        ),
        "neighbour of an attacker": _neighbour,
    }
    for shown, addresses, bad in (("5 % bad", 400, 20), ("50 % bad", 400, 200), ("all", 40, 40)):
        found[f"{addresses} requests, one host, {shown}"] = _requests(_one(addresses, bad))
        jailed = _requests(_one(addresses, bad, "fail2ban"))
        found[f"{addresses} requests, fail2ban, {shown}"] = jailed
    for shown, patience_s in (("1 min", 60.0), ("10 min", 600.0), ("4 h", PATIENCE_S)):
        found[f"400 at one host, patience {shown}"] = _lists(_one(400, 20), 1, patience_s)
        if patience_s < PATIENCE_S:
            found[f"8 lists of 2,000, half bad, patience {shown}"] = _dirty(patience_s)
    return found


# -- the suite ---------------------------------------------------------------------------------


def run(names: Sequence[str] = (), scale: float = 1.0) -> list[Figure]:
    """The figures of these rules in each case, and the table of all policies."""
    figures: list[Figure] = []
    print(
        f"# {'':>38} | {'policy':<11} | lost % | 0.97 c-a | 0.90 | wrong | ban | min: median, p95"
    )
    for name, case in cases(scale).items():
        if names and name not in names:
            continue
        for policy in POLICIES:
            outcome = case(policy)
            print(f"# {name:>38} | {policy.name:<11} | {_cells(outcome)}", flush=True)
            if policy is THESE:
                figures += _figures(name, outcome)
    return figures


def _cells(outcome: CaseOutcome) -> str:
    return (
        f"{outcome.lost_percent:>6.2f} | {outcome.catch_alls_green:>8,} | {outcome.untested:>4,} | "
        f"{outcome.wrong:>5,} | {outcome.hosts_that_ban:>3} | "
        f"{outcome.median_min:>6.1f}, {outcome.p95_min:.1f}"
    )


def _figures(name: str, outcome: CaseOutcome) -> list[Figure]:
    return [
        Figure(f"{name}: lost", outcome.lost_percent, "%"),
        Figure(f"{name}: catch-alls told 0.97", outcome.catch_alls_green, ""),
        Figure(f"{name}: living told 0.90", outcome.untested, ""),
        Figure(f"{name}: wrong", outcome.wrong, ""),
        Figure(f"{name}: hosts that ban", outcome.hosts_that_ban, ""),
        Figure(f"{name}: 95 % told after", outcome.p95_min, "min"),
    ]


if __name__ == "__main__":
    run(sys.argv[1:])
