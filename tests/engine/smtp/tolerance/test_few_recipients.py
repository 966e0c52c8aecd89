"""How often a list asks a host about one mailbox until it has its verdict."""

import pytest

from mailprobe.bench.world.fake_network import open_fake_network
from tests.engine.engine_runs import open_checked_engine
from tests.engine.smtp.tolerance.test_at_hosts import ask_list_again, mixed, neutral_host

GREYLISTS = (
    "450 4.7.1 <{rcpt}>: Recipient address rejected: Greylisted",
    "451 Temporary local problem - please try later",
    "550 5.7.1 Greylisted, try again in 5 minutes",
)
ONE_BY_ONE = {"session_recipients_max": 1, "session_recipients_reply": "421 4.7.0 Enough"}
TWO_BY_TWO = {"session_recipients_max": 2, "session_recipients_reply": ""}


async def most_asked(takes_all: bool = False, **habits: object) -> int:
    """How often at most it asked about one mailbox, listed or random; all verdicts are right."""
    catch_all = frozenset({"all.test"} if takes_all else ())
    async with open_fake_network() as network:
        host = neutral_host(catch_all=catch_all, **habits)
        for domain in ("shop.test", "all.test"):
            network.add(domain, host)
        texts = [*mixed(20, 0.4), *mixed(6, 0.0, "all.test")]
        async with open_checked_engine(network) as engine:
            results = await ask_list_again(engine, texts)
    if takes_all:
        assert {results.of(text) for text in texts if text.endswith("@all.test")} == {"catch_all"}
        for text in texts[20:]:
            del results.answers[text]
    results.assert_true()
    assert results.confidences() <= {0.97, 0.02}
    return max(host.record.recipients.values())


@pytest.mark.parametrize("unknown_delay_s", [0.3, 0.8])
async def test_one_connection_and_slow_refusals_cost_few_recipients(
    autojump_clock, unknown_delay_s
):
    """Giving up the slow random name for the rows behind it would never get its answer."""
    assert await most_asked(connections_max=1, unknown_delay_s=unknown_delay_s) <= 3


@pytest.mark.parametrize("takes_all", [False, True])
@pytest.mark.parametrize("greylist_s", [60.0, 280.0])
@pytest.mark.parametrize("reply", GREYLISTS)
async def test_a_greylisted_random_name_stays_the_same(
    autojump_clock, reply, greylist_s, takes_all
):
    habits = {"greylist_s": greylist_s, "greylist_reply": reply}
    assert await most_asked(takes_all, **habits) <= 12


@pytest.mark.parametrize("takes_all", [False, True])
@pytest.mark.parametrize("limit", [ONE_BY_ONE, TWO_BY_TWO], ids=["one", "two"])
@pytest.mark.parametrize("reply", GREYLISTS)
async def test_greylisting_and_few_recipients_a_connection_cost_a_limited_number(
    autojump_clock, reply, limit, takes_all
):
    """Its acceptances need a proof that no connection has a place for."""
    habits = {"greylist_s": 60.0, "greylist_reply": reply}
    assert await most_asked(takes_all, **limit, **habits) <= 60
