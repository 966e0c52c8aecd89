"""Verifies lists at hosts that ban who names unknown recipients: is the second list of a day still welcome?

    python -m mailprobe.bench.suites.truths.defences [lists|hours|groups|slow|shared]...

runs it, or parts of it, without the rest of `bench truth`. Each list goes through
`mailprobe clean` with later passes a few seconds apart. The lab counts as its hosts do, by
kind: connections, refused recipients, random names, bans.

The hosts count by minutes and hours, and a run lasts minutes. On sockets their clock does not
run faster: the engine would have to live by the same clock, or a tolerance that is wrong by that
factor would look right. So an address whose host takes no more refusals from us at the end of
the list's patience there stays unknown; these are a figure of their own, and the promise of few
unknown ones is on the rest. The part `hours` repeats the lists in virtual time, by which engine
and hosts both live, with the patience of a list job: there it is on all addresses.
"""

import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from rich.console import Console

from mailprobe.engine import Engine

from ...harness.confusion import REPORTED, KnownTruth, Matrix, ReportedAddress
from ...harness.engine_runs import open_watched
from ...harness.figures import Figure
from ...harness.tables import figure_table
from ...lab import Lab, start_lab
from ...lab.defences import FAR, LISTS, NEAR, ONE_HOST, SLOW, ListShape
from ...lab.scenarios import build
from .hours import counts_of, verify_in_hours
from .runs import clean, judge, shuffled, verify

PASSES, PASS_S = 3, 6.0  # a host without an answer is asked again after 5 s (catchall.UNANSWERED_S)
LIST_S = 400.0  # then a list is ended with what it knows
SINGLES_EVERY_S = 0.1  # to each host
STRANGERS = f"{ONE_HOST}postscreen"  # its first greeting takes 6 s: no request can wait so long
# Guards that nothing shows before their ban: these hosts' names and replies are like any other's.
HIDDEN_GUARDS = frozenset(f"{ONE_HOST}{kind}" for kind in ("fail2ban", "forcepoint", "trendmicro"))
# Reasons of addresses that wait for their host, and would be asked again with more patience.
WAITING = frozenset({"host_budget", "blocked_us", "host_changed", "unconfirmed"})
JAILED = "fail2ban"  # hidden: only a ban can show it
# The references: this suite before hosts had budgets of refusals, the lower of two
# runs; and the wall of the best of the other verifiers (bench/peers) at a host 20 ms away.
CONNECTIONS_BEFORE = {"first": 1_351, "second": 1_504}
CONNECTIONS_BEFORE_IN_HOURS = {"first": 1_265, "second": 1_252}
NEAR_WALL_S = 2.0

COLUMNS: Mapping[str, str] = {
    "hosts": "hosts",
    "domains": "domains",
    "connections": "connections",
    "peak": "peak",
    "recipients": "recipients",
    "refused_session_max": "refused/session",
    "refused_hour_max": "refused/hour",
    "random_names": "random names",
    "bans": "bans",
    "sessions_lost": "sessions lost",
}
Counts = Mapping[str, Mapping[str, int]]  # by kind of host


def defence_figures(parts: Sequence[str] = ()) -> list[Figure]:
    """The figures of these parts, by default of all."""
    figures: list[Figure] = []
    with start_lab("defences") as lab:
        waiting = [text for texts in lab.hidden.values() for text in texts]
        known = KnownTruth.of(lab.truth, lab.addresses, waiting)
        for name, part in PARTS.items():
            if not parts or name in parts:
                figures += part(lab, known)
    return figures


# -- lists -------------------------------------------------------------------------------------


def _lists(lab: Lab, known: KnownTruth) -> list[Figure]:
    return [figure for shape in LISTS for figure in _list(lab, known, shape)]


def _list(lab: Lab, known: KnownTruth, shape: ListShape) -> list[Figure]:
    who = f"defences, {shape.addresses:,}"
    lab.forget()
    reported, took_s = clean(
        lab, shuffled(lab.groups[shape.name]), PASS_S, passes=PASSES, within_s=LIST_S
    )
    judged = [each for each in reported if each.status != "unknown" or each.why not in WAITING]
    print(f"# {who}: the whole list")
    for line in Matrix.of(known, reported).lines():
        print(f"# {line}")
    before = CONNECTIONS_BEFORE[shape.name]
    counted = _count_figures(who, shape, lab.records()["kinds"], before)
    return [
        *judge(f"{who}, but for what waits", known, _kind_by_name, judged),
        Figure(
            f"{who}: left to more patience", len(reported) - len(judged), f"of {len(reported):,}"
        ),
        *counted,
        Figure(f"{who}: in all", took_s, "s"),
    ]


