"""The record of what the core did: `python -m tests.simulation.differential.record` writes it.

One line a world: its verdicts, one letter an address, account by account; and of each host the
connections, recipients, refusals and the recipients that nobody asked about (random names).
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from mailprobe.engine import Verdict
from tests.simulation.differential.worlds import HOSTS, SEEDS, WorldEnd, run_world

GOLDEN = Path(__file__).with_name("golden.json")
UNKNOWN, UNANSWERED = "?", "-"  # the latter: its account left before
LETTERS = {
    ("deliverable", 0.97): "d",
    ("deliverable", 0.90): "t",  # its domain was not tested
    ("catch_all", 0.65): "c",
    ("undeliverable", 0.02): "u",
    ("risky", 0.50): "r",
    ("unknown", 0.50): UNKNOWN,
}
COUNTED = ("connections", "recipients", "refusals", "random names")
WORLDS = [(kind, seed) for kind in HOSTS for seed in range(SEEDS)]


@dataclass(frozen=True, slots=True)
class Record:
    """What one world showed."""

    verdicts: str
    hosts: tuple[tuple[int, ...], ...]


def record(kind: str, seed: int) -> Record:
    end = run_world(kind, seed)
    asked = {text for account in end.accounts for text in account.texts}
    verdicts = "|".join(
        "".join(_letter(account.verdicts.get(text)) for text in account.texts)
        for account in end.accounts
    )
    return Record(verdicts, tuple(_counts(end, asked)))


def _counts(end: WorldEnd, asked: set[str]) -> list[tuple[int, ...]]:
    counts: list[tuple[int, ...]] = []
    for host in end.hosts:
        sessions, recipients = host.record.sessions, host.record.recipients
        refusals = sum(session.refusals for session in sessions)
        nobodys = sum(times for mailbox, times in recipients.items() if mailbox not in asked)
        counts.append((len(sessions), recipients.total(), refusals, nobodys))
    return counts


def _letter(verdict: Verdict | None) -> str:
    if verdict is None:
        return UNANSWERED
    return LETTERS[verdict.status, verdict.confidence]


def losses(before: Record, now: Record) -> list[str]:
    """In what the present record is worse than the one before."""
    found = [
        f"address {place}: {old!r}, now {new!r}"
        for place, (old, new) in enumerate(zip(before.verdicts, now.verdicts, strict=True))
        if old not in (new, UNKNOWN, UNANSWERED)
    ]
    for number, (olds, news) in enumerate(zip(before.hosts, now.hosts, strict=True)):
        found += [
            f"host {number}: {old} {name}, now {new}"
            for name, old, new in zip(COUNTED, olds, news, strict=True)
            if new > old
        ]
    return found


def read_golden() -> dict[str, Record]:
    lines = json.loads(GOLDEN.read_text("utf-8"))
    return {
        name: Record(verdicts, tuple(map(tuple, hosts)))
        for name, (verdicts, hosts) in lines.items()
    }


def write_golden() -> None:
    lines = []
    for kind, seed in WORLDS:
        now = record(kind, seed)
        lines.append(f"{json.dumps(f'{kind}/{seed}')}: {json.dumps([now.verdicts, now.hosts])}")
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    write_golden()
    sys.stdout.write(f"{GOLDEN}: {len(WORLDS)} worlds\n")
