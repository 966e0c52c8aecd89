"""Replies that are doubled, left out or swapped never give one address another's verdict.

Where a host does not name recipients, two swapped replies look like two right ones: so
those are swapped only where it does. Everything else holds for hosts that name nobody.
"""

from random import Random

import pytest
from msgspec import Struct

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import (
    Drop,
    ReplyFault,
    ReplyWriter,
    Sometimes,
    Swap,
    Twice,
)
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
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


@pytest.mark.parametrize("gap_s", [0.02, 0.05, 0.1])
async def test_a_doubled_acceptance_is_no_answer_to_the_next_of_a_host_that_takes_its_time(
    autojump_clock, gap_s
):
    """Both come together, and the right reply as long after as this host takes for each."""
    known, unknown = NAMING[False]
    async with open_fake_network(seed=1) as network:
        faults: dict[str, ReplyFault] = {}
        host = MailHost(default_known=known, default_unknown=unknown, reply_s=gap_s, faults=faults)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            await verify(engine, *(f"known{n}@shop.test" for n in range(4)), "gone4@shop.test")
            faults["known5@shop.test"] = Twice()
            texts = ["known5@shop.test", "gone6@shop.test"]
            verdicts = await verify(engine, *texts, deferred_start=True)
    assert not [each.email for each in verdicts if is_wrong(each.email, each.status)]


GOODBYE = b"421 4.7.0 mx.shop.test Error: too many errors\r\n"


class Closing(Struct, frozen=True):
    """Say 421 in the same segment, before the reply or behind it, and close."""

    before: bool

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await reply_writer.send(GOODBYE + octets if self.before else octets + GOODBYE)
        return False


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("deferred_start", [False, True])
async def test_a_refusal_that_names_its_recipient_counts_although_the_host_closes_with_421(
    autojump_clock, offer, before, deferred_start
):
    known, unknown = NAMING[True]
    async with open_fake_network(seed=1) as network:
        host = MailHost(
            ehlo_lines=OFFERS[offer],
            default_known=known,
            default_unknown=unknown,
            faults={"RCPT": Closing(before)},
        )
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            texts = [f"gone{n}@shop.test" for n in range(13)]
            verdicts = [
                (await verify(engine, text, deferred_start=deferred_start))[0] for text in texts
            ]
    assert [verdict.status for verdict in verdicts] == ["undeliverable"] * len(texts)


async def test_a_refusal_without_a_name_before_421_is_no_answer(autojump_clock):
    """With PIPELINING the random address is in the same write, and the 421 is its answer."""
    async with open_fake_network(seed=1) as network:
        host = MailHost(
            ehlo_lines=NO_PIPELINING,
            default_unknown="550 5.1.1 User unknown",
            faults={"RCPT": Closing(before=False)},
        )
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            (verdict,) = await verify(engine, "gone@shop.test")
    assert verdict.status == "unknown"
