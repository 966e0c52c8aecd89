"""The database session that shows that this process lives: it holds an advisory lock.

The server frees the lock as soon as the session ends, and a killed process's session ends
at once, as the kernel closes its connection. So another machine need not wait until the
leases of a dead process end by themselves. The session does nothing else, and no timeout
of the server or of TCP ends it before a lease would: a machine that is only cut off keeps
its session.

A session has a new number each time, which is its lock: once free, it is never locked again.
Half of the number is the server's start. A restart ends all sessions, and a standby that is
promoted never had them, so a server judges only the numbers of its own start.
"""

import select
import socket
import threading
from secrets import randbits

import psycopg

from ...contract import StoreUnavailable
from .server import PostgresServer, TransactionConnection

RETRY_S = 0.1
CLOSING_S = 1.0
RANDOM_BITS = 31  # with as many for the server's start it fits a bigint
STARTED = (
    f"((extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint & {(1 << RANDOM_BITS) - 1})"
)
# The defaults of these may be shorter than a lease.
SETTINGS = (
    "SELECT set_config(name, '0', false) FROM pg_settings"
    " WHERE name IN ('idle_session_timeout', 'tcp_user_timeout')",
    "SELECT set_config('tcp_keepalives_idle', '60', false)",
)
LOCK = (
    f"SELECT session, pg_advisory_lock(session) FROM (SELECT ({STARTED} << {RANDOM_BITS}) | %s::bigint"
    " AS session) AS numbered"
)
ENDED = (
    "SELECT session FROM unnest(%s::bigint[]) AS session"
    f" WHERE session >> {RANDOM_BITS} = {STARTED} AND pg_try_advisory_xact_lock_shared(session)"
)


class ProcessLock:
    """Holds one session, in a thread, from `start()` to `close()`; replaces it when it is lost."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._thread: threading.Thread | None = None
        self._closed = False
        self._waker, self._wake_event = socket.socketpair()  # readable once the other is closed
        self.number: int | None = None  # of the session; None while there is none
        self.changes = 0  # of the number; counted after the change

    def start(self) -> None:
        """Start holding a session, unless that was begun before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ProcessLock", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the session, within CLOSING_S."""
        self._closed = True
        self._waker.close()
        if self._thread is None:
            self._wake_event.close()
        else:
            self._thread.join(CLOSING_S)

    # below: executed in the thread

    def _run(self) -> None:
        while not self._closed:
            try:
                self._hold()
            except (psycopg.Error, OSError, StoreUnavailable):
                self._wait(RETRY_S)
        self._wake_event.close()

    def _hold(self) -> None:
        """Open a session and hold it until it is lost or no longer needed."""
        db = self._server.connect()
        try:
            for statement in SETTINGS:
                db.execute(statement)
            (number, _) = db.execute(LOCK, [randbits(RANDOM_BITS)]).fetchone()  # type: ignore[misc]
            self._change(number)
            while not self._closed:
                self._wait(None, db.fileno())
                db.execute("SELECT 1")  # the server may have sent no more than a notice
        finally:
            if self.number is not None:
                self._change(None)
            db.close()

    def _wait(self, timeout_s: float | None, *more: int) -> None:
        """Wait until close(), or until one of these files can be read."""
        polled = select.poll()  # select() takes no more than 1,024 files
        for file in (self._wake_event.fileno(), *more):
            polled.register(file, select.POLLIN)
        polled.poll(None if timeout_s is None else 1000 * timeout_s)

    def _change(self, number: int | None) -> None:
        self.number = number
        self.changes += 1


def ended_sessions(db: TransactionConnection, numbers: list[int]) -> list[int]:
    """Return those of these sessions that have ended, as far as this server can tell."""
    return [number for (number,) in db.all(ENDED, [numbers])]
