"""The page for administrators who find our probes in their logs: `/about-probes`.

What the engine asks of a mail host is a table made from the engine's own constants; a test
holds the table in docs/probes.md against it. Pure.
"""

from collections.abc import Sequence

from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.smtp.backoff import (
    BACKOFF_AFTER,
    REFUSAL_BACKOFF_S,
    REFUSAL_BACKOFF_S_MAX,
    UNREACHABLE_BACKOFF_S,
    UNREACHABLE_BACKOFF_S_MAX,
)
from mailprobe.engine.smtp.catchall import REFUSES_KEPT_S
from mailprobe.engine.smtp.controls import ASKED_AGAIN_S, RECORD_FIRST
from mailprobe.engine.smtp.host.connections import HOST_LIMIT_S, LIMIT_AT_FIRST
from mailprobe.engine.smtp.host.left_connections import LEFT_S
from mailprobe.engine.smtp.host.refusals import COLD_MAX
from mailprobe.engine.smtp.leases.ledger import CEILING
from mailprobe.engine.smtp.operators import load_operators
from mailprobe.engine.smtp.patience import PATIENT_CONNECTIONS, PATIENT_READ_S, PATIENT_S
from mailprobe.engine.smtp.probe import CONVERSATIONS_MAX
from mailprobe.engine.smtp.session.recipient_limits import RECIPIENTS_MAX, REFUSALS_MAX
from mailprobe.engine.smtp.session.session import IDLE_S
from mailprobe.engine.smtp.session.transaction import RESETS_MAX
from mailprobe.engine.smtp.tolerance.bans import RESTS_S
from mailprobe.engine.smtp.tolerance.budget import OWN_START, SESSION_FIRST, SHARED_START
from mailprobe.engine.smtp.tolerance.limits import WINDOW_S

from ..jobs.worker import RECHECK_S

URL = "/about-probes"
TITLE = "About our probes"
HEADER = ("what", "how much, how often", "why")


Row = tuple[str, str, str]


def rows(settings: EngineSettings) -> Sequence[Row]:
    """What is asked of a mail host, how much and how often, and why."""
    return (
        *_connections(settings),
        *_recipients(settings),
        *_waits(settings),
        *_back_off(),
        ("`DATA`, `VRFY`, `EXPN`, `AUTH`", "never", "no message is sent, and no password is tried"),
    )


def _connections(settings: EngineSettings) -> Sequence[Row]:
    return (
        (
            "connections at a time",
            f"at most {settings.host_connections}; {LIMIT_AT_FIRST} at first, more are earned by "
            "successes",
            "one address at a time would keep the host busy for longer",
        ),
        (
            "a connection that the host refuses while others are open",
            f"their number is the limit; no more are tried for {_time(HOST_LIMIT_S)}",
            "the host has a limit of its own",
        ),
    )


def _recipients(settings: EngineSettings) -> Sequence[Row]:
    return (
        (
            "recipients (`RCPT TO`) in a session",
            f"at most {RECIPIENTS_MAX}, fewer where the host says so (RFC 9422)",
            "the host's answer to a recipient says whether the mailbox exists",
        ),
        (
            "refused recipients in a session",
            f"at most {REFUSALS_MAX}, then `QUIT`; {SESSION_FIRST} until we know more of the host, "
            f"{_session('exim')} at Exim, {_session('mdaemon')} at MDaemon",
            "some are no longer in use: that is what our clients want to know",
        ),
        (
            f"refused recipients in {_time(WINDOW_S)}",
            f"at first {OWN_START} at a company's own server and {SHARED_START} at a host of many "
            f"domains; twice as many, up to {CEILING}, where the host goes on to judge each recipient "
            "and there is work; as many as it took before, where it bans us",
            "more may look like a search for addresses; the rest waits",
        ),
        (
            "the time without a probe after a ban",
            ", then ".join(map(_time, RESTS_S)),
            "the host does not want to hear from us",
        ),
        (
            "a random recipient",
            f"1 for a domain and a shape of its names in {_time(settings.cache_s)}, or in "
            f"{_time(REFUSES_KEPT_S)} where the domain refuses it, after one was accepted; the same "
            "one again after a 4xx, and one of another shape where the host refuses it in unusual "
            "words",
            "does the domain accept every address? Then an acceptance proves nothing",
        ),
        (
            "a control: a recipient that was asked before, or postmaster",
            f"the same name at most once in {_time(ASKED_AGAIN_S)}, after {RECORD_FIRST} refused "
            "recipients or more",
            "does the host still judge each recipient, or refuse or accept all?",
        ),
        (
            "`RSET` and `NOOP` in a session",
            f"at most {RESETS_MAX}",
            "a new sender or transaction; proof that no reply was lost",
        ),
    )


