"""What must be true of an engine in which nothing is under way."""

from mailprobe.engine import Engine
from mailprobe.engine.smtp.egress.hosts import EgressHosts


def assert_whole(engine: Engine) -> None:
    """No seat taken, no question clocked or waiting, no test pending, no connection open."""
    probing = engine.probing
    assert probing.turn.under_way == 0
    assert not probing.turn.is_due
    assert not any(map(len, probing.turn.clocks))
    assert not len(probing.turn.waiting)
    assert not probing.address_lookups.pending
    assert probing.relief is None or probing.relief.held.pop() is None
    for hosts in probing.egresses:
        assert_hosts_whole(hosts)


def assert_hosts_whole(hosts: EgressHosts) -> None:
    """Likewise of one egress."""
    assert not hosts.permits.in_use
    assert hosts.tasks.count == 0
    for probed in hosts.all_hosts():
        assert probed.staffing.connections.now == 0
        assert not probed.staffing.connections.left
        assert not probed.staffing.sessions.open
        assert all(question.settled for question in probed.waiting)
    for domain in hosts.domains.records.values():
        assert not domain.testing
        assert all(question.settled for question in domain.awaiting)
