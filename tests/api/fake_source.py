"""A verdict source without a network: an address's local part determines its verdict.

`full+1@shop.test` gets the verdict of Outcome.MAILBOX_FULL; any other word is accepted.
As a program it is `mailprobe` with this source as its engine:

    python -m tests.api.fake_source [--hang-after N] [--fail-after N] -- clean list.csv

It writes each requested address to the descriptor that FAKE_SOURCE_FD names,
and `ready` before it hangs. With --file-octets-max N no file grows beyond N, as on a full disk.
"""

import math
import os
import resource
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio

import mailprobe.api.cli
import mailprobe.api.cli.source
from mailprobe.api.errors import CommandError
from mailprobe.api.results.row_result import RowResult, row_result
from mailprobe.engine.evidence import ConnectionAttempt, ConversationLine, Evidence
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.stream.answers import Answer
from mailprobe.engine.verdict import Outcome, Signals, Verdict, judge

OUTCOMES = {
    "syntax": Outcome.SYNTAX,
    "throwaway": Outcome.DISPOSABLE,
    "nomx": Outcome.NO_MX,
    "resolver": Outcome.RESOLVER_FAILED,
    "blocked": Outcome.SMTP_BLOCKED,
    "unasked": Outcome.NOT_ASKED,
    "catchall": Outcome.CATCH_ALL,
    "nobody": Outcome.UNDELIVERABLE,
    "full": Outcome.MAILBOX_FULL,
    "slow": Outcome.TIMED_OUT,
    "broken": Outcome.CONVERSATION_FAILED,
}
NO_HOST = (Outcome.SYNTAX, Outcome.DISPOSABLE, Outcome.NO_MX, Outcome.RESOLVER_FAILED)

EVIDENCE = Evidence(
    exchanges=[ConnectionAttempt("mx.shop.test", "192.0.2.1", "answered")],
    conversation=[
        ConversationLine(1.0, "server", "220 mx.shop.test \x1b[31mESMTP [bold]"),
        ConversationLine(2.5, "client", "EHLO here.test"),
    ],
    rule="no-such-mailbox.enhanced",
    cached=["mx"],
)


def verdict_of(text: str) -> Verdict:
    local, at, _ = text.partition("@")
    outcome = OUTCOMES.get(local.partition("+")[0], Outcome.DELIVERABLE)
    if not at:
        outcome = Outcome.SYNTAX
    found = outcome not in NO_HOST
    typo = Signals(
        disposable=outcome is Outcome.DISPOSABLE,
        suggestion="gmail.com" if text.endswith("@gmial.com") else None,
    )
    host = "mx.shop.test" if found else None
    return judge(text, outcome, signals=typo, mx_host=host, mx_found=found, latency_ms=12)


def result_of(text: str) -> RowResult:
    """The same verdict as a list's row has it."""
    return row_result(Answer(0, verdict_of(text)))


@dataclass
class FakeSource:
    """Answers each text with its verdict; then hangs or fails, if configured to."""

    hang_after: float = math.inf
    fail_after: float = math.inf
    retry_s: float | None = None  # mail hosts take no more, and again after so many seconds
    asked: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["FakeSource"]:
        yield self

    @asynccontextmanager
    async def open_answers(
        self, texts: Sequence[str], *, explain: bool = False, patient: bool = False
    ) -> AsyncIterator[Any]:
        send, receive = trio.open_memory_channel[Answer](0)
        async with receive, trio.open_nursery() as nursery:
            nursery.start_soon(self._answer, texts, explain, send)
            yield receive
            nursery.cancel_scope.cancel()

    async def _answer(
        self, texts: Sequence[str], explain: bool, send: trio.MemorySendChannel[Answer]
    ) -> None:
        with send:
            for place, text in enumerate(texts):
                if place >= self.fail_after:
                    raise CommandError("the service is gone")
                if place >= self.hang_after:
                    from trio.testing import wait_all_tasks_blocked  # which loads pytest

                    await wait_all_tasks_blocked()  # all answers received
                    self.report("ready")
                    await trio.sleep_forever()
                self.asked.append(text)
                self.report(text)
                await send.send(self._answer_about(place, text, EVIDENCE if explain else None))

    def _answer_about(self, place: int, text: str, evidence: Evidence | None) -> Answer:
        if self.retry_s is None:
            cause = VerdictCause("not_asked", None) if text.startswith("unasked") else None
            return Answer(place, verdict_of(text), evidence, cause)
        verdict = verdict_of(f"slow+{text}")
        unknown = msgspec.structs.replace(verdict, email=text)
        cause = VerdictCause("host_budget", "host")
        return Answer(place, unknown, evidence, cause, self.retry_s)

    def report(self, line: str) -> None:
        if "FAKE_SOURCE_FD" in os.environ:
            os.write(int(os.environ["FAKE_SOURCE_FD"]), f"{line}\n".encode())


def main(words: list[str]) -> None:
    source = FakeSource()
    while (word := words.pop(0)) != "--":
        number = int(words.pop(0))
        if word == "--file-octets-max":
            resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
        else:
            setattr(source, word.removeprefix("--").replace("-", "_"), number)
    mailprobe.api.cli.source.open_own_engine = lambda *_, **__: source.open()
    mailprobe.api.cli.main(words)


if __name__ == "__main__":
    main(sys.argv[1:])
