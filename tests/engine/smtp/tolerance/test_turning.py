"""Lists at hosts that stop judging after some refusals, where a session has no place for a control."""

import pytest

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_behaviours import Turning
from tests.engine.engine_runs import open_checked_engine
from tests.engine.smtp.tolerance.test_at_hosts import ask_list, mixed, neutral_host

UNKNOWN = "550 5.1.1 <{rcpt}>: no such mailbox here"


@pytest.mark.parametrize("most", [1, 2])
async def test_a_host_that_accepts_everybody_and_takes_few_in_a_connection_is_never_believed(
    autojump_clock, most
):
    """Beyond ten refusals it accepts everybody for half an hour."""
    async with open_fake_network() as network:
        host = neutral_host(
            session_recipients_max=most,
            session_recipients_reply="421 4.7.0 Enough",
            turn=Turning(10, reply=None, rest_s=1_800.0),
        )
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            (await ask_list(engine, mixed(30, 0.5), patience_s=3_600.0)).assert_none_wrong()


@pytest.mark.parametrize("refusals_max", [1, 2])
@pytest.mark.parametrize("start", [0, 100, 200])
async def test_a_host_that_refuses_everybody_and_ends_sessions_condemns_nobody(
    autojump_clock, refusals_max, start
):
    """A session that ends at its refusals has no place for an address that was accepted before.

    The next session shows whether the host judges, and costs it no further refusal.
    """
    async with open_fake_network() as network:
        host = neutral_host(
            refusals_max=refusals_max, turn=Turning(10, reply=UNKNOWN, rest_s=7_200.0)
        )
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            results = await ask_list(engine, mixed(38, 0.3, start=start))
        results.assert_none_wrong()
        assert results.statuses()["unknown"] <= 20