def _hours(_: Lab, known: KnownTruth) -> list[Figure]:
    """The lists in virtual time, to the end of their patience."""
    figures = []
    for shape in LISTS:
        who = f"defences, {shape.addresses:,}, in hours"
        before = CONNECTIONS_BEFORE_IN_HOURS[shape.name]
        scenario = build("defences", 0)
        reported, took_h = verify_in_hours(scenario, shuffled(scenario.groups[shape.name]))
        figures += [
            *judge(who, known, _kind_by_name, reported),
            *_count_figures(who, shape, counts_of(scenario), before),
            Figure(f"{who}: hours", took_h, "h"),
        ]
    return figures


def _count_figures(who: str, shape: ListShape, counts: Counts, before: int) -> list[Figure]:
    """Print what the hosts have counted; return the figures of what is promised to them."""
    _print_counts(who, counts)
    total = {column: sum(found[column] for found in counts.values()) for column in COLUMNS}
    jailed = counts.get(JAILED, dict.fromkeys(COLUMNS, 0))
    share = 100 * jailed["bans"] / max(1, jailed["hosts"])
    return [
        Figure(f"{who}: bans but by fail2ban", total["bans"] - jailed["bans"], ""),
        Figure(f"{who}: fail2ban's bans, of its hosts", share, "%"),
        Figure(f"{who}: random names a domain", total["random_names"] / shape.domains, ""),
        Figure(f"{who}: connections", total["connections"], ""),
        Figure(f"{who}: connections, times before", total["connections"] / before, ""),
    ]


def _counts(lab: Lab, who: str) -> Counts:
    """Print and return what hosts have counted since the lab last forgot."""
    counts: Counts = lab.records()["kinds"]
    _print_counts(who, counts)
    return counts


def _print_counts(who: str, counts: Counts) -> None:
    print(f"# {who}: {'kind of host':>24} | " + " | ".join(COLUMNS.values()))
    for kind, found in sorted(counts.items()):
        cells = (f"{found[column]:>{len(title)},}" for column, title in COLUMNS.items())
        print(f"# {who}: {kind:>24} | " + " | ".join(cells))


def _kind_by_name(email: str) -> str:
    """The kind of the address' host, with which its domain's name begins."""
    return re.sub(r"-\d{4}(-\w+)?\.test$", "", email.partition("@")[2])


# -- one host of each kind, and slow ones ------------------------------------------------------


def _one_hosts(lab: Lab, known: KnownTruth) -> list[Figure]:
    """40 living addresses at one host of each kind: as a list, as batches, as single requests.

    Each is of a domain of its own, so that each costs a random name. The list is in virtual time,
    with the patience of a list job.
    """
    groups = {name: texts for name, texts in lab.groups.items() if name.startswith(ONE_HOST)}
    scenario = build("defences", 0)
    listed = [text for name in groups for text in scenario.groups[name]]
    reported, _ = verify_in_hours(scenario, shuffled(listed))
    figures = _judge_groups("one host, a list", counts_of(scenario), known, groups, reported)
    for way, verify_group in (("batches", _verify_batch), ("requests", _verify_singles)):
        lab.forget()
        reported = trio.run(_verify_groups, lab, groups, verify_group)
        counts = lab.records()["kinds"]
        figures += _judge_groups(f"one host, {way}", counts, known, groups, reported, {STRANGERS})
    return figures


def _slow(lab: Lab, known: KnownTruth) -> list[Figure]:
    groups = {name: texts for name, texts in lab.groups.items() if name.startswith(SLOW)}
    lab.forget()
    texts = [text for texts in groups.values() for text in texts]
    reported, _ = clean(lab, shuffled(texts), PASS_S, passes=PASSES, within_s=LIST_S)
    return _judge_groups("slow hosts", lab.records()["kinds"], known, groups, reported)


VerifyGroup = Callable[[Engine, str, list[str]], Awaitable[list[ReportedAddress]]]


async def _verify_groups(
    lab: Lab, groups: Mapping[str, list[str]], verify_group: VerifyGroup
) -> list[ReportedAddress]:
    reported: list[ReportedAddress] = []

    async def run_group(name: str) -> None:
        reported.extend(await verify_group(engine, name, groups[name]))

    async with open_watched(lab) as (engine, _), trio.open_nursery() as nursery:
        for name in groups:
            nursery.start_soon(run_group, name)
    return reported


