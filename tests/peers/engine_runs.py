"""Runs the engine against real mail servers; the lab's resolver serves their names.

An exchange is one address of loopback. All servers of a test listen at one port.
"""

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio

from mailprobe.bench.lab import doh
from mailprobe.bench.world.zone import Zone
from mailprobe.engine import (
    Engine,
    EngineSettings,
    Evidence,
    Verdict,
    open_answers,
    open_engine,
)
from mailprobe.engine.verdict import LADDER, Outcome
from tests.engine.invariants import assert_whole

HELO = "probe.peers.test"
ALL_S = 120.0  # for one list, of any length

# A busy machine may take more than a second to start a server's process. These tests are about what
# replies mean, so the clocks are longer; servers that must be too slow are probed with the real ones.
CLOCKS = {"probe_s": 12.0, "read_s": 4.0}
REAL_CLOCKS = {"probe_s": 3.0, "read_s": 1.0}


@dataclass(frozen=True)
class Finding:
    """The verdict on one address, with its evidence."""

    verdict: Verdict
    evidence: Evidence

    @property
    def rule(self) -> str:
        return self.evidence.rule or ""

    @property
    def cause(self) -> tuple[str | None, str | None]:
        """The reason, and who is to blame."""
        return self.evidence.reason, self.evidence.blame

    @property
    def replies(self) -> list[str]:
        return [line.text for line in self.evidence.conversation if line.who == "server"]

    @property
    def deciding_reply(self) -> str:
        """The reply to this address's own RCPT; if there is none, the last reply or event."""
        own = f"RCPT TO:<{self.verdict.email}>"
        lines = [(line.who, line.text) for line in self.evidence.conversation]
        # The result of a handshake is no command: no reply belongs to it.
        sent = [text for who, text in lines if who == "client"]
        commands = [text for text in sent if text == "(connect)" or not text.startswith("(")]
        replies = _whole_replies(text for who, text in lines if who == "server")
        if own in commands:
            # The last one: it may have been sent again, with another sender or over TLS.
            number = len(commands) - 1 - commands[::-1].index(own)
            if number < len(replies):
                return replies[number]
        return replies[-1] if replies else self.evidence.exchanges[-1].result


def _whole_replies(lines: Iterable[str]) -> list[str]:
    """Join the lines of each reply (RFC 5321, 4.2.1), which may change its code (postscreen)."""
    replies, begun = [], ""
    for line in lines:
        is_same = line[:3] == begun[:3]
        begun += f" {line[4:] if is_same else line}" if begun else line
        if line[3:4] != "-":
            replies.append(begun)
            begun = ""
    return replies


def assert_outcome(finding: Finding, outcome: Outcome | str) -> None:
    """Check the outcome's four fields, as docs/verdicts.md has them."""
    verdict = finding.verdict
    fields = (verdict.status, verdict.valid, verdict.confidence, verdict.failed_check)
    conversation = "\n".join(f"{line.who}: {line.text}" for line in finding.evidence.conversation)
    expected = LADDER[Outcome(outcome)]
    assert fields == expected, (
        f"{verdict.email} is {fields} by {finding.rule}, not {outcome}\n{conversation}"
    )


def engine_settings(doh_url: str, authority: Path, smtp_port: int) -> EngineSettings:
    return EngineSettings(
        doh_urls=(doh_url,),
        doh_ca_file=str(authority),
        smtp_port=smtp_port,
        helo_name=HELO,
        allow_private=True,
    )


@asynccontextmanager
async def open_resolver(zone: Zone) -> AsyncIterator[tuple[str, Path]]:
    """Serve these names over HTTPS; yields the URL, and the file of its authority."""
    with tempfile.TemporaryDirectory() as folder:
        tls, authority = doh.make_authority(Path(folder), "127.0.0.1")
        listeners = await trio.open_ssl_over_tcp_listeners(
            0, tls, host="127.0.0.1", https_compatible=True
        )
        listener = listeners[0].transport_listener
        assert isinstance(listener, trio.SocketListener)
        port = listener.socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, doh.Resolver(zone).serve, listeners)
            yield f"https://127.0.0.1:{port}{doh.PATH}", authority
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_engine_for(zone: Zone, smtp_port: int, **settings: Any) -> AsyncIterator[Engine]:
    """An engine that resolves these names; at its end nothing may be left under way."""
    async with open_resolver(zone) as (url, authority):
        base = engine_settings(url, authority, smtp_port)
        async with open_engine(replace(base, **{**CLOCKS, **settings})) as engine:
            yield engine
        assert_whole(engine)


async def verify(engine: Engine, texts: Iterable[str], **options: Any) -> dict[str, Finding]:
    """Verify every text once, as `clean` does, with these options of `open_answers`.

    Returns the findings by address.
    """
    findings = {}
    with trio.fail_after(ALL_S):
        options = {"account": "peers", "deferred_start": True, "explain": True, **options}
        async with open_answers(engine, list(texts), **options) as answers:
            async for answer in answers:
                assert answer.evidence is not None
                findings[answer.verdict.email] = Finding(answer.verdict, answer.evidence)
    return findings
