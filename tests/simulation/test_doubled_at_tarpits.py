"""A doubled reply at a host that is slow to refuse makes no verdict wrong.

Such a host owes one reply more while it is silent, so a short silence proves nothing.
"""

import random

import pytest

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Sometimes, Twice
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import open_answers
from tests.engine.engine_runs import open_test_engine
from tests.seeds import seeds
from tests.simulation.test_out_of_step import MODES, WORDS

TARPITS_S = (0.3, 1.2)
DOUBLED = ("EHLO", "MAIL", "RSET", "RCPT")  # RCPT: of one that it knows, whose reply is prompt


@pytest.mark.parametrize("doubled", DOUBLED)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("words", WORDS)
async def test_a_doubled_reply_before_a_late_one_makes_no_verdict_wrong(
    autojump_clock, words, mode, doubled
):
    """A reply too many, and a host that is slow to refuse: it owes one still when it is silent."""
    wrong = []
    for seed in range(seeds(30)):
        rng = random.Random(seed)
        fault = Sometimes(0.5, Twice(rng.choice((0.0, 0.001, 0.005))))
        names = [f"known{rng.randrange(8)}"] if doubled == "RCPT" else [doubled]
        host = MailHost(
            **WORDS[words],
            **MODES[mode],  # type: ignore[arg-type]
            latency_s=rng.choice((0.0, 0.02)),
            unknown_delay_s=rng.choice(TARPITS_S),
            faults=dict.fromkeys(names, fault),
        )
        async with open_fake_network(seed=seed) as network:
            network.add("odd.test", host)
            texts = [f"{rng.choice(('known', 'gone'))}{n}@odd.test" for n in range(8)]
            async with (
                open_test_engine(network, rng=rng) as engine,
                open_answers(
                    engine,
                    texts,
                    account="me",
                    deferred_start=rng.random() < 0.5,
                    patient=seed % 2 == 1,
                ) as answers,
            ):
                async for answer in answers:
                    verdict = answer.verdict
                    known = verdict.email.startswith("known")
                    true = "deliverable" if known else "undeliverable"
                    if verdict.status not in (true, "unknown"):
                        wrong.append((seed, verdict.email, verdict.status))
    assert wrong == []
