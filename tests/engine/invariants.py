"""What must be true of an engine in which nothing is under way."""

from mailprobe.engine import Engine


def assert_whole(engine: Engine) -> None:
    """No seat taken, no question clocked or waiting, no test pending, no connection open."""
    prober = engine.prober
    assert prober.under_way == 0
    assert not prober._clocked
    assert not len(prober._waiting)
    assert not prober._seats
    assert not prober._looking_up.pending
    assert prober._tasks == 0
    for pool in prober._pools.values():
        assert pool.connections == 0
        assert not pool.sessions
        assert all(question.settled for question in pool.waiting)
    for domain in prober.domains._domains.values():
        assert not domain.testing
        assert all(question.settled for question in domain.awaiting)
