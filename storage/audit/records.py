"""Entries of the audit log: who did what to an account, when, and from where.

An entry never has a secret: keys are named by their id and their first characters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from mailprobe.storage.records import Actor

AUDIT_KEPT = timedelta(days=90)  # by then an address may be another person's
# Of an account and a kind, the newest: with each kind, 40 MB an account. The kinds are counted
# apart, so that no number of sign-ins or of changed caps removes the entry of a revoked key.
ENTRIES_MAX = 10_000

ActKind = Literal[
    "account_created", "account_deleted", "plan_changed", "caps_changed", "alerts_changed",
    "key_created", "key_revoked", "list_deleted", "lists_paused", "lists_unpaused",
    "egress_paused", "egress_resumed", "signed_in", "signed_out", "sign_in_failed",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Act:
    """What was done. `changes` has the fields of Account that changed: before, and after."""

    kind: ActKind
    subject: str | None = None  # the id of the key or the list, the name of the egress
    name: str | None = None  # the key's label, the list's name
    prefix: str | None = None  # the key's first characters
    changes: Mapping[str, tuple[object, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an account's audit log."""

    id: str  # uuid
    at: datetime
    act: Act
    by: Actor
    times: int = 1  # failed sign-ins of one client within a minute share an entry
    on_account: str | None = None  # by its id: the other one that the operator did it to


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries to read."""

    kind: ActKind | None = None
    since: datetime | None = None
    until: datetime | None = None  # and before it
