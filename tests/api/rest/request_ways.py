"""The ways of two requests: which files and functions of the product they take.

`python -m tests.api.rest.request_ways` prints how many, with -v which ones. The requests are one address of
a known domain through the stream endpoint, and the dashboard's page of keys, to an application over
a scripted mail host and a store in memory. Each was sent before, so that nothing is imported or
rendered for the first time. Time is virtual, so the figures are the same on every machine. A call
counts once, however often it is awaited; comprehensions are parts of their functions.
"""

import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import trio
import trio.testing
from msgspec import Struct, field

from mailprobe import api, engine, storage
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import open_shop

PRODUCT = tuple(f"{Path(each.__file__ or '').parent}/" for each in (api, engine, storage))
ROOT = f"{Path(PRODUCT[0]).parent}/"
BACKGROUND_S = 5.0  # after which a start's work in the background has ended
PARTS = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})


class RequestWay(Struct):
    """The calls of the product's functions, by (file, function)."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PRODUCT) or code.co_name in PARTS:
            return
        if _is_start(frame):
            file = code.co_filename.removeprefix(ROOT)
            self.calls[file, code.co_qualname] += 1


def _is_start(frame: FrameType) -> bool:
    """Does the function begin here? Else it goes on after an await or a yield.

    It is at a RESUME, whose argument is 0 at a beginning.
    """
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 == 0


async def _streamed() -> RequestWay:
    async with open_shop(kind="memory") as shop:
        return await _followed(lambda: shop.stream("bob@friendly.test"))


async def _keys_page() -> RequestWay:
    async with open_shop(kind="memory") as shop:
        client = await signed_in(shop)
        return await _followed(lambda: client.get("/keys"))


async def _followed(send: Callable[[], Awaitable[object]]) -> RequestWay:
    way = RequestWay()
    await trio.sleep(BACKGROUND_S)
    for _ in range(3):  # the first on a new domain, the first on a known host, one as all others
        await send()
    sys.setprofile(way.note)
    try:
        await send()
    finally:
        sys.setprofile(None)
    return way


def request_ways() -> dict[str, RequestWay]:
    """Both ways by name."""
    return {
        name: trio.run(follow, clock=trio.testing.MockClock(autojump_threshold=0))
        for name, follow in (("streamed address", _streamed), ("page of keys", _keys_page))
    }


def figures(ways: dict[str, RequestWay]) -> dict[str, int]:
    """The size of each way."""
    return {
        f"{kind} of a {name}": number
        for name, way in ways.items()
        for kind, number in (
            ("files", len(way.files)),
            ("functions", len(way.calls)),
            ("calls", way.calls.total()),
        )
    }


if __name__ == "__main__":
    found = request_ways()
    print(*(f"{name}: {number:,}" for name, number in figures(found).items()), sep="\n")
    if "-v" in sys.argv:
        for name, way in found.items():
            print(f"\n{name}")
            print(
                *(f"  {number:4} {' '.join(call)}" for call, number in sorted(way.calls.items())),
                sep="\n",
            )
