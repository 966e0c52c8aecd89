"""The store: what the API keeps, one transaction per method.

`Store` has a part for each subject, in the subject's module. A method checks its arguments, encrypts
what must be read again, and runs a function of its transaction (mailprobe.storage.database), or a
command that shares its transaction with others (mailprobe.storage.commands). There are three
executors, and the same tests run on each (tests/storage/): SQLite in a file, the default; SQLite in
memory, for tests and demos; PostgreSQL, for many machines.
A store that cannot answer raises StoreUnavailable within a second and recovers by
itself. What has returned is durable. The clock is read after the lock is acquired.
A cancelled caller leaves either a whole transaction or nothing. Once a transaction
has begun, its caller receives the result before the cancellation, so every
reservation is known to its caller.

Instants are aware datetimes in UTC. Arguments that end in `_s` are seconds.
"""

from datetime import datetime

from .accounts import AccountStore
from .audit import AuditStore
from .bounces import BounceStore
from .egresses import EgressStore
from .idempotency import IdempotencyStore
from .jobs import JobStore
from .leases import LeaseStore
from .list_jobs.conversations import ConversationStore
from .list_jobs.queues import QueueStore
from .list_jobs.shared_reports import SharedReportStore
from .list_jobs.store import ListStore
from .outbox import OutboxStore
from .pauses import PauseStore
from .people.links import LinkStore
from .people.people import PeopleStore
from .people.sign_ins import SignInStore
from .records import Tier
from .shared_cache import SharedCacheStore
from .tolerances import ToleranceStore
from .usage import UsageStore


class Store(
    AccountStore,
    UsageStore,
    IdempotencyStore,
    JobStore,
    OutboxStore,
    ListStore,
    SharedReportStore,
    ConversationStore,
    QueueStore,
    BounceStore,
    PeopleStore,
    SignInStore,
    LinkStore,
    AuditStore,
    EgressStore,
    PauseStore,
    LeaseStore,
    SharedCacheStore,
    ToleranceStore,
):
    """Everything that the API keeps. Every method raises StoreUnavailable if the store cannot answer."""

    def derived_key(self, purpose: str) -> bytes:
        """32 octets for signatures, the same in every process of this store."""
        return self._cipher.derived_key(purpose)

    async def apply_retention(self, retention_days: dict[Tier, int]) -> None:
        """Delete rows past their retention, ended leases and old windows. Counters stay as they are.

        A row is kept for `retention_days` UTC days, its own day the first of them; a job and
        its attempts likewise, by the day the job ended. Messages that are sent or given up
        are deleted MESSAGES_KEPT_MAX after they were created.

        Instants written by a clock that was ahead are corrected: leases end LEASES_MAX from
        now at the latest, jobs that wait for their first attempt are due, others within
        WAITS_MAX; what was granted or revoked more than WINDOW ahead counts as of now.
        """
        await self.executor.apply_retention(retention_days)

    async def check(self) -> datetime:
        """Write durably and return the store's clock. Raises StoreUnavailable.

        For health checks, the doctor and upkeep: a full disk is noticed only by writing.
        """
        return await self.executor.check()
