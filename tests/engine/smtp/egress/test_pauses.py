"""What the operator pauses while addresses wait for an egress, or change it."""

import pytest
import trio

from mailprobe.engine.pauses import Pauses
from tests.engine.smtp.egress.test_held_probes import BOTH, mailboxes, open_blocks
from tests.engine.smtp.egress.worlds import A, B, answers_of, open_world, reasons

PAUSED = {
    "domain": Pauses(domains=frozenset({"shop0.test"})),
    "operator": Pauses(operators=frozenset({"google"})),
}


@BOTH
@pytest.mark.parametrize("kind", PAUSED)
@pytest.mark.parametrize("refused", [False, True], ids=["held", "passed on"])
async def test_a_pause_reaches_addresses_that_wait_for_an_egress(
    autojump_clock, deferred_start, kind, refused
):
    """Held for the next block of the day, also after another egress was refused."""
    async with open_world() as world:
        google = world.add(1, mx="{}.aspmx.l.google.com", refuses="a" if refused else "")
        texts = mailboxes(google + world.add(1))
        async with open_blocks(world, *((A, B) if refused else (A,))) as (engine, control):
            control.left["a"] = 100 if refused else 0
            async with trio.open_nursery() as nursery:

                async def pause() -> None:
                    await trio.sleep(1)
                    engine.pauses.change(PAUSED[kind])
                    control.left.update(dict.fromkeys("ab", 100))

                nursery.start_soon(pause)
                found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"paused": 5, "accepted": 5}
            engine.pauses.change(Pauses())
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found)["paused"] == 0
