"""Without layer 4: no connection is tried, and what it would have decided is `not_asked`."""

from collections.abc import Sequence

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Answer, known_answers
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.verdict import PASSING
from tests.engine.engine_runs import open_test_engine
from tests.engine.stream.streams import collect

# text -> status, confidence, failed_check, mx_found
CASES = {
    "known@shop.test": ("unknown", 0.5, None, True),
    "no@shop.test": ("unknown", 0.5, None, True),
    "ann@yahoo.com": ("unknown", 0.75, None, True),  # layers 1 to 3 know more
    "ann@nowhere.test": ("invalid", 0.0, "no_mx", False),
    "ann@mailinator.com": ("invalid", 0.0, "disposable", False),
    "no address": ("invalid", 0.0, "syntax", False),
}


def reported(answers: Sequence[Answer]) -> dict[str, tuple[object, ...]]:
    return {
        v.email: (v.status, v.confidence, v.failed_check, v.mx_found)
        for v in (answer.verdict for answer in answers)
    }


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("by_setting", [False, True])
async def test_no_connection_is_tried(autojump_clock, as_list: bool, by_setting: bool):
    """The host would be silent for its whole clock: the answers are there at once."""
    async with open_fake_network() as network:
        for domain in ("shop.test", "yahoo.com"):
            network.add(domain, MailHost(latency_s=10))
        async with open_test_engine(network, asks_hosts=not by_setting) as engine:
            answers = await collect(
                engine, *CASES, deferred_start=as_list, explain=True, asks_hosts=by_setting
            )
            assert reported(answers) == CASES
            assert trio.current_time() < 1.5  # the look-ups
            assert not network.dialled
            known = known_answers(engine, ["known@shop.test"], asks_hosts=False)
            assert known is not None
            assert reported(known.answers) == {"known@shop.test": CASES["known@shop.test"]}
            if not by_setting:  # another caller still asks
                assert known_answers(engine, ["known@shop.test"]) is None
    [answer] = [answer for answer in answers if answer.verdict.email == "known@shop.test"]
    assert answer.cause == VerdictCause("not_asked", None)
    assert answer.evidence is not None
    assert (answer.evidence.rule, answer.evidence.conversation) == ("not_asked", [])
    assert "not_asked" not in PASSING
