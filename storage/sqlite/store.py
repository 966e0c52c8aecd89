"""The SQLite store, in one file: the default.

Write-ahead log, synchronous=FULL; one writer thread with group commit, one
reader thread (database_thread). Several processes may share the file: a writer
holds the lock from before it reads the clock until the commit is on the disk.
The transactions are functions in the modules of this package, one per command.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from mailprobe.storage import commands, reputation, sessions
from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.contract import SETTLED_KEPT
from mailprobe.storage.encryption import Cipher, key_beside
from mailprobe.storage.lists import commands as list_commands
from mailprobe.storage.lists import tables
from mailprobe.storage.records import Caller, OutboxMessage
from mailprobe.storage.sqlite import (
    accounts,
    idempotency,
    jobs,
    leases,
    lists,
    outbox,
    retention,
    usage,
)
from mailprobe.storage.sqlite import job_partitions as partitions
from mailprobe.storage.sqlite.database_thread import Reader, Writer
from mailprobe.storage.sqlite.file import explain_error, prepare
from mailprobe.storage.sqlite.key_lookup import KeyLookup
from mailprobe.storage.store import Store

R = TypeVar("R")
Transaction = Callable[[sqlite3.Connection, datetime, Any], Any]


@asynccontextmanager
async def open_sqlite(
    path: Path, *, secret_key: bytes | None, now: Callable[[], datetime]
) -> AsyncIterator[Store]:
    """Create or check the file, and open the store; leaving the block answers the pending calls.

    Without a secret key the one in the file beside the database is used, or created.
    Raises StoreBroken, StoreUnavailable.
    """

    def make_ready() -> bytes:
        prepare(path)
        with explain_error(path):
            return key_beside(path) if secret_key is None else secret_key

    cipher = Cipher(await trio.to_thread.run_sync(make_ready))
    with explain_error(path):
        writer = Writer(path, now)
    try:
        reader = Reader(path, now)
        try:
            key_lookup = KeyLookup(path)
            try:
                yield Store(SqliteExecutor(writer, reader, key_lookup), cipher)
            finally:
                key_lookup.close()  # first: the file's last connection writes the log back
        finally:
            await reader.close()
    finally:
        await writer.close()


class SqliteExecutor:
    """Runs the commands of a store in one SQLite file."""

    def __init__(self, writer: Writer, reader: Reader, key_lookup: KeyLookup) -> None:
        self._writer = writer
        self._reader = reader
        self._key_lookup = key_lookup

    async def execute(self, command: StoreCommand[R]) -> R:
        """Run the command: in the writer's thread, in the reader's, or in several steps."""
        kind = type(command)
        result: R
        if write := WRITES.get(kind):
            result = await self._writer.call(lambda db, now: write(db, now, command))
        elif read := READS.get(kind):
            result = await self._reader.call(lambda db, now: read(db, now, command))
        else:
            result = await STEPS[kind](self, command)
        return result

    def lease_session(self) -> int:
        return 0

    async def find_caller(self, command: commands.FindCaller) -> Caller | None:
        """Look the key up in this thread if that cannot block, else in the reader's."""
        await trio.lowlevel.checkpoint_if_cancelled()
        sha256 = command.sha256
        known, found = await self._key_lookup.coalesced_caller(sha256)
        if not known:
            found = await self._reader.call(partial(self._look_up, sha256=sha256))
            self._key_lookup.has_read(sha256)
        return found

    def _look_up(self, db: sqlite3.Connection, _: datetime, *, sha256: str) -> Caller | None:
        self._key_lookup.open()
        return accounts.caller(db, sha256)

    async def claim_jobs(self, command: commands.ClaimJobs) -> list[commands.EncryptedClaim]:
        """Look before the write: an idle worker must not take the lock."""
        if not await self._reader.call(lambda db, now: jobs.is_due(db, now, command)):
            return []
        claimed: list[commands.EncryptedClaim] = await self._writer.call(
            lambda db, now: jobs.claim(db, now, command)
        )
        return claimed

    async def claim_chunks(
        self, command: list_commands.ClaimChunks
    ) -> list[list_commands.EncryptedListClaim]:
        """Look before the write: an idle worker must not take the lock."""
        if not await self._reader.call(lists.is_due):
            return []
        claimed: list[list_commands.EncryptedListClaim] = await self._writer.call(
            lambda db, now: lists.run(tables.claim)(db, now, command)
        )
        return claimed

    async def claim_messages(self, command: commands.ClaimMessages) -> list[OutboxMessage]:
        """Look before the write: an idle worker must not take the lock."""
        if not await self._reader.call(lambda db, now: outbox.due(db, now, command.kind, 1)):
            return []
        claimed: list[OutboxMessage] = await self._writer.call(
            lambda db, now: outbox.claim(db, now, command)
        )
        return claimed

    async def apply_retention(self, command: commands.ApplyRetention) -> None:
        """Delete in small transactions, so that no request waits behind one."""
        now = await self._writer.call(retention.reclaim)
        if ahead := await self._reader.call(partitions.ahead):
            await self._writer.call(partial(partitions.reclaim, found=ahead))
        for drop in retention.drops(now, command.retention_days):
            while await self._writer.call(drop):
                pass
        after: tuple[int, int] | None = (0, -1)
        while after is not None:
            old = partial(retention.drop_settled, after=after, until=now - SETTLED_KEPT)
            after = await self._writer.call(old)


