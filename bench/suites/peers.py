"""Compares mailprobe with other verifiers: right answers, time, and waits for a mail host.

Each verifier runs two workloads: a list of 200 addresses of six kinds, over 25 hosts whose
replies take 20 ms; and 50 addresses of one domain whose replies take 50 ms.
bench/peers/README.md says how each is used, and how to install them.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import compress, groupby

from msgspec.structs import asdict, replace

from ..harness.figures import Figure
from ..peers import fixture_domains
from ..peers.in_namespace import Runner, Task
from ..peers.install import AT_ONCE, ROOT, check_installed, install_all, runners
from ..peers.namespace import entering
from ..peers.runner import UNSURE

OURS = "mailprobe"
LIST, ONE_DOMAIN = "list", "one domain"
GRACE_S = 60.0  # for the work besides the runners


class NothingToCompare(Exception):
    """mailprobe failed, or no peer was right about every address of the one domain."""


def run() -> list[Figure]:
    """Return all figures. Raises MissingRequirement without namespaces or without the peers."""
    entering()
    if os.environ.get("MAILPROBE_BENCH_INSTALL") == "1":
        install_all()
    check_installed()
    return figures(play(runners()))


def play(runners: Sequence[Runner]) -> list[Task]:
    """Run both workloads with every runner, in namespaces of their own."""
    done = subprocess.run(
        [*entering(), sys.executable, "-m", "mailprobe.bench.peers.in_namespace"],
        input=json.dumps([asdict(runner) for runner in runners]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=sum(2 * runner.rounds * runner.limit_s for runner in runners) + GRACE_S,
    )
    return [Task(**json.loads(line)) for line in done.stdout.splitlines()]


def figures(tasks: Sequence[Task]) -> list[Figure]:
    """Return the figures of each runner, then those of mailprobe against the best peer."""
    kinds = {LIST: fixture_domains.build().a_list, ONE_DOMAIN: fixture_domains.build().one_domain}
    reported: list[Figure] = []
    tasks = [
        _typical(list(rounds), kinds[name])
        for (_, name), rounds in groupby(tasks, lambda each: (each.runner, each.workload))
    ]
    for task in tasks:
        for remark in remarks(task, kinds[task.workload]):
            print(f"# {remark}")
        if not task.remark:
            reported += (_of_list if task.workload == LIST else _of_one_domain)(
                task, kinds[task.workload]
            )
    return [*reported, *_compared(tasks, kinds[ONE_DOMAIN])]


def _typical(rounds: Sequence[Task], kinds: Mapping[str, str]) -> Task:
    """Return the round of median time, with the answers of the round with the most wrong ones.

    If a round failed, return that one.
    """
    failed = [each for each in rounds if each.remark]
    if failed:
        return failed[0]
    median = sorted(rounds, key=lambda each: each.took_s)[len(rounds) // 2]
    worst = max([median, *rounds], key=lambda each: wrong(each, kinds))
    return replace(
        median, answers=worst.answers, turnarounds=max(each.turnarounds for each in rounds)
    )


def _of_list(task: Task, kinds: Mapping[str, str]) -> list[Figure]:
    name, count = task.runner, len(kinds)
    ours = name == OURS
    cpu_ms = task.cpu_s * 1000 / count
    return [
        Figure(
            f"{name}: right verdicts",
            right(task, kinds),
            f"of {count}",
            at_least=count if ours else None,
            exact=False,  # on a busy machine probes time out, and the answer is "don't know"
        ),
        Figure(f"{name}: wrong verdicts", wrong(task, kinds), "", at_most=0 if ours else None),
        Figure(f"{name}: the list", count / task.took_s, "a second"),
        Figure(f"{name}: processor time", cpu_ms, "ms each", cpu_us=cpu_ms * 1000),
    ]


def _of_one_domain(task: Task, kinds: Mapping[str, str]) -> list[Figure]:
    name = task.runner
    return [
        Figure(f"{name}: {len(kinds)} of one domain", task.took_s, "s"),
        Figure(f"{name}: turn-arounds", task.turnarounds, ""),
        Figure(f"{name}: connections", task.connections, ""),
        Figure(f"{name}: of them at once", task.connections_peak, ""),
    ]


def _compared(tasks: Sequence[Task], kinds: Mapping[str, str]) -> list[Figure]:
    """Compare only runners that were right about the whole domain: no answer costs no time."""
    able = [
        task for task in tasks if task.workload == ONE_DOMAIN and right(task, kinds) == len(kinds)
    ]
    ours = [task for task in able if task.runner == OURS]
    theirs = [task for task in able if task.runner != OURS]
    if not ours or not theirs:
        raise NothingToCompare(f"all right were: {[task.runner for task in able]}")
    turnarounds = min(task.turnarounds for task in theirs) / ours[0].turnarounds
    compared = [Figure("turn-arounds: the best peer's against ours", turnarounds, "x")]
    for what, which in (
        ("time: the quickest peer's against ours", [not _at_once(each) for each in theirs]),
        ("time: the quickest at once against ours", [_at_once(each) for each in theirs]),
    ):
        times_s = [each.took_s for each in compress(theirs, which)]
        if times_s:
            compared.append(Figure(what, min(times_s) / ours[0].took_s, "x"))
    return compared


def _at_once(task: Task) -> bool:
    return task.runner.endswith(AT_ONCE)


def right(task: Task, kinds: Mapping[str, str]) -> int:
    return sum(
        word in fixture_domains.RIGHT[kinds[address]] for address, word in task.answers.items()
    )


def wrong(task: Task, kinds: Mapping[str, str]) -> int:
    """Count the wrong answers; "don't know" is not one."""
    return sum(
        word != UNSURE and word not in fixture_domains.RIGHT[kinds[address]]
        for address, word in task.answers.items()
    )


def remarks(task: Task, kinds: Mapping[str, str]) -> list[str]:
    """Say why there is no answer, how many errors it raised, and what was not right, by kind."""
    said = [task.remark] if task.remark else []
    if task.raised:
        said.append(f"raised an error for {task.raised} addresses")
    wrong = Counter(
        f"{kinds[address]} -> {word}"
        for address, word in task.answers.items()
        if word not in fixture_domains.RIGHT[kinds[address]]
    )
    said += [f"{number} × {what}" for what, number in sorted(wrong.items())]
    return [f"{task.runner}, {task.workload}: {each}" for each in said]
