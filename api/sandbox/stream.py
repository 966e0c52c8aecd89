"""The stream of a test key's answers: the same type as the engine's, without a packet."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from mailprobe.engine import Answer, Answers
from mailprobe.engine.background import sole_exception
from mailprobe.engine.lists.lists import Lists

from .addresses import SandboxVerification, verify


@asynccontextmanager
async def open_sandbox_answers(
    lists: Lists, texts: Sequence[str], *, explain: bool = False, asks_hosts: bool = True
) -> AsyncIterator[Answers]:
    """Open a stream with one Answer for each text, in completion order.

    Nothing is asked of a resolver or a mail host; only the addresses that choose to be slow wait.
    Leaving the block cancels what is unfinished.
    """
    answers = Answers(_ignore)
    began = trio.current_time()
    left = len(texts)

    def put(decided: SandboxVerification) -> None:
        nonlocal left
        verification = decided.verification
        verdict = verification.verdict(verification.text, trio.current_time())
        answers.put(
            Answer(verification.position, verdict, verification.evidence(), verification.cause)
        )
        left -= 1
        if not left:
            answers.end()

    async def put_later(decided: SandboxVerification) -> None:
        await trio.sleep(decided.wait_s)
        put(decided)

    try:
        async with trio.open_nursery() as nursery:
            for position, text in enumerate(texts):
                decided = verify(
                    text, position, lists, began=began, explain=explain, asks_hosts=asks_hosts
                )
                if decided.wait_s:
                    nursery.start_soon(put_later, decided)
                else:
                    put(decided)
            if not texts:
                answers.end()
            try:
                yield answers
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise sole_exception(group) from None


def _ignore() -> None:
    """Nothing waits for the reader to take answers: there are at most as many as texts."""
