"""Replies that come twice, not at all or in the wrong order never make a verdict wrong.

A seed makes a host that goes wrong at chosen or at random recipients, in each of
the ways a session can go (pipelined, lock-step, one recipient a transaction). What a local part is, is written in its name, so every verdict is
checked against the truth: only `unknown` may take its place.

Hosts name the recipient in every reply, in their refusals (as Postfix does), or
nowhere. Where a reply names nobody, some faults can't be told from the truth by
any client: see UNTOLD.
"""

import random
from typing import Any

import pytest
import trio
from msgspec import Struct

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Drop, ReplyFault, Sometimes, Swap, Twice
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import open_answers
from tests.engine.engine_runs import open_test_engine
from tests.engine.invariants import assert_whole
from tests.seeds import seeds

SEEDS = seeds(300)
ADDRESSES = 24
VERBS = ("CONNECT", "EHLO", "MAIL", "RSET")  # whose replies go wrong, too

MODES: dict[str, dict[str, object]] = {
    "pipelined": {},
    "in step": {"ehlo_lines": NO_PIPELINING},
    "one recipient": {"recipients_max": 1},
    "one recipient, in step": {"recipients_max": 1, "ehlo_lines": NO_PIPELINING},
}
WORDS: dict[str, dict[str, Any]] = {
    "everything named": {
        "default_known": "250 2.1.5 <{rcpt}> Ok",
        "default_unknown": "550 5.1.1 <{rcpt}>: User unknown",
    },
    "refusals named": {
        "default_known": "250 2.1.5 Ok",
        "default_unknown": "550 5.1.1 <{rcpt}>: User unknown",
    },
    "nothing named": {"default_known": "250 Ok", "default_unknown": "550 5.1.1 User unknown"},
}
FAULTS: dict[str, ReplyFault] = {
    "doubled": Twice(),
    "doubled 1 ms later": Twice(0.001),
    "doubled 5 ms later": Twice(0.005),
    "doubled 50 ms later": Twice(0.05),
    "dropped": Drop(),
    "swapped": Swap(),
}
# What looks to every client as the truth would: a bare reply that comes again long after the
# next command was written is the next one's reply, two bare replies of a pipeline can change
# places unseen, and who objects to a second recipient does not name it.
UNTOLD = {
    *((words, mode, "doubled 50 ms later") for words in list(WORDS)[1:] for mode in MODES),
    ("nothing named", "pipelined", "swapped"),
    *((words, "one recipient", "swapped") for words in ("nothing named", "refusals named")),
}
KINDS = [
    (words, mode, fault)
    for words in WORDS
    for mode in MODES
    for fault in FAULTS
    if (words, mode, fault) not in UNTOLD
]


class Odd(Struct, frozen=True):
    """A host that goes wrong in one way."""

    kind: tuple[str, str, str, str]
    host: MailHost


def make_odd(rng: random.Random) -> Odd:
    kind = words, mode, fault = rng.choice(KINDS)
    key = rng.choice(("RCPT", "RCPT", f"RCPT {rng.randint(1, 8)}", *VERBS))
    if key in VERBS and fault == "doubled 50 ms later":
        key = "RCPT"  # only a recipient's reply can say whose it is
    chance = rng.choice((0.05, 0.2)) if key == "RCPT" else rng.choice((0.5, 1.0))
    host = MailHost(
        **WORDS[words],
        **MODES[mode],  # type: ignore[arg-type]
        latency_s=rng.choice((0.0, 0.001, 0.02, 0.1)),
        faults={key: Sometimes(chance, FAULTS[fault])},
        splits=rng.random() < 0.2,
    )
    return Odd((*kind, key), host)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_reply_too_many_or_too_few_makes_no_verdict_wrong(autojump_clock, seed):
    rng = random.Random(seed)
    odd = make_odd(rng)
    places = []
    async with open_fake_network(seed=seed) as network:
        network.add("odd.test", odd.host)
        texts = [f"{rng.choice(('known', 'gone'))}{n}@odd.test" for n in range(ADDRESSES)]
        async with open_test_engine(network, rng=rng) as engine:
            deferred_start = rng.random() < 0.5
            async with open_answers(
                engine, texts, account="me", deferred_start=deferred_start
            ) as answers:
                async for answer in answers:
                    verdict = answer.verdict
                    known = verdict.email.startswith("known")
                    true = "deliverable" if known else "undeliverable"
                    assert verdict.status in (true, "unknown"), (odd.kind, verdict)
                    assert verdict.latency_ms <= 3050
                    places.append(answer.position)
            await trio.sleep(30)
            assert_whole(engine)
        assert sorted(places) == list(range(ADDRESSES))
        assert odd.host.record.mistakes == []
