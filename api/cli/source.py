"""Sources of answers: the one interface through which `verify`, `clean` and `demo` verify.

One source is an engine in this process, another a service over HTTP (http_source).
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from mailprobe.api.gc_tuning import tune_collector
from mailprobe.engine.settings import EngineSettings

if TYPE_CHECKING:  # the engine imports DNS, HTTP and SMTP: import it only when it is opened
    from mailprobe.engine.stream.answers import Answer
    from mailprobe.engine.stream.engine import Engine

ACCOUNT = "command line"


class AnswerSource(Protocol):
    """Verifies texts and returns the answers as a stream.

    One Answer for each text, in completion order: `position` counts the texts from 0
    and `verdict.email` is the text as given. Texts are submitted in the order given,
    as capacity allows. Leaving the block cancels what is unanswered. A source that
    fails raises CommandError.
    """

    def open_answers(
        self, texts: Sequence[str], *, explain: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterable["Answer"]]: ...


OpenSource = Callable[[], AbstractAsyncContextManager[AnswerSource]]


class OwnEngine:
    """An engine in this process. A probe's deadline starts once its host has a free connection."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def open_answers(
        self, texts: Sequence[str], *, explain: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterable["Answer"]]:
        from mailprobe.engine.stream.scheduler import open_answers

        return open_answers(
            self._engine, texts, account=ACCOUNT, deferred_start=True, explain=explain
        )


@asynccontextmanager
async def open_own_engine(
    settings: EngineSettings,
) -> AsyncIterator[AnswerSource]:
    """Open an engine for one command; leaving the block closes its connections with QUIT."""
    from mailprobe.engine.stream.engine import open_engine

    async with open_engine(settings) as engine:
        tune_collector()
        yield OwnEngine(engine)
