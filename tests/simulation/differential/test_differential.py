"""The probing core does what it did before: the same worlds, compared with their recordings.

Verdicts, evidence and what the hosts saw are equal. A change that is meant to do otherwise
records the worlds anew, and says in its commit what the differences are.
"""

from functools import cache

import pytest

from tests.seeds import ALL
from tests.simulation.differential.record import Record, differences, losses, play
from tests.simulation.differential.recordings import name_of, read_recordings, recorded_seeds
from tests.simulation.differential.step_watch import StepWatch, watched_steps
from tests.simulation.differential.worlds import BUILDERS, HOSTS, WAYS, is_explained

RECORDINGS = read_recordings()
KINDS = list(BUILDERS)


def seeds_of(kind: str) -> list[int]:
    """All that are recorded, or a third of a kind of hosts and one of the ways of a sequence."""
    if ALL:
        return list(recorded_seeds(kind))
    if kind in HOSTS:
        return list(recorded_seeds(kind))[KINDS.index(kind) % 3 :: 3]
    return [KINDS.index(kind) % len(WAYS)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_core_does_what_it_did_before(kind):
    found = {}
    for seed in seeds_of(kind):
        if differ := differences(RECORDINGS[name_of(kind, seed)], play(kind, seed).record):
            found[seed] = differ
    assert found == {}


@cache
def played_in_reverse(kind: str) -> tuple[Record, list[StepWatch]]:
    """A recorded world, with its answers explained if they were not, or the reverse."""
    seed = seeds_of(kind)[0]
    with watched_steps() as watches:
        return play(kind, seed, explain=not is_explained(seed)).record, watches


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_changes_neither_verdicts_nor_what_hosts_see(kind):
    recorded = RECORDINGS[name_of(kind, seeds_of(kind)[0])]
    reverse, _ = played_in_reverse(kind)
    assert (reverse.verdicts, reverse.hosts) == (recorded.verdicts, recorded.hosts)


@pytest.mark.parametrize("kind", KINDS)
def test_no_task_waits_before_the_turn_of_its_step_is_run(kind):
    _, watches = played_in_reverse(kind)
    assert [each.left_marked for each in watches] == [set()]


BEFORE = Record("du?|-", ((2, 1, 5, 2, 1),), "ab")


@pytest.mark.parametrize(
    ("now", "worse", "differs"),
    [
        (BEFORE, False, False),
        (Record("du?|d", ((1, 1, 4, 2, 1),), "ab"), False, True),
        (Record("du?|-", ((2, 1, 5, 2, 1),), "cd"), False, True),
        (Record("dt?|-", ((2, 1, 5, 2, 1),), "ab"), True, True),
        (Record("du?|-", ((2, 2, 5, 2, 1),), "ab"), True, True),
    ],
    ids=["equal", "better", "other evidence", "another verdict", "more at once"],
)
def test_a_record_that_is_better_differs_and_is_no_loss(now, worse, differs):
    assert bool(losses(BEFORE, now)) is worse
    assert bool(differences(BEFORE, now)) is differs
