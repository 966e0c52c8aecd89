"""Accounts and keys in dictionaries."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import trio

from mailprobe.storage.checks import check_changes, next_key_at
from mailprobe.storage.contract import WINDOW, KeyCreationTooFast, KeyLimitReached
from mailprobe.storage.records import (
    Account,
    Answered,
    Caller,
    FirstAnswer,
    IdempotencyRecord,
    Key,
    KeyKind,
    Tier,
)


class MemoryAccounts:
    """The lowest layer of the memory store, on which all others are built."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._accounts: dict[str, Account] = {}
        self._keys: dict[str, Key] = {}
        self._key_ids: dict[str, str] = {}  # by the key's SHA-256

    async def create_account(self, email: str, tier: Tier) -> Account:
        await trio.lowlevel.checkpoint()
        account = Account(str(uuid4()), email, tier, self._now())
        self._accounts[account.id] = account
        return account

    async def account(self, account_id: str) -> Account | None:
        await trio.lowlevel.checkpoint()
        return self._accounts.get(account_id)

    async def accounts(self) -> list[Account]:
        await trio.lowlevel.checkpoint()
        return list(self._accounts.values())

    async def account_of_customer(self, customer_id: str) -> Account | None:
        await trio.lowlevel.checkpoint()
        accounts = self._accounts.values()
        return next((one for one in accounts if one.customer_id == customer_id), None)

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        check_changes(changes)
        await trio.lowlevel.checkpoint()
        if account_id not in self._accounts:
            return None
        if self._is_anothers(account_id, changes.get("customer_id")):
            raise ValueError("another account has this customer_id")
        account = replace(self._accounts[account_id], **changes)
        self._accounts[account_id] = account
        return account

    def _is_anothers(self, account_id: str, customer_id: str | None) -> bool:
        return customer_id is not None and any(
            one.customer_id == customer_id
            for one in self._accounts.values()
            if one.id != account_id
        )

    async def create_key(
        self,
        account_id: str,
        kind: KeyKind,
        label: str | None,
        *,
        sha256: str,
        prefix: str,
        keys_max: int | None,
        keys_per_minute_max: int | None = None,
        idempotency: IdempotencyRecord | None = None,
        answer: Callable[[Key], Answered] | None = None,
    ) -> Key:
        await trio.lowlevel.checkpoint()
        account = self._accounts[account_id]
        if kind == "standard" and keys_max is not None:
            active = [key for key in self._active_keys(account.id) if key.kind == "standard"]
            if len(active) >= keys_max:
                raise KeyLimitReached
        now = self._now()
        if kind == "standard" and keys_per_minute_max is not None:
            made = [
                key.created_at
                for key in self._keys.values()
                if key.account_id == account.id
                and key.kind == "standard"
                and now - WINDOW < key.created_at <= now
            ]
            if (at := next_key_at(made, keys_per_minute_max)) is not None:
                raise KeyCreationTooFast(now, at)
        if sha256 in self._key_ids:
            raise ValueError("a key with this hash is kept already")
        key = Key(str(uuid4()), account.id, kind, label, prefix, self._now())
        if idempotency and answer:
            first = FirstAnswer(idempotency, answer(key))
            self._check_runs(first)
            self._answer(first)
        self._keys[key.id] = key
        self._key_ids[sha256] = key.id
        return key

    def _check_runs(self, first: FirstAnswer | None) -> None:
        raise NotImplementedError  # of the layer above

    def _answer(self, first: FirstAnswer | None) -> None:
        raise NotImplementedError

    async def keys(self, account_id: str) -> list[Key]:
        await trio.lowlevel.checkpoint()
        return self._active_keys(account_id)

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        await trio.lowlevel.checkpoint()
        key = self._keys.get(key_id)
        if key is None or key.revoked_at or account_id not in (None, key.account_id):
            return False
        self._keys[key_id] = replace(key, revoked_at=self._now())
        return True

    async def caller(self, sha256: str) -> Caller | None:
        await trio.lowlevel.checkpoint()
        key = self._keys.get(self._key_ids.get(sha256, ""))
        if key is None or key.revoked_at:
            return None
        return Caller(self._accounts[key.account_id], key)

    def _keys_since(self, account_id: str, since: datetime) -> list[str]:
        """The standard keys that were in force after this instant."""
        return [
            key.id
            for key in self._keys.values()
            if key.account_id == account_id
            and key.kind == "standard"
            and (key.revoked_at is None or key.revoked_at > since)
        ]

    def _drop_keys(self, account_id: str, since: datetime, used: set[str]) -> None:
        for key in list(self._keys.values()):
            if key.account_id != account_id or key.revoked_at is None or key.id in used:
                continue
            if key.revoked_at < since:
                del self._keys[key.id]
                self._key_ids = {each: id for each, id in self._key_ids.items() if id != key.id}

    def _active_keys(self, account_id: str) -> list[Key]:
        return [
            key
            for key in self._keys.values()
            if key.account_id == account_id and not key.revoked_at
        ]
