"""Replies that are doubled, left out or swapped never give one address another's verdict.

Where a host does not name recipients, two swapped replies look like two right ones: so
those are swapped only where it does. Everything else holds for hosts that name nobody.
"""

from random import Random

import pytest

from mailprobe.engine.testing.fake_network import open_world
from mailprobe.engine.testing.faults import Drop, Sometimes, Swap, Twice
from mailprobe.engine.testing.host_profiles import NO_PIPELINING
from mailprobe.engine.testing.mail_host import EHLO_LINES, MailHost
from tests.engine.smtp.test_pool import ask, engine_over

OFFERS = {"pipelined": EHLO_LINES, "in step": NO_PIPELINING}
NAMING = {
    True: ("250 2.1.5 <{rcpt}>: Ok", "550 5.1.1 <{rcpt}>: User unknown"),
    False: ("250 Accepted", "550 Unrouteable address"),
}
TROUBLES = {
    "doubled": Twice(),
    "doubled 5 ms later": Twice(gap_s=0.005),
    "doubled 8 ms later": Twice(gap_s=0.008),
    "left out": Drop(),
    "swapped": Swap(),
}


def mixed(rng: Random, count: int) -> list[str]:
    return [f"{rng.choice(('known', 'gone'))}{n}@shop.test" for n in range(count)]


def is_wrong(email: str, status: str) -> bool:
    right = "deliverable" if email.startswith("known") else "undeliverable"
    return status not in (right, "unknown")


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("patient", [False, True])
async def test_nobody_gets_the_reply_of_another(autojump_clock, offer, named, trouble, patient):
    if trouble == "swapped" and not named:
        return
    wrong, told = [], 0
    for seed in range(20):
        rng = Random(f"{seed}/{trouble}/{named}/{offer}")
        known, unknown = NAMING[named]
        async with open_world(seed=seed) as world:
            host = MailHost(
                ehlo_lines=OFFERS[offer],
                default_known=known,
                default_unknown=unknown,
                reply_s=rng.choice((0.0, 0.0, 0.002, 0.05)),
                latency_s=rng.choice((0.0, 0.0, 0.01, 0.05)),
                troubles={"RCPT": Sometimes(rng.choice((0.02, 0.1, 0.3)), TROUBLES[trouble])},
            )
            world.add("shop.test", host)
            async with engine_over(world) as engine:
                texts = mixed(rng, 30)
                for verdict in await ask(engine, *texts, patient=patient):
                    told += verdict.status != "unknown"
                    if is_wrong(verdict.email, verdict.status):
                        wrong.append((seed, verdict.email, verdict.status))
    assert wrong == []
    assert told > 20 * 30 // 10
