"""What must be true of an engine in which nothing is under way."""

from mailprobe.engine import Engine
from mailprobe.engine.smtp.dispatcher import ProbeDispatcher


def assert_whole(engine: Engine) -> None:
    """No seat taken, no question clocked or waiting, no test pending, no connection open."""
    probing = engine.probing
    if isinstance(probing, ProbeDispatcher):
        assert_dispatcher_whole(probing)
    else:
        assert probing.held.pop() is None
        for way in probing.ways:
            assert_dispatcher_whole(way.dispatcher)


def assert_dispatcher_whole(dispatcher: ProbeDispatcher) -> None:
    """Likewise of one egress."""
    assert dispatcher.turn.under_way == 0
    assert not dispatcher.turn.is_due
    assert not any(map(len, dispatcher.turn.clocks))
    assert not len(dispatcher.turn.waiting)
    assert not dispatcher.permits.in_use
    assert not dispatcher.address_lookups.pending
    assert dispatcher.tasks == 0
    for pool in dispatcher.all_pools():
        assert pool.connections.now == 0
        assert not pool.connections.left
        assert not pool.sessions.open
        assert all(question.settled for question in pool.waiting)
    for domain in dispatcher.domains.records.values():
        assert not domain.testing
        assert all(question.settled for question in domain.awaiting)
