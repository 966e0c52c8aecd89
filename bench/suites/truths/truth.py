"""Compares verdicts with the truth, at hosts such as the Internet has and at those of `sequences`.

Each scenario is asked as a list with its later passes, `internet` through `mailprobe clean` and
`sequences` in virtual hours; and by an engine with empty caches as batches of 50 and as single
requests; `internet` also as one list without later passes, to measure its clock. Then a list is killed in the middle. It prints the
confusion matrices, and by kind of host what was wrong and what is unknown without a reason.
Then come six cases at plain hosts (mailprobe.bench.suites.truths.rows), and last hosts that
defend themselves: see mailprobe.bench.suites.truths.defences.
"""

import re
import time
from collections.abc import Sequence

import trio

from mailprobe.engine.smtp.catchall import UNANSWERED_S

from ...harness.confusion import KnownTruth, ReportedAddress
from ...harness.engine_runs import open_watched
from ...harness.figures import Figure
from ...lab import Lab, start_lab
from ...lab.scenarios import build
from ...lab.sequences import EACH_S_MAX, KNOWABLE_LATER
from .defences import defence_figures
from .hours import verify_in_hours
from .killed import killed_figures
from .rows import row_figures
from .runs import Asked, clean, judge, shuffled, verify

BATCH, BATCHES, BATCHES_AT_A_TIME = 50, 16, 4
SINGLES, SINGLES_EVERY_S = 200, 0.05
# Hosts forgive sooner, and a catch-all test is repeated sooner; real ones forgive within minutes.
PASS_S = max(EACH_S_MAX, UNANSWERED_S) + 1
# Kinds whose answers come in time only while the machine is idle: they say nothing of a kill.
HASTY = frozenset(
    {"out-of-step", "splitting", "tarpit", "big-tarpit", "tarpit-in-step", "mild-tarpit"}
)


def run() -> list[Figure]:
    with start_lab("internet") as lab:
        known = KnownTruth.of(lab.truth, lab.addresses)
        internet = Asked(lab, known, known, _kind_by_name)
        texts = shuffled(known.truth, seed=1)
        ends = BATCH * BATCHES
        batches = [texts[start : start + BATCH] for start in range(0, ends, BATCH)]
        figures = [
            *trio.run(_verify_list, "internet, a list", internet),
            *_clean("internet, cleaned", internet),
            *trio.run(
                _verify_requests, "internet, requests", internet, batches,
                texts[ends : ends + SINGLES],
            ),
            *killed_figures(
                lab, known, _kind_by_name,
                [text for text in shuffled(known.truth, seed=2) if _kind_by_name(text) not in HASTY],
            ),
        ]  # fmt: skip
    with start_lab("sequences") as lab:
        later = [text for reason in KNOWABLE_LATER for text in lab.hidden[reason.value]]
        kinds = {text: kind for kind, texts in lab.groups.items() for text in texts}
        sequences = Asked(
            lab,
            KnownTruth.of(lab.truth, lab.addresses),
            KnownTruth.of(lab.truth, lab.addresses, later),
            kinds.__getitem__,
        )
        figures += [
            *_hours("sequences, in hours", sequences),
            *trio.run(_verify_requests, "sequences, requests", sequences, *_by_kind(lab)),
        ]
    return [*figures, *row_figures(), *defence_figures()]


def _by_kind(lab: Lab) -> tuple[list[list[str]], list[str]]:
    """Half of each kind as batches of that kind alone; the rest in mixed batches, and singly."""
    batches: list[list[str]] = []
    mixed: list[str] = []
    for texts in lab.groups.values():
        ordered = shuffled(texts)
        half = len(texts) // 2
        batches += [ordered[start : min(start + BATCH, half)] for start in range(0, half, BATCH)]
        mixed += ordered[half:]
    mixed = shuffled(mixed)
    singles, mixed = mixed[: len(mixed) // 3], mixed[len(mixed) // 3 :]
    batches += [mixed[start : start + BATCH] for start in range(0, len(mixed), BATCH)]
    return batches, singles


async def _verify_list(who: str, asked: Asked) -> list[Figure]:
    """One list with deferred start and without later passes."""
    texts = shuffled(asked.known.truth)
    async with open_watched(asked.lab) as (engine, watch):
        began = time.perf_counter()
        reported = await verify(engine, "list", texts, deferred_start=True)
        took_s = time.perf_counter() - began
    return [
        *judge(who, asked.known, asked.kind_of, reported),
        Figure(f"{who}: the latest verdict, after layer 4 began", max(watch.layer4_ms), "ms"),
        Figure(f"{who}: in all", took_s, "s"),
    ]


def _clean(who: str, asked: Asked) -> list[Figure]:
    """One list through the command, with a shorter time between its passes."""
    asked.lab.forget()
    reported, took_s = clean(asked.lab, shuffled(asked.known.truth), PASS_S)
    return [
        *judge(who, asked.known_to_list, asked.kind_of, reported),
        Figure(f"{who}: in all", took_s, "s"),
    ]


def _hours(who: str, asked: Asked) -> list[Figure]:
    """One list in virtual time, with the passes and the patience of a list job."""
    reported, took_h = verify_in_hours(build("sequences", 0), shuffled(asked.known.truth))
    return [
        *judge(who, asked.known_to_list, asked.kind_of, reported),
        Figure(f"{who}: hours", took_h, "h"),
    ]


async def _verify_requests(
    who: str, asked: Asked, batches: Sequence[Sequence[str]], singles: Sequence[str]
) -> list[Figure]:
    """Batches of some accounts, and single requests of another beside them."""
    reported: list[ReportedAddress] = []
    limit = trio.CapacityLimiter(BATCHES_AT_A_TIME)

    async def verify_batch(number: int) -> None:
        async with limit:
            account = f"account{number % BATCHES_AT_A_TIME}"
            reported.extend(await verify(engine, account, batches[number]))

    async def verify_single(text: str) -> None:
        reported.extend(await verify(engine, "single", [text]))

    asked.lab.forget()
    async with open_watched(asked.lab) as (engine, watch), trio.open_nursery() as nursery:
        for number in range(len(batches)):
            nursery.start_soon(verify_batch, number)
        for text in singles:
            nursery.start_soon(verify_single, text)
            await trio.sleep(SINGLES_EVERY_S)
    return [
        *judge(who, asked.known, asked.kind_of, reported),
        Figure(f"{who}: the latest verdict, after layer 4 began", max(watch.layer4_ms), "ms"),
    ]


def _kind_by_name(email: str) -> str:
    """Return the kind of the address' domain (bench/lab/internet.py), from its name."""
    return re.sub(r"\d+\.test$", "", email.partition("@")[2])
