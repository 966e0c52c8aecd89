"""Lists at hosts whose limits and habits are drawn at random: no answer is wrong, hardly one is missing."""

from collections.abc import Mapping
from random import Random

import pytest

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from tests.engine.engine_runs import open_checked_engine
from tests.engine.smtp.tolerance.test_at_hosts import ask_list_again, mixed, neutral_host, truth
from tests.seeds import seeds

LEFT_MAX = 2  # of 38: a host that limits a rate and more leaves some to a later pass
# What a host may do, each with the share of hosts that do so.
HABITS: Mapping[str, tuple[float, tuple[object, ...]]] = {
    "ehlo_lines": (0.3, (NO_PIPELINING,)),
    "session_recipients_max": (0.3, (1, 2, 3, 5, 10)),
    "session_recipients_reply": (
        1.0,
        (
            "421 4.7.0 Enough",
            "",
            "452 4.5.3 Too many recipients",
            "550 5.7.1 Maximum recipients per connection exceeded",
            "451 4.7.1 try again later",
        ),
    ),
    "recipients_max": (0.3, (1, 2, 5, 10)),
    "recipients_reply": (
        1.0,
        (
            "452 4.5.3 Error: too many recipients",
            "452 Too many recipients received this hour",
            "451 4.5.3 Too many recipients",
            "550 5.5.3 Too many recipients",
        ),
    ),
    "rate_max": (0.2, (10, 30)),
    "rate_s": (1.0, (60.0, 600.0)),
    "rate_reply": (
        1.0,
        (
            "450 4.7.1 Error: too many recipients from probe.test[192.0.2.1]",
            "421 4.7.0 rate limit, try later",
            "451 4.7.1 Slow down",
        ),
    ),
    "transactions_max": (0.2, (1, 2, 5)),
    "refusals_max": (0.3, (1, 2, 3, 5, 10)),
    "refusals_free": (0.1, (2, 5)),
    "nonmail_max": (0.2, (3, 6)),
    "commands_max": (0.15, (6, 10, 20)),
    "connections_max": (0.2, (1, 2)),
    "idle_s": (0.15, (0.3, 2.0)),
    "named_sender_reply": (0.1, ("550 5.1.8 sender refused",)),
    "unknown_delay_s": (0.15, (0.3,)),
    "reply_s": (0.2, (0.05, 0.2)),
    "latency_s": (0.2, (0.1, 0.25)),
    "counts_accepted_only": (0.15, (True,)),
    "mail_again_reply": (
        0.15,
        ("421 4.7.0 one message only", "503 5.5.1 nested", "451 4.3.0 later"),
    ),
    "default_unknown": (
        0.15,
        (
            "550 no such user",
            "554 5.7.1 mailbox unavailable",
            "550 5.4.1 Recipient address rejected: Access denied",
            "553 sorry, no mailbox here by that name (#5.1.1)",
            "550-first\r\n550 5.1.1 unknown",
        ),
    ),
    "splits": (0.15, (True,)),
    "catch_all": (0.3, (frozenset({"all.test"}),)),
}


def drawn(rng: Random) -> dict[str, object]:
    """The habits of one host."""
    return {
        name: rng.choice(values) for name, (share, values) in HABITS.items() if rng.random() < share
    }


def expected(text: str, *, takes_all: bool) -> str:
    return "catch_all" if takes_all and text.endswith("@all.test") else truth(text)


@pytest.mark.parametrize("seed", range(seeds(600)))
async def test_a_list_is_known_at_any_host_that_answers(autojump_clock, seed):
    rng = Random(seed)
    habits = drawn(rng)
    takes_all = "catch_all" in habits
    texts = [*mixed(30, 0.4, start=100 * seed), *mixed(8, 0.0, "all.test", start=100 * seed)]
    rng.shuffle(texts)
    async with open_fake_network() as network:
        host = neutral_host(**habits)
        for domain in ("shop.test", "all.test"):
            network.add(domain, host)
        async with open_checked_engine(network) as engine:
            results = await ask_list_again(engine, texts)
    others = {
        text: results.of(text)
        for text in texts
        if results.of(text) != expected(text, takes_all=takes_all)
    }
    assert set(others.values()) <= {"unknown"}
    assert len(others) <= LEFT_MAX
