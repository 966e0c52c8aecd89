"""Streams of texts, and all their answers."""

from collections.abc import Iterator
from typing import Any

from mailprobe.engine import (
    Answer,
    Engine,
    open_answers,
)


async def collect(engine: Engine, *texts: str, account: str = "me", **options: Any) -> list[Answer]:
    """Every answer, in the order of arrival."""
    async with open_answers(engine, texts, account=account, **options) as answers:
        return [answer async for answer in answers]


class Counted:
    """Texts, counting how many were read."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.read += 1
            yield text


def endless(pattern: str) -> Counted:
    numbers = iter(range(10**9))
    return Counted(pattern.format(number) for number in numbers)
