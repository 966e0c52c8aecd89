"""The probing core is as good as it was before: the same worlds, compared with a golden file.

No verdict is worse, and no mail host sees more connections, recipients, refusals or random names.
A change that is meant to do otherwise writes the file anew: see `record`.
"""

import pytest

from tests.simulation.differential.record import losses, read_golden, record
from tests.simulation.differential.worlds import HOSTS, SEEDS

GOLDEN = read_golden()


@pytest.mark.parametrize("kind", HOSTS)
def test_the_core_does_no_worse_than_before(kind):
    worse = {}
    for seed in range(SEEDS):
        if found := losses(GOLDEN[f"{kind}/{seed}"], record(kind, seed)):
            worse[seed] = found
    assert worse == {}
