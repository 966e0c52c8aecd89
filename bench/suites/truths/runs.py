"""Parts shared by `bench truth`: lists through `clean`, requests, and their comparison with the truth."""

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from mailprobe.engine import Engine, open_answers

from ...harness.confusion import UNTESTED, KnownTruth, Matrix, ReportedAddress, remarks
from ...harness.figures import RESULTS, Figure
from ...lab import Lab
from ...load.clean_process import CleanProcess

PASSES = 2
PATIENCE_S = 20  # of a list, for what mail hosts take: a run lasts minutes
CLEAN_S = 100.0  # then a list is ended with what it knows
RESUMES_MAX = 2  # a machine that is too busy for the lab's resolver ends a list early


class Asked(Struct, frozen=True):
    """What is asked of a lab, and how to name the kinds of its hosts."""

    lab: Lab
    known: KnownTruth  # to a request
    known_to_list: KnownTruth
    kind_of: Callable[[str], str]  # of an address


def shuffled(texts: Iterable[str], seed: int = 0) -> list[str]:
    ordered = sorted(texts)
    random.Random(seed).shuffle(ordered)
    return ordered


def clean(
    lab: Lab,
    texts: Sequence[str],
    pass_s: float,
    *,
    passes: int = PASSES,
    within_s: float = CLEAN_S,
) -> tuple[list[ReportedAddress], float]:
    """The command, as a user runs it, with `pass_s` between its passes; and its seconds."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="truth-", dir=RESULTS) as folder:
        options = (
            *("--recheck", str(passes), "--recheck-after", f"{pass_s:g}s"),
            *("--patience", f"{PATIENCE_S}s"),
        )
        cleaning = CleanProcess(lab.env, Path(folder), texts, *options)
        began = time.perf_counter()
        try:
            _run(cleaning, within_s)
            reported = cleaning.results()
        finally:
            cleaning.stop()
    return reported, time.perf_counter() - began


def _run(cleaning: CleanProcess, within_s: float) -> None:
    """Run it to its end; resume it if it ends early, as its message tells a user to."""
    for resumes_left in reversed(range(RESUMES_MAX + 1)):
        cleaning.start(resume=resumes_left < RESUMES_MAX)
        try:
            return cleaning.wait(within_s)
        except AssertionError as ended:
            if not resumes_left:
                raise
            print(f"# resumed: {str(ended).splitlines()[-1]}")


async def verify(
    engine: Engine, account: str, texts: Sequence[str], *, deferred_start: bool = False
) -> list[ReportedAddress]:
    async with open_answers(
        engine, texts, account=account, deferred_start=deferred_start
    ) as answers:
        return [
            ReportedAddress(answer.verdict.email, answer.verdict.status, answer.cause.reason)
            async for answer in answers
        ]


def judge(
    who: str,
    known: KnownTruth,
    kind_of: Callable[[str], str],
    reported: Sequence[ReportedAddress],
) -> list[Figure]:
    """Print the matrix and what is wrong; return the figures of both."""
    matrix = Matrix.of(known, reported)
    print(f"# {who}: true × told")
    for line in (*matrix.lines(), *remarks(known, kind_of, reported)):
        print(f"# {line}")
    asked = f"of {matrix.verified():,}"
    return [
        Figure(f"{who}: falsely undeliverable", matrix.lies("undeliverable", "invalid"), asked),
        Figure(f"{who}: falsely deliverable", matrix.lies("deliverable", UNTESTED), asked),
        Figure(f"{who}: falsely catch-all", matrix.lies("catch_all"), asked),
        Figure(f"{who}: of the knowable, left unknown", matrix.unknown_share, "%"),
    ]
