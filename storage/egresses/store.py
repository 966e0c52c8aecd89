"""The part of the store that processes share about their egresses."""

from datetime import date

from mailprobe.storage.egresses.commands import (
    PauseEgress,
    ReadEgresses,
    ReadReplies,
    ReportEgresses,
    ResumeEgress,
)
from mailprobe.storage.egresses.records import EgressBoard, EgressGrant, EgressReport, LatestReply
from mailprobe.storage.records import SERVICE, Actor
from mailprobe.storage.store_part import StorePart


class EgressStore(StorePart):
    """What a fleet knows of its egresses."""

    async def report_egresses(self, report: EgressReport) -> EgressGrant:
        """Add what a process counted, and grant the blocks and the trials that it wants.

        All blocks of a day together never exceed the limit that they were wanted with. Of a
        quarantined egress one process gets a trial each TRIAL_EVERY.
        """
        return await self._execute(ReportEgresses(report))

    async def egresses(self, day: date) -> EgressBoard:
        """Those that rest, and what each was used for on this day."""
        return await self._execute(ReadEgresses(day))

    async def egress_replies(self) -> list[LatestReply]:
        """The replies of every egress within EGRESS_KEPT, by operator and reason."""
        return await self._execute(ReadReplies())

    async def pause_egress(
        self, egress: str, *, account_id: str | None = None, by: Actor = SERVICE
    ) -> bool:
        """Let it rest until it is resumed; False if it is paused. The account's audit log has it."""
        return await self._execute(PauseEgress(egress, account_id, by))

    async def resume_egress(
        self, egress: str, *, account_id: str | None = None, by: Actor = SERVICE
    ) -> bool:
        """End its pause and its quarantine; False if it has neither. The audit log has it."""
        return await self._execute(ResumeEgress(egress, account_id, by))
