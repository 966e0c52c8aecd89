"""Counts that defending hosts made of their clients, by kind of host. Pure.

Random names are recipients that are not in any list.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct

from ..world.host_defences import HOUR_S
from ..world.host_log import LoggedCommand, rcpt_mailbox
from ..world.mail_host import MailHost


class KindCounts(Struct):
    """The counts of all hosts of one kind."""

    hosts: int = 0  # that were contacted
    domains: int = 0  # whose addresses were named
    connections: int = 0
    peak: int = 0  # connections at once, of the host that had most
    recipients: int = 0
    refused_session_max: int = 0
    refused_hour_max: int = 0  # of one host
    random_names: int = 0
    bans: int = 0
    sessions_lost: int = 0  # too old to be counted in detail


class AskedRecipient(Struct, frozen=True):
    """One RCPT that a host has answered."""

    at_s: float
    mailbox: str
    is_refused: bool  # as unknown, not by a ban

    @property
    def domain(self) -> str:
        return self.mailbox.rpartition("@")[2]


def count_kinds(
    hosts: Mapping[str, MailHost], kinds: Mapping[str, str], listed: AbstractSet[str]
) -> dict[str, KindCounts]:
    """The counts by kind; hosts and kinds are by IP address, `listed` is in lower case."""
    counts: dict[str, KindCounts] = {}
    domains: dict[str, set[str]] = {}
    for address, kind in kinds.items():
        if hosts[address].record.sessions_seen:
            found = counts.setdefault(kind, KindCounts())
            _count(found, hosts[address])
            for asked in _recipients(hosts[address]):
                domains.setdefault(kind, set()).add(asked.domain)
                found.recipients += 1
                found.random_names += asked.mailbox not in listed
    for kind, named in domains.items():
        counts[kind].domains = len(named)
    return counts


def _count(found: KindCounts, host: MailHost) -> None:
    record = host.record
    found.hosts += 1
    found.connections += record.sessions_seen
    found.sessions_lost += record.sessions_seen - len(record.sessions)
    found.peak = max(found.peak, record.connections_peak)
    found.bans += record.bans
    sessions = (
        [asked.is_refused for asked in _of_commands(host, session.commands_seen)]
        for session in record.sessions
    )
    found.refused_session_max = max(found.refused_session_max, *map(sum, sessions))
    times = sorted(asked.at_s for asked in _recipients(host) if asked.is_refused)
    found.refused_hour_max = max(found.refused_hour_max, most_within(times, HOUR_S))


def most_within(times: list[float], span_s: float) -> int:
    """The most of these sorted times within any span of this length."""
    most = first = 0
    for last, at_s in enumerate(times):
        while times[first] <= at_s - span_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def _recipients(host: MailHost) -> Iterator[AskedRecipient]:
    for session in host.record.sessions:
        yield from _of_commands(host, session.commands_seen)


def _of_commands(host: MailHost, commands: list[LoggedCommand]) -> Iterator[AskedRecipient]:
    ban = host.defence.ban_reply if host.defence is not None else None
    for command in commands:
        mailbox = rcpt_mailbox(command.line)
        if mailbox is not None and command.reply is not None:
            refused = command.reply.startswith("5") and command.reply != ban
            yield AskedRecipient(command.at_s, mailbox.lower(), is_refused=refused)
