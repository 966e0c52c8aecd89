"""The part of the store that keeps the audit log."""

from mailprobe.storage.audit.commands import ReadAudit, RecordFailedSignIn, RecordSignIn
from mailprobe.storage.audit.records import Entry, EntryFilter
from mailprobe.storage.checks import at_most
from mailprobe.storage.contract import LISTED_MAX
from mailprobe.storage.records import Actor
from mailprobe.storage.store_part import StorePart

EVERY_ENTRY = EntryFilter()


class AuditStore(StorePart):
    """The audit log of each account.

    A method with `by` writes the entry of its act in the act's own transaction, and another one in
    the log of an operator who did it to another account. Nothing changes an entry; it is deleted after AUDIT_KEPT, with its account, or when its account has ENTRIES_MAX
    newer ones of its kind.
    """

    async def record_sign_in(self, account_id: str, by: Actor) -> None:
        """Record a sign-in, before the browser gets its session."""
        await self._execute(RecordSignIn(account_id, by))

    async def record_failed_sign_in(self, sha256: str, account_id: str | None, by: Actor) -> None:
        """Record a sign-in that was refused, with the key of this SHA-256.

        It is recorded for the key's account, which may be revoked or of another kind, else for
        the account that this browser has signed in to before; for a stranger nothing is recorded.
        Those of one client within a minute share an entry.
        """
        await self._execute(RecordFailedSignIn(sha256, account_id, by))

    async def audit(
        self,
        account_id: str,
        only: EntryFilter = EVERY_ENTRY,
        *,
        before: str | None = None,
        limit: int = LISTED_MAX,
    ) -> list[Entry]:
        """Return entries newest first, at most LISTED_MAX; with `before`, those older than this one.

        Empty for an unknown `before`: the older ones went with it.
        """
        return await self._execute(ReadAudit(account_id, only, before, at_most(LISTED_MAX, limit)))
