"""Replies that are doubled, left out or swapped never give one address another's verdict.

Where a host does not name recipients, two swapped replies look like two right ones: so
those are swapped only where it does. Everything else holds for hosts that name nobody.
"""

from random import Random

import pytest

from mailprobe.engine.testing.fake_network import open_fake_network
from mailprobe.engine.testing.faults import Drop, ReplyFault, Sometimes, Swap, Twice
from mailprobe.engine.testing.host_profiles import NO_PIPELINING
from mailprobe.engine.testing.mail_host import EHLO_LINES, MailHost
from tests.engine.engine_runs import open_checked_engine, verify
from tests.seeds import seeds

OFFERS = {"pipelined": EHLO_LINES, "in step": NO_PIPELINING}
NAMING = {
    True: ("250 2.1.5 <{rcpt}>: Ok", "550 5.1.1 <{rcpt}>: User unknown"),
    False: ("250 Accepted", "550 Unrouteable address"),
}
FAULTS: dict[str, ReplyFault] = {
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
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("deferred_start", [False, True])
async def test_no_recipient_gets_the_reply_of_another(
    autojump_clock, offer, named, fault, deferred_start
):
    if fault == "swapped" and not named:
        return
    wrong, reported = [], 0
    for seed in range(seeds(20)):
        rng = Random(f"{seed}/{fault}/{named}/{offer}")
        known, unknown = NAMING[named]
        async with open_fake_network(seed=seed) as network:
            host = MailHost(
                ehlo_lines=OFFERS[offer],
                default_known=known,
                default_unknown=unknown,
                reply_s=rng.choice((0.0, 0.0, 0.002, 0.05)),
                latency_s=rng.choice((0.0, 0.0, 0.01, 0.05)),
                faults={"RCPT": Sometimes(rng.choice((0.02, 0.1, 0.3)), FAULTS[fault])},
            )
            network.add("shop.test", host)
            async with open_checked_engine(network) as engine:
                texts = mixed(rng, 30)
                for verdict in await verify(engine, *texts, deferred_start=deferred_start):
                    reported += verdict.status != "unknown"
                    if is_wrong(verdict.email, verdict.status):
                        wrong.append((seed, verdict.email, verdict.status))
    assert wrong == []
    assert reported > seeds(20) * 30 // 10