async def _verify_batch(engine: Engine, group: str, texts: list[str]) -> list[ReportedAddress]:
    return await verify(engine, group, texts)


async def _verify_singles(engine: Engine, group: str, texts: list[str]) -> list[ReportedAddress]:
    reported: list[ReportedAddress] = []

    async def verify_one(text: str) -> None:
        reported.extend(await verify(engine, group, [text]))

    async with trio.open_nursery() as nursery:
        for text in texts:
            nursery.start_soon(verify_one, text)
            await trio.sleep(SINGLES_EVERY_S)
    return reported


def _judge_groups(
    who: str,
    all_counts: Counts,
    known: KnownTruth,
    groups: Mapping[str, list[str]],
    reported: Sequence[ReportedAddress],
    unasked: frozenset[str] | set[str] = frozenset(),
) -> list[Figure]:
    """The worst group's known addresses, of those not in `unasked`, and the bans.

    Hosts with a hidden guard are counted for themselves: it shows by its ban alone.
    """
    counts = {kind: found for kind, found in all_counts.items() if kind in groups}
    _print_counts(who, counts)
    found = Counter(_kind_by_name(each.email) for each in reported if each.status != "unknown")
    reasons = Counter(
        (_kind_by_name(each.email), each.why) for each in reported if each.status == "unknown"
    )
    for name, texts in groups.items():
        why = {reason: count for (group, reason), count in reasons.items() if group == name}
        print(f"# {who}: {name}: {found[name]} of {len(texts)} known {why or ''}")
    hidden = groups.keys() & HIDDEN_GUARDS
    each = f"of {len(next(iter(groups.values())))}"
    worst = min(found[name] for name in groups.keys() - unasked - hidden)
    bans = {kind: counted["bans"] for kind, counted in counts.items()}
    matrix = Matrix.of(known, reported)
    wrong = matrix.lies(*REPORTED)
    of_hidden = (
        [
            Figure(
                f"{who}: known behind the worst hidden guard",
                min(found[name] for name in hidden),
                each,
            ),
            Figure(f"{who}: bans by hidden guards", sum(bans.get(kind, 0) for kind in hidden), ""),
        ]
        if hidden
        else []
    )
    return [
        Figure(f"{who}: known at the worst kind", worst, each),
        Figure(f"{who}: wrong verdicts", wrong, f"of {len(reported)}"),
        Figure(f"{who}: bans", sum(bans.values()) - sum(bans.get(kind, 0) for kind in hidden), ""),
        *of_hidden,
        Figure(f"{who}: connections", sum(each["connections"] for each in counts.values()), ""),
        Figure(f"{who}: connections at once", max(each["peak"] for each in counts.values()), ""),
    ]


# -- shared hosts, far and near ----------------------------------------------------------------


def _shared(lab: Lab, known: KnownTruth) -> list[Figure]:
    """One request for all addresses of a host 300 ms away, as the service streams them; a list at 20 ms."""
    figures = []
    for group, deferred_start in ((FAR, False), (NEAR, True)):
        lab.forget()
        texts = shuffled(lab.groups[group])
        reported, took_s = trio.run(_verify_timed, lab, texts, deferred_start)
        counts = _counts(lab, group)
        answered = sum(each.status == "deliverable" for each in reported)
        print(f"# {group}: {Counter(each.why for each in reported)}")
        figures += [
            Figure(f"{group}: found deliverable", answered, f"of {len(texts)}"),
            Figure(f"{group}: connections at once", counts[group]["peak"], ""),
            Figure(f"{group}: in all", took_s, "s"),
        ]
    return [*figures, Figure(f"{NEAR}: in all, times the best peer", took_s / NEAR_WALL_S, "")]


async def _verify_timed(
    lab: Lab, texts: list[str], deferred_start: bool
) -> tuple[list[ReportedAddress], float]:
    async with open_watched(lab) as (engine, _):
        began = time.perf_counter()
        reported = await verify(engine, "bench", texts, deferred_start=deferred_start)
        return reported, time.perf_counter() - began


Part = Callable[[Lab, KnownTruth], list[Figure]]
PARTS: Mapping[str, Part] = {
    "lists": _lists,
    "hours": _hours,
    "groups": _one_hosts,
    "slow": _slow,
    "shared": _shared,
}

if __name__ == "__main__":
    Console(width=140).print(figure_table(defence_figures(sys.argv[1:])))
