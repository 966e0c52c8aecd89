"""Compares verdicts with the truth for 5,000 addresses at hosts such as the Internet has.

First as one list with deferred start; then a part of them by an engine with empty caches,
as batches of 50 and as single requests, without deferred start. It prints the kinds of
domains with wrong verdicts, and those with "unknown" where more could be known.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Sequence

import trio

from mailprobe.bench.harness.confusion import KnownTruth, Matrix
from mailprobe.bench.harness.engine_runs import open_watched
from mailprobe.bench.harness.figures import Figure
from mailprobe.bench.lab import Lab, start_lab
from mailprobe.engine import Engine, Verdict, in_order, open_answers

BATCH, BATCHES, BATCHES_AT_A_TIME = 50, 16, 4
SINGLES, SINGLES_EVERY_S = 200, 0.05
REMARKS_MAX = 12


def run() -> list[Figure]:
    return trio.run(_run)


async def _run() -> list[Figure]:
    with start_lab("internet") as lab:
        known = KnownTruth.of(lab.truth, lab.addresses)
        return [*await _verify_list(lab, known), *await _verify_requests(lab, known)]


async def _verify_list(lab: Lab, known: KnownTruth) -> list[Figure]:
    texts = _shuffled(known)
    async with open_watched(lab) as (engine, watch):
        began = time.perf_counter()
        verdicts = await _verify(engine, "list", texts, deferred_start=True)
        took_s = time.perf_counter() - began
    return [
        *_judge("a list", known, verdicts),
        Figure("a list: the latest verdict, after layer 4 began", max(watch.layer4_ms), "ms"),
        Figure("a list: in all", took_s, "s"),
    ]


async def _verify_requests(lab: Lab, known: KnownTruth) -> list[Figure]:
    texts = _shuffled(known, seed=1)[: BATCH * BATCHES + SINGLES]
    verdicts: list[Verdict] = []
    limit = trio.CapacityLimiter(BATCHES_AT_A_TIME)

    async def verify_batch(number: int) -> None:
        async with limit:
            part = texts[number * BATCH : (number + 1) * BATCH]
            verdicts.extend(await _verify(engine, f"account{number % BATCHES_AT_A_TIME}", part))

    async def verify_single(text: str) -> None:
        verdicts.extend(await _verify(engine, "single", [text]))

    async with open_watched(lab) as (engine, watch), trio.open_nursery() as nursery:
        for number in range(BATCHES):
            nursery.start_soon(verify_batch, number)
        for text in texts[BATCH * BATCHES :]:
            nursery.start_soon(verify_single, text)
            await trio.sleep(SINGLES_EVERY_S)
    return [
        *_judge("requests", known, verdicts),
        Figure("requests: the latest verdict, after layer 4 began", max(watch.layer4_ms), "ms"),
    ]


async def _verify(
    engine: Engine, account: str, texts: Sequence[str], *, deferred_start: bool = False
) -> list[Verdict]:
    async with open_answers(
        engine, texts, account=account, deferred_start=deferred_start
    ) as answers:
        return await in_order(answers, len(texts))


def _shuffled(known: KnownTruth, seed: int = 0) -> list[str]:
    texts = sorted(known.truth)
    random.Random(seed).shuffle(texts)
    return texts


def _judge(who: str, known: KnownTruth, verdicts: Sequence[Verdict]) -> list[Figure]:
    matrix = Matrix(known)
    lies: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for verdict in verdicts:
        email, reported = verdict.email, verdict.status
        matrix.add(email, reported)
        if matrix.is_lie(email, reported):
            lies[f"{known.truth[email].value}, told {reported}, at {_kind(email)}"] += 1
        elif reported == "unknown" and email in known.knowable:
            unknown[
                f"{known.truth[email].value}, told {verdict.failed_check}, at {_kind(email)}"
            ] += 1
    print(f"# {who}: true × told")
    for line in matrix.lines():
        print(f"# {line}")
    for words, counts in (("wrong", lies), ("could be known", unknown)):
        for what, count in counts.most_common(REMARKS_MAX):
            print(f"# {who}: {words}: {count} × {what}")
    asked = f"of {matrix.verified():,}"
    return [
        Figure(f"{who}: falsely undeliverable", matrix.lies("undeliverable", "invalid"), asked),
        Figure(f"{who}: falsely deliverable", matrix.lies("deliverable"), asked),
        Figure(f"{who}: falsely catch-all", matrix.lies("catch_all"), asked),
        Figure(f"{who}: of the knowable, told unknown", matrix.unknown_share, "%"),
    ]


def _kind(email: str) -> str:
    """Return the kind of the address' domain (bench/lab/internet.py), from its name."""
    return re.sub(r"\d+\.test$", "", email.partition("@")[2])
