"""Whoever answers: the one interface that `verify`, `clean` and `demo` ask through.

An engine in this process is one, a service reached over HTTP another (http_source).
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from mailprobe.api.gc_tuning import spare_the_collector
from mailprobe.engine.settings import EngineSettings

if TYPE_CHECKING:  # the engine brings DNS, HTTP and SMTP along: import it when it is opened
    from mailprobe.engine.stream.answers import Answer
    from mailprobe.engine.stream.engine import Engine

ACCOUNT = "command line"


class Source(Protocol):
    """Something that answers texts as a stream.

    One Answer for each text, in completion order; `place` counts the texts from 0
    and `verdict.email` is the text as given. Texts are asked in the order given,
    as the source has room. Leaving the block cancels what is unanswered. A source
    that can answer no more raises Trouble with a line for a person.
    """

    def open_answers(
        self, texts: Sequence[str], *, explain: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterable["Answer"]]: ...


OpenSource = Callable[[], AbstractAsyncContextManager[Source]]


class OwnEngine:
    """An engine in this process, which waits for a host's seat before a probe's clock starts."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def open_answers(
        self, texts: Sequence[str], *, explain: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterable["Answer"]]:
        from mailprobe.engine.stream.scheduler import open_answers

        return open_answers(self._engine, texts, account=ACCOUNT, patient=True, explain=explain)


@asynccontextmanager
async def open_own_engine(
    settings: EngineSettings,
) -> AsyncIterator[Source]:
    """An engine for one command, and the end of its start; closed politely with the block."""
    from mailprobe.engine.stream.engine import open_engine

    async with open_engine(settings) as engine:
        spare_the_collector()
        yield OwnEngine(engine)
