"""Lists at hosts whose limits and habits are drawn at random: no answer is wrong, hardly one is missing."""

from collections.abc import Mapping
from random import Random

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import (
    Close,
    Drop,
    Garbage,
    Half,
    Late,
    ResetConnection,
    SendLine,
    StaySilent,
)
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.engine.smtp.tolerance.limits import HOUR_S
from tests.engine.engine_runs import UNTESTED, open_checked_engine
from tests.engine.smtp.tolerance.test_at_hosts import (
    Results,
    ask,
    ask_list_again,
    mixed,
    neutral_host,
    truth,
)
from tests.seeds import seeds

LEFT_MAX = 2  # of 38: a host that limits a rate and more leaves some to a later pass
# How often a list that comes back four times, with 4 hours' patience each, may ask about a mailbox.
ASKED_MAX = 60
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
# What may befall one, likewise.
FAULTS: Mapping[str, tuple[float, tuple[object, ...]]] = {
    "weather": (
        0.7,
        tuple(
            ((share, fault),)
            for share in (0.01, 0.03, 0.1)
            for fault in (
                Close(),
                Drop(),
                Garbage(),
                Half(),
                Late(by_s=0.9),
                Late(by_s=4.0),
                ResetConnection(),
                SendLine("421 4.3.2 shutting down", close=True),
                SendLine("451 4.3.0 internal error"),
                StaySilent(),
            )
        ),
    ),
    "troubled_sessions": (0.3, (1, 3)),
    "greylist_s": (0.3, (1.0, 60.0, 280.0)),
    "greylist_reply": (
        1.0,
        (
            "450 4.7.1 <{rcpt}>: Recipient address rejected: Greylisted",
            "451 Temporary local problem - please try later",
            "452 4.2.2 temporarily deferred",
            "550 5.7.1 Greylisted, try again in 5 minutes",
        ),
    ),
    "shape_reply": (0.2, ("550 5.1.1 unknown user", "550 5.7.1 rejected", "450 4.7.1 later")),
}
ALL_END_S = 48 * HOUR_S


def drawn(rng: Random, table: Mapping[str, tuple[float, tuple[object, ...]]]) -> dict[str, object]:
    """The habits of one host, or its troubles."""
    return {
        name: rng.choice(values) for name, (share, values) in table.items() if rng.random() < share
    }


def expected(text: str, *, takes_all: bool) -> str:
    return "catch_all" if takes_all and text.endswith("@all.test") else truth(text)


@pytest.mark.parametrize("seed", range(seeds(600)))
async def test_a_list_is_known_at_any_host_that_answers(autojump_clock, seed):
    rng = Random(seed)
    habits = drawn(rng, HABITS)
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
    assert max(host.record.recipients.values()) <= ASKED_MAX


@pytest.mark.parametrize("seed", range(seeds(300)))
async def test_lists_beside_each_other_end_and_none_is_wrong_at_a_host_in_trouble(
    autojump_clock, seed
):
    """Two lists, and single requests, at a host whose replies fail, and perhaps its backup."""
    rng = Random(seed)
    habits = {**drawn(rng, HABITS), **drawn(rng, FAULTS)}
    takes_all = "catch_all" in habits
    texts = [*mixed(16, 0.4, start=seed), *mixed(4, 0.0, "all.test", start=seed)]
    texts += mixed(4, 0.5, "far.test", start=seed)
    rng.shuffle(texts)
    results = Results()
    async with open_fake_network(seed=seed) as network:
        host, backup = (
            neutral_host(**habits),
            neutral_host(catch_all=habits.get("catch_all", False)),
        )
        has_backup = rng.random() < 0.5
        for domain in ("shop.test", "all.test", "far.test"):
            network.add(domain, host, mx="mx1.shop.test")
            if has_backup:
                network.add(domain, backup, mx="mx2.shop.test", preference=20)
        async with open_checked_engine(network) as engine, trio.open_nursery() as nursery:

            async def verify_list(own: list[str], after_s: float) -> None:
                await trio.sleep(after_s)
                results.add((await ask_list_again(engine, own)).answers)

            nursery.start_soon(verify_list, texts[:14], 0.0)
            nursery.start_soon(verify_list, texts[10:], rng.choice([0.0, 1.0, 30.0]))
            nursery.cancel_scope.deadline = trio.current_time() + ALL_END_S
            for text in texts[:8]:
                results.add((await ask(engine, [text], account="you")).answers)
                await trio.sleep(rng.choice([0.1, 3.0, 60.0]))
        assert not nursery.cancel_scope.cancelled_caught
    statuses = {text: results.of(text) for text in texts}
    wrong = {
        text: status
        for text, status in statuses.items()
        if status not in (expected(text, takes_all=takes_all), "unknown")
        and results.answers[text].verdict.confidence != UNTESTED[2]
    }
    assert wrong == {}
