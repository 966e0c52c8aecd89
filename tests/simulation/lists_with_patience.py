"""A list that comes back for what its mail hosts do not take now, as list jobs and `clean` do."""

from collections.abc import Sequence

import trio

from mailprobe.engine import Answer, Engine, open_answers
from mailprobe.engine.smtp.tolerance.limits import HOUR_S

PATIENCE_S = 4 * HOUR_S  # of a list job
FEWEST_WAIT_S = 1.0  # between two passes


async def ask_in_passes(
    engine: Engine, texts: Sequence[str], account: str, patience_s: float = PATIENCE_S
) -> list[Answer]:
    """The last answer to each text. Within the patience, those that have a time are asked again then."""
    answers: list[Answer] = []
    left, deadline = list(texts), trio.current_time() + patience_s
    while left:
        patience_left_s = max(0.0, deadline - trio.current_time())
        async with open_answers(
            engine, left, account=account, deferred_start=True, patience_s=patience_left_s
        ) as stream:
            found = [answer async for answer in stream]
        waiting = [answer for answer in found if answer.retry_s is not None]
        soonest_s = min((answer.retry_s or 0.0 for answer in waiting), default=0.0)
        if trio.current_time() + soonest_s > deadline:
            return answers + found
        answers += [answer for answer in found if answer.retry_s is None]
        left = [answer.verdict.email for answer in waiting]
        if left:
            await trio.sleep(max(FEWEST_WAIT_S, soonest_s))
    return answers
