"""A list that comes back for what its mail hosts do not take now, as list jobs and `clean` do."""

from collections import Counter
from collections.abc import Sequence

import trio

from mailprobe.engine import Answer, Engine, open_answers
from mailprobe.engine.smtp.tolerance.limits import HOUR_S

PATIENCE_S = 4 * HOUR_S  # of a list job
FEWEST_WAIT_S = 5.0  # as `clean` puts waits together
TOGETHER_S = 1.0  # what is due so soon is asked in one pass


async def ask_in_passes(
    engine: Engine, texts: Sequence[str], account: str, patience_s: float = PATIENCE_S
) -> list[Answer]:
    """The last answer to each text. Within the patience, those that have a time are asked again then."""
    answers: list[Answer] = []
    due_at: dict[str, float] = dict.fromkeys(texts, trio.current_time())  # each at its own time
    twice = Counter(texts)
    deadline = trio.current_time() + patience_s
    while due_at:
        now = trio.current_time()
        due = [text for text, at in due_at.items() if at <= now + TOGETHER_S]
        if not due:
            await trio.sleep(min(due_at.values()) - now)
            continue
        asked = [text for text in due for _ in range(twice[text])]
        async with open_answers(
            engine,
            asked,
            account=account,
            deferred_start=True,
            patience_s=max(0.0, deadline - now),
        ) as stream:
            found = [answer async for answer in stream]
        now = trio.current_time()
        for text in due:
            del due_at[text]
        for answer in found:
            retry_at = None if answer.retry_s is None else now + answer.retry_s
            if retry_at is None or retry_at > deadline:
                answers.append(answer)
            else:
                due_at[answer.verdict.email] = max(retry_at, now + FEWEST_WAIT_S)
    return answers
