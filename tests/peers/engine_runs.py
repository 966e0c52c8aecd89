"""Asking real mail servers through the engine's public face; the lab's resolver names them.

An exchange is one address of loopback; all servers of a test listen at one port.
"""

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from mailprobe.bench.lab import doh
from mailprobe.engine import (
    Engine,
    EngineSettings,
    Evidence,
    Verdict,
    open_answers,
    open_engine,
)
from mailprobe.engine.testing.zone import Zone
from mailprobe.engine.verdict import LADDER, Outcome
from tests.engine.invariants import assert_whole

HELO = "probe.peers.test"
ALL_S = 120.0  # however many were asked about

# A busy machine may take more than a second to start a server's process. What is tested here is what
# is understood, so the clocks are longer; a server that shall be too slow is asked by the real ones.
CLOCKS = {"probe_s": 12.0, "read_s": 4.0}
REAL_CLOCKS = {"probe_s": 3.0, "read_s": 1.0}


@dataclass(frozen=True)
class Told:
    """What became of one address, and why."""

    verdict: Verdict
    evidence: Evidence

    @property
    def rule(self) -> str:
        return self.evidence.rule or ""

    @property
    def replies(self) -> list[str]:
        return [line.text for line in self.evidence.conversation if line.who == "server"]

    @property
    def deciding_line(self) -> str:
        """The reply to this address's own RCPT, or else the last thing that was said or happened."""
        own = f"RCPT TO:<{self.verdict.email}>"
        lines = [(line.who, line.text) for line in self.evidence.conversation]
        # What became of a handshake is not a command: no reply belongs to it.
        said_by_us = [text for who, text in lines if who == "client"]
        asked = [text for text in said_by_us if text == "(connect)" or not text.startswith("(")]
        if own in asked:
            said = [text for who, text in lines if who == "server" and text[3:4] != "-"]
            place = len(asked) - 1 - asked[::-1].index(own)  # it may be asked again, on other terms
            if place < len(said):
                return said[place]
        return self.replies[-1] if self.replies else self.evidence.exchanges[-1].result


def assert_told(reported: Told, outcome: Outcome | str) -> None:
    """The outcome's four fields, on the ladder of docs/verdicts.md."""
    verdict = reported.verdict
    fields = (verdict.status, verdict.valid, verdict.confidence, verdict.failed_check)
    said = "\n".join(f"{each.who}: {each.text}" for each in reported.evidence.conversation)
    expected = LADDER[Outcome(outcome)]
    assert fields == expected, (
        f"{verdict.email} is {fields} by {reported.rule}, not {outcome}\n{said}"
    )


@asynccontextmanager
async def asking(zone: Zone, smtp_port: int, **settings: object) -> AsyncIterator[Engine]:
    """An engine in front of these names; whole, with nothing under way, when it is left."""
    with tempfile.TemporaryDirectory() as folder:
        tls, authority = doh.make_authority(Path(folder), "127.0.0.1")
        listeners = await trio.open_ssl_over_tcp_listeners(
            0, tls, host="127.0.0.1", https_compatible=True
        )
        port = listeners[0].transport_listener.socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, doh.Resolver(zone).serve, listeners)
            ours = engine_settings(f"https://127.0.0.1:{port}{doh.PATH}", authority, smtp_port)
            async with open_engine(replace(ours, **{**CLOCKS, **settings})) as engine:
                yield engine
            assert_whole(engine)
            nursery.cancel_scope.cancel()


def engine_settings(doh_url: str, authority: Path, smtp_port: int) -> EngineSettings:
    return EngineSettings(
        doh_urls=(doh_url,),
        doh_ca_file=str(authority),
        smtp_port=smtp_port,
        helo_name=HELO,
        allow_private=True,
    )


async def ask(engine: Engine, texts: Iterable[str], *, patient: bool = True) -> dict[str, Told]:
    """Every text once, as `clean` asks: by its address what became of it."""
    reported = {}
    with trio.fail_after(ALL_S):
        async with open_answers(
            engine, list(texts), account="peers", patient=patient, explain=True
        ) as answers:
            async for answer in answers:
                reported[answer.verdict.email] = Told(answer.verdict, answer.evidence)
    return reported