def _check(db: sqlite3.Connection, now: datetime, _: commands.CheckStore) -> datetime:
    """Write one page with its old content to the disk; returns the clock."""
    (number,) = db.execute("PRAGMA user_version").fetchone()
    db.execute(f"PRAGMA user_version = {int(number)}")
    return now


WRITES: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.CreateAccount.run_by(accounts.create_account),
        commands.CreateFirstAccount.run_by(accounts.create_first_account),
        commands.ChangeAccount.run_by(accounts.change_account),
        commands.CreateKey.run_by(idempotency.create_key),
        commands.RevokeKey.run_by(lists.revoke_key),
        commands.Reserve[Any].run_by(usage.reserve),
        commands.Extend.run_by(usage.extend),
        commands.Settle.run_by(usage.settle),
        commands.Spend[Any].run_by(usage.spend),
        commands.LogRefusal.run_by(usage.log_refusal),
        commands.BeginIdempotent.run_by(idempotency.begin),
        commands.FinishIdempotent.run_by(idempotency.finish),
        commands.CreateJob[Any].run_by(jobs.create),
        commands.ExtendClaim.run_by(jobs.extend),
        commands.JobVerified.run_by(jobs.verified),
        commands.JobAttempted.run_by(jobs.attempted),
        commands.PostponeJob.run_by(jobs.postpone),
        commands.AbandonJob.run_by(jobs.abandon),
        commands.ResendJob.run_by(jobs.resend),
        list_commands.CreateList.run_by(lists.run(tables.create)),
        list_commands.AddChunks.run_by(lists.run(tables.add_chunks)),
        list_commands.ChangeList.run_by(lists.run(tables.change)),
        list_commands.ExtendChunk.run_by(lists.run(tables.extend)),
        list_commands.ReleaseChunk.run_by(lists.run(tables.release)),
        sessions.EndSession.run_by(lists.run(sessions.end)),
        reputation.CountReputation.run_by(lists.run(reputation.count)),
        list_commands.BeginPass.run_by(lists.run(tables.begin_pass)),
        list_commands.RecordPart.run_by(lists.run(tables.record_part)),
        list_commands.DeleteList.run_by(lists.run(tables.delete)),
        commands.EnqueueMessage.run_by(outbox.enqueue),
        commands.ExtendMessage.run_by(outbox.extend),
        commands.MessageAttempted.run_by(outbox.attempted),
        commands.LeaseConnections.run_by(leases.lease),
        commands.ReturnConnections.run_by(leases.return_all),
        commands.CheckStore.run_by(_check),
    ]
)
READS: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.FindAccount.run_by(accounts.find_account),
        commands.ListAccounts.run_by(accounts.list_accounts),
        commands.FindAccountOfCustomer.run_by(accounts.account_of_customer),
        commands.ListKeys.run_by(accounts.list_keys),
        commands.ReadLedger.run_by(usage.read_ledger),
        commands.CountDays.run_by(usage.count_days),
        commands.ListUsage.run_by(usage.list_usage),
        commands.FindJob.run_by(jobs.find),
        commands.ListJobs.run_by(jobs.list_jobs),
        commands.ListAttempts.run_by(jobs.list_attempts),
        sessions.HasSessionEnded.run_by(lists.run(sessions.has_ended)),
        reputation.ReadReputation.run_by(lists.run(reputation.read)),
        list_commands.FindList.run_by(lists.run(tables.find)),
        list_commands.ListLists.run_by(lists.run(tables.list_lists)),
        list_commands.ReadChunks.run_by(lists.run(tables.read_chunks)),
        list_commands.ReadResults.run_by(lists.run(tables.read_results)),
        list_commands.ReadColumns.run_by(lists.run(tables.read_columns)),
        commands.ListMessages.run_by(outbox.list_messages),
        commands.RevocableConnections.run_by(leases.revocable_connections),
    ]
)
STEPS: dict[type[StoreCommand[Any]], Callable[[SqliteExecutor, Any], Any]] = {
    commands.FindCaller: SqliteExecutor.find_caller,
    commands.ClaimJobs: SqliteExecutor.claim_jobs,
    list_commands.ClaimChunks: SqliteExecutor.claim_chunks,
    commands.ClaimMessages: SqliteExecutor.claim_messages,
    commands.ApplyRetention: SqliteExecutor.apply_retention,
}
