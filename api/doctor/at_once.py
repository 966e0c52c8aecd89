"""Questions that are asked at the same time."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")


async def all_at_once(questions: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Ask all of them at the same time; return their answers in order."""
    answers: dict[int, T] = {}

    async def answer(place: int, question: Callable[[], Awaitable[T]]) -> None:
        answers[place] = await question()

    async with trio.open_nursery() as nursery:
        for place, question in enumerate(questions):
            nursery.start_soon(answer, place, question)
    return [answers[place] for place in sorted(answers)]
