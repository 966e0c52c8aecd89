"""A reply's way to its answer: which functions of the engine it takes, in which files.

`python -m tests.reply_way` prints them. One address of a known domain is asked for on an open
connection, in virtual time, so the figures are the same on every machine. The way begins where
the octets of its reply are read and ends where its answer is put into the stream.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trio
import trio.testing
from msgspec import Struct, field

from mailprobe import engine as package
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
from mailprobe.engine import open_answers
from tests.engine.engine_runs import open_test_engine

ENGINE = str(Path(package.__file__).parent) + "/"
WRITTEN = "SmtpConnection.write"  # the way begins with the first read after the last of these,
READ = "StreamChannel.receive"
ANSWERED = "Answers.put"  # and ends here
LATENCY_S = 0.02


class ReplyWay(Struct):
    """The engine's functions that were called, as (file, function), in order."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    is_awaited: bool = False  # a command was written, and nothing read since
    is_over: bool = False

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event != "call" or self.is_over or not file.startswith(ENGINE) or "/testing/" in file:
            return
        if name == WRITTEN:
            self.is_awaited = True
        elif name == READ and self.is_awaited:
            self.is_awaited = False
            self.calls.clear()
        self.calls.append((file.removeprefix(ENGINE), name))
        self.is_over = name == ANSWERED

    @contextmanager
    def following(self) -> Iterator[None]:
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)


async def _follow(ehlo_lines: tuple[str, ...]) -> ReplyWay:
    way = ReplyWay()
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=LATENCY_S, ehlo_lines=ehlo_lines))
        async with open_test_engine(network) as engine:
            for number in range(3):  # the domain's test, the first reply on a known host, this one
                texts = [f"known{number}@shop.test"]
                async with open_answers(engine, texts, account="me") as answers:
                    if number == 2:
                        with way.following():
                            await anext(answers)
                    else:
                        await anext(answers)
    return way


def reply_way(ehlo_lines: tuple[str, ...]) -> ReplyWay:
    return trio.run(_follow, ehlo_lines, clock=trio.testing.MockClock(autojump_threshold=0))


if __name__ == "__main__":
    for way_name, lines in (("lock-step", NO_PIPELINING), ("pipelined", EHLO_LINES)):
        way = reply_way(lines)
        sys.stdout.write(f"{way_name}: {len(way.files)} files, {len(way.calls)} calls\n")
        if "-v" in sys.argv:
            sys.stdout.writelines(f"  {file} {name}\n" for file, name in way.calls)
