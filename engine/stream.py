"""open_answers(): many addresses -> a stream of Answer, in completion order."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.evidence import Evidence
from engine.settings import EngineSettings
from engine.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict, and the place its address had among those asked for (from 0)."""

    place: int
    verdict: Verdict
    evidence: Evidence | None = None


class Engine: ...


class Answers:
    def __aiter__(self) -> "Answers":
        return self

    async def __anext__(self) -> Answer:
        raise StopAsyncIteration


@asynccontextmanager
async def open_engine(settings: EngineSettings) -> AsyncIterator[Engine]:
    yield Engine()


@asynccontextmanager
async def open_answers(
    engine: Engine,
    texts: Iterable[str],
    *,
    asker: str,
    patient: bool = False,
    explain: bool = False,
) -> AsyncIterator[Answers]:
    yield Answers()
