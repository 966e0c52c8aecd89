"""What the soak calls growth: not the rows that answers leave, nor work that comes and goes."""

import random
from itertools import accumulate

import pytest

from mailprobe.bench.load.soak import MIB, SAMPLE_S, ResourceGrowth, Sample, growth

MINUTES = 10
NUMBERS = range(int(MINUTES * 60 / SAMPLE_S))


def measured(
    memory_leak: float = 0.0, file_leak: float = 0.0, bloat_leak: float = 0.0, seed: int = 0
) -> ResourceGrowth:
    """A service that answers 500 addresses in each sample, with 1,000 octets of rows each.

    A list comes and goes every 20 s. A reader lives for some samples, by chance, and the heap
    gets a page more or less.
    """
    rng = random.Random(seed)
    heap_mib = list(accumulate(rng.choice((-0.02, 0.02)) for _ in NUMBERS))
    samples = []
    for number in NUMBERS:
        minutes, answered = number * SAMPLE_S / 60, 500 * number
        work_mib = (5.0 if number % 4 else 0.0) + (20.0 if rng.random() < 0.1 else 0.0)
        samples.append(
            Sample(
                minutes,
                150 + heap_mib[number] + work_mib + memory_leak * minutes,
                int(40 + rng.randrange(6) + file_leak * minutes),
                1_000 * answered / MIB,
                4.0 + (0.1 if rng.random() < 0.3 else 0.0) + bloat_leak * minutes,
                answered,
            )
        )
    return growth(samples)


@pytest.mark.parametrize("seed", range(5))
def test_rows_and_work_are_no_growth(seed: int) -> None:
    found = measured(seed=seed)
    assert found.is_flat
    assert found.answer_octets == pytest.approx(1_000)
    assert found.answered == pytest.approx(6_000)


@pytest.mark.parametrize(
    ("name", "leak"), [("memory_leak", 0.2), ("file_leak", 1.0), ("bloat_leak", 0.2)]
)
@pytest.mark.parametrize("seed", range(5))
def test_a_leak_of_a_fifth_of_a_mib_a_minute_is_found(name: str, leak: float, seed: int) -> None:
    assert not measured(seed=seed, **{name: leak}).is_flat


def test_a_single_step_is_no_growth() -> None:
    """A table that doubles, once: half a MiB within an hour is not a leak, and within ten minutes neither."""
    steps = [0.0] * 80 + [0.5] * 40
    samples = [
        Sample(number * SAMPLE_S / 60, 150 + step, 40, float(number), 4.0, number)
        for number, step in enumerate(steps)
    ]
    assert growth(samples).is_flat
