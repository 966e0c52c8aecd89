"""A callback carries on the trace of the request that made its job or its list."""

import re
from collections.abc import Mapping

import pytest
import trio

from mailprobe.api.jobs.delivery import Delivered
from tests.api.jobs.test_worker import Receiver, promise, working
from tests.api.lists.test_lists import HOOK, send, working_lists
from tests.api.service_fixture import open_shop

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
CHILD = re.compile(rf"00-{TRACE}-(?!00f067aa0ba902b7)(?!0{{16}})[0-9a-f]{{16}}-01")


@pytest.mark.parametrize("sends_list", [False, True])
@pytest.mark.parametrize(("parent", "is_valid"), [(PARENT, True), (PARENT.upper(), False)])
async def test_each_attempt_is_a_span_of_a_valid_trace_alone(
    autojump_clock: object, sends_list: bool, parent: str, is_valid: bool
) -> None:
    receiver, headers = Receiver(), {"traceparent": parent}
    async with open_shop("scale") as shop, working(shop, receiver), working_lists(shop):
        receiver.answer = lambda host: Delivered(500, None, None, 5)
        if sends_list:
            assert (await send(shop, query=f"?webhook={HOOK}", headers=headers)).status == 202
        else:
            assert (await promise(shop, headers=headers)).status == 202
        with trio.fail_after(600):
            while len(receiver.calls) < 2:  # noqa: ASYNC110  # of virtual time
                await trio.sleep(1)
    sent: list[Mapping[str, str]] = [headers for _, _, headers, _ in receiver.calls[:2]]
    if not is_valid:
        assert all("traceparent" not in each for each in sent)
        return
    spans = {each["traceparent"] for each in sent}
    assert len(spans) == 2
    assert all(map(CHILD.fullmatch, spans)), spans