def _waits(settings: EngineSettings) -> Sequence[Row]:
    return (
        (
            "waiting for the host",
            f"{_time(settings.read_s)} for the connection, the greeting and each reply; "
            f"{_time(settings.probe_s)} for a recipient in all; {CONVERSATIONS_MAX} exchanges",
            "a client waits for the answer",
        ),
        (
            "waiting for a host that was slow, when a list is asked again",
            f"{_time(PATIENT_READ_S)} for each reply, {_time(PATIENT_S)} for a recipient, on at most "
            f"{PATIENT_CONNECTIONS} connections",
            "a pause before the greeting, a callout or a tarpit is waited out",
        ),
        (
            "a connection that was closed while the host still owed a reply",
            f"counts as open until the host closes it, at most {_time(LEFT_S)}",
            "the host may count it, too",
        ),
        (
            "an idle connection",
            f"{_time(IDLE_S)}, then `QUIT`",
            "the next recipient needs no new connection",
        ),
        (
            "a recipient without a clear answer (4xx, no reply), of a list",
            f"again, up to {len(RECHECK_S)} times, {_time(RECHECK_S[0])} apart or more",
            "greylisting accepts it then",
        ),
    )


def _back_off() -> Sequence[Row]:
    return (
        (
            f"after {BACKOFF_AFTER} failures in a row to reach the host",
            f"nothing for {_time(UNREACHABLE_BACKOFF_S)}, then twice as long each time, up to "
            f"{_time(UNREACHABLE_BACKOFF_S_MAX)}",
            "the host may be down or busy",
        ),
        (
            f"after {BACKOFF_AFTER} refusals in a row of our address, name or sender",
            f"nothing for {_time(REFUSAL_BACKOFF_S)}, then twice as long each time, up to "
            f"{_time(REFUSAL_BACKOFF_S_MAX)}",
            "we are not welcome",
        ),
        (
            f"after {COLD_MAX} recipients of a domain in a row were refused because of us",
            f"nothing for that domain for {_time(REFUSAL_BACKOFF_S)}",
            "we are not welcome there",
        ),
    )


def _session(software: str) -> int | None:
    found = load_operators().greets_as(software)
    return None if found is None else found.limits.session


def about_probes(settings: EngineSettings) -> str:
    """The default text, as Markdown."""
    sender = settings.mail_from
    contact = sender or f"postmaster@{settings.helo_name}"
    table = "\n".join(f"| {' | '.join(row)} |" for row in (HEADER, ("---",) * 3, *rows(settings)))
    return f"""# {TITLE}

You have found `{settings.helo_name}` or its IP address in the log of your mail server. It checks whether e-mail
addresses can receive mail, for clients to whom these addresses were given. No message is sent.

## What your log shows

A connection that asks for recipients and ends before any message:

```text
EHLO {settings.helo_name}
MAIL FROM:<{sender}>
RCPT TO:<an address that a client asks about>
QUIT
```

Your server's answer to `RCPT TO` says whether the mailbox exists. Many servers demand TLS: then `STARTTLS`
comes first.{" A server that refuses the sender is asked once more with `<>`." if sender else ""}

## What is asked of a mail host

{table}

## How to reach us

Write to <{contact}>, with the time and the IP address from your log. If you ask us to stop, we stop. A server
that refuses our connection, our name or our sender is left alone as the table says.
"""


def _time(seconds: float) -> str:
    for length, unit in ((3600, "hour"), (60, "minute")):
        number, rest = divmod(seconds, length)
        if number and not rest:
            return f"{number:g} {unit}{'s' if number > 1 else ''}"
    return f"{seconds:g} s"
