"""The lab's log, as one JSON object for a bench."""

from collections import Counter
from itertools import chain
from typing import Any

from msgspec.structs import asdict

from ..world.mail_host import MailHost
from .defence_counts import count_kinds
from .doh import Resolver
from .scenario import Scenario


def summary(scenario: Scenario, resolver: Resolver) -> dict[str, Any]:
    """Every host that was spoken to, by its IP address, and the resolver's counts."""
    questions: Counter[str] = Counter()
    for (_, kind), times in scenario.zone.queries.items():
        questions[kind] += times
    return {
        "hosts": {
            address: _host(host)
            for address, host in scenario.hosts.items()
            if host.record.sessions_seen
        },
        "questions": dict(questions),
        "doh_connections": resolver.connections_seen,
        **({"kinds": _kinds(scenario)} if scenario.kinds else {}),
    }


def _kinds(scenario: Scenario) -> dict[str, Any]:
    """What hosts that defend themselves have counted, by kind."""
    listed = frozenset(address.lower() for address in chain(*scenario.truth.values()))
    counts = count_kinds(scenario.hosts, scenario.kinds, listed)
    return {kind: asdict(found) for kind, found in counts.items()}


def forget(scenario: Scenario, resolver: Resolver) -> None:
    for host in scenario.hosts.values():
        host.record.clear()
    scenario.zone.forget()
    resolver.connections_seen = 0


def _host(host: MailHost) -> dict[str, Any]:
    record = host.record
    sessions = list(record.sessions)
    return {
        "name": host.name,
        "sessions": record.sessions_seen,
        "sources": dict(Counter(session.source for session in sessions)),
        "connections_now": record.connections_now,
        "connections_peak": record.connections_peak,
        "turnarounds": [session.turnarounds for session in sessions],
        "commands": sum(session.commands for session in sessions),
        "recipients": sum(len(session.recipients) for session in sessions),
        "mailboxes": len(record.recipients),
        "asked_most": max(record.recipients.values(), default=0),
        "refusals_most": max((session.refusals for session in sessions), default=0),
        "quits": sum(session.quit for session in sessions),
        "closed": dict(Counter(session.closed for session in sessions)),
        "mistakes": record.mistakes[:20],
    }
