"""A list that comes back for what its mail hosts do not take now, as list jobs and `clean` do."""

from collections import Counter
from collections.abc import Sequence

import trio

from mailprobe.engine import Answer, Engine, open_answers
from mailprobe.engine.smtp.tolerance.limits import HOUR_S

PATIENCE_S = 4 * HOUR_S  # of a list job
FEWEST_WAIT_S = 5.0  # as `clean` puts waits together
RECHECK_S, RECHECKS = 300.0, 2  # of what may be known later, and has no time of its own
TOGETHER_S = 1.0  # what is due so soon is asked in one pass


async def ask_in_passes(
    engine: Engine,
    texts: Sequence[str],
    account: str,
    patience_s: float = PATIENCE_S,
    *,
    explain: bool = False,
) -> list[Answer]:
    """The last answer to each text, asked again as a list is: by the host's time, or twice later."""
    answers: list[Answer] = []
    due_at: dict[str, float] = dict.fromkeys(texts, trio.current_time())  # each at its own time
    twice = Counter(texts)
    rechecked: Counter[str] = Counter()
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
            explain=explain,
        ) as stream:
            found = [answer async for answer in stream]
        now = trio.current_time()
        for text in due:
            del due_at[text]
        for answer in found:
            text, wait_s = answer.verdict.email, answer.retry_s
            if wait_s is None and answer.is_passing and rechecked[text] < RECHECKS:
                rechecked[text] += 1
                wait_s = RECHECK_S
            if wait_s is None or now + wait_s > deadline:
                answers.append(answer)
            else:
                due_at[text] = now + max(wait_s, FEWEST_WAIT_S)
    return answers
