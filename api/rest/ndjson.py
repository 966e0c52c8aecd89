"""The body of a stream: one line per verdict, sent as soon as it is known.

Entering it opens the stream of answers, leaving it closes that stream, so the work ends
whenever the sender stops. It is no async generator, because one must not hold the stream's
nursery open across a yield (PEP 789).
"""

from collections.abc import AsyncIterator
from types import TracebackType

from quart.wrappers.response import ResponseBody

from ..operations.operation import StreamedLines
from ..quota.charge import ChargedAnswers


class NdjsonBody(ResponseBody):
    """Quart's body of a response: lines as octets; those that are ready together are sent together."""

    def __init__(self, lines: StreamedLines) -> None:
        self._lines = lines
        self._block = lines.answers
        self._answers: ChargedAnswers

    async def __aenter__(self) -> "NdjsonBody":
        self._answers = await self._block.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._block.__aexit__(kind, error, traceback)

    @property
    def whole(self) -> bool:
        """Has the last line been taken?"""
        return self._answers.whole

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        ready = await self._answers.next_ready()
        if not ready:
            raise StopAsyncIteration
        return self._lines.encode(ready)
