"""What a world of the probing core showed, in a form that is short enough to be kept.

Verdicts are one letter an address, account by account. Of each host there are the connections in
all and at once, recipients, refusals, and the recipients that nobody asked about (random names).
The evidence is kept as a digest: reasons, rules, attempts and conversations, without their times.
"""

from hashlib import blake2s

import msgspec

from mailprobe.engine import Answer, Verdict
from tests.simulation.differential.worlds import Account, WorldEnd, run_world

UNKNOWN, UNANSWERED = "?", "-"  # the latter: its account left before
LETTERS = {
    ("deliverable", 0.97): "d",
    ("deliverable", 0.90): "t",  # its domain was not tested
    ("catch_all", 0.65): "c",
    ("undeliverable", 0.02): "u",
    ("risky", 0.50): "r",
    ("unknown", 0.50): UNKNOWN,
    ("invalid", 0.0): "i",
}
COUNTED = ("connections", "at once", "recipients", "refusals", "random names")


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What one world showed."""

    verdicts: str
    hosts: tuple[tuple[int, ...], ...]  # COUNTED of each
    evidence: str  # a digest


class World(msgspec.Struct, frozen=True):
    """One world after its end: what is kept of it, and what it says in full."""

    record: Record
    text: str  # a line for each answer, attempt, line of a conversation, and host
    times: str  # of the conversations


def play(kind: str, seed: int, *, explain: bool | None = None) -> World:
    end = run_world(kind, seed, explain=explain)
    asked = {text for account in end.accounts for text in account.texts}
    counts = tuple(_counts(end, asked))
    random_names = {each for host in end.hosts for each in host.record.recipients} - asked
    said = [_without(random_names, line) for account in end.accounts for line in _lines(account)]
    verdicts = "|".join(
        "".join(_letter(account.answers.get(text)) for text in account.texts)
        for account in end.accounts
    )
    digest = blake2s("\n".join(said).encode(), digest_size=6).hexdigest()
    hosts = [f"host {number}: {count}" for number, count in enumerate(counts)]
    times = [
        f"{line.at_ms}"
        for account in end.accounts
        for answer in account.answers.values()
        if answer.evidence is not None
        for line in answer.evidence.conversation
    ]
    return World(Record(verdicts, counts, digest), "\n".join([*hosts, *said]), " ".join(times))


def _counts(end: WorldEnd, asked: set[str]) -> list[tuple[int, ...]]:
    counts: list[tuple[int, ...]] = []
    for host in end.hosts:
        log = host.record
        refusals = sum(session.refusals for session in log.sessions)
        nobodys = sum(times for mailbox, times in log.recipients.items() if mailbox not in asked)
        counts.append(
            (log.sessions_seen, log.connections_peak, log.recipients.total(), refusals, nobodys)
        )
    return counts


def _letter(answer: Answer | None) -> str:
    if answer is None:
        return UNANSWERED
    verdict: Verdict = answer.verdict
    return LETTERS[verdict.status, verdict.confidence]


def _lines(account: Account) -> list[str]:
    """Every answer of the account with its evidence, in the order of its addresses."""
    lines = []
    for text in account.texts:
        if (answer := account.answers.get(text)) is None:
            continue
        cause = answer.cause
        lines.append(
            f"{account.name} {text}: {_letter(answer)} {cause.reason} {cause.blame} {answer.retry_s}"
        )
        if (found := answer.evidence) is None:
            continue
        lines += [f"  {each.exchange} {each.address} {each.result}" for each in found.exchanges]
        lines += [f"  {each.who} {each.text}" for each in found.conversation]
        lines.append(f"  {found.rule} {found.cached} {found.truncated}")
    return lines


def _without(names: set[str], line: str) -> str:
    """The line with a mark in place of a random name: the order of the tests makes no difference."""
    start, end = line.find("<"), line.find(">")
    if start < 0 or line[start + 1 : end] not in names:
        return line
    return f"{line[: start + 1]}*{line[line.index('@') :]}"


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


def differences(before: Record, now: Record) -> list[str]:
    """In what they differ, be it better or worse."""
    found = losses(before, now)
    if before.verdicts != now.verdicts:
        found.append(f"verdicts {before.verdicts}, now {now.verdicts}")
    if before.hosts != now.hosts:
        found.append(f"hosts {before.hosts}, now {now.hosts}")
    if before.evidence != now.evidence:
        found.append("evidence")
    return found
