"""Accounts and keys in dictionaries."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from mailprobe.storage.accounts import check_changes, next_key_at
from mailprobe.storage.commands import (
    CreateKey,
    EncryptedFirst,
)
from mailprobe.storage.contract import (
    KEY_USE_EVERY,
    WINDOW,
    KeyCreationTooFast,
    KeyLimitReached,
)
from mailprobe.storage.records import (
    SERVICE,
    Account,
    Actor,
    Caller,
    Key,
    Tier,
)


class ModelAccounts:
    """The lowest layer of the memory store, on which all others are built."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._accounts: dict[str, Account] = {}
        self._keys: dict[str, Key] = {}
        self._key_ids: dict[str, str] = {}  # by the key's SHA-256

    def create_account(self, email: str, tier: Tier, *, by: Actor = SERVICE) -> Account:
        account = Account(str(uuid4()), email, tier, self._now())
        self._accounts[account.id] = account
        return account

    def account(self, account_id: str) -> Account | None:
        return self._accounts.get(account_id)

    def accounts(self) -> list[Account]:
        return list(self._accounts.values())

    def change_account(
        self, /, account_id: str, *, by: Actor = SERVICE, **changes: Any
    ) -> Account | None:
        check_changes(changes)
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

    def create_key(self, command: CreateKey) -> Key:
        account = self._accounts[command.account_id]
        if command.keys_max is not None:
            active = [key for key in self._active_keys(account.id) if key.kind == command.kind]
            if len(active) >= command.keys_max:
                raise KeyLimitReached
        now = self._now()
        if command.keys_per_minute_max is not None:
            made = [
                key.created_at
                for key in self._keys.values()
                if key.account_id == account.id
                and key.kind == command.kind
                and now - WINDOW < key.created_at <= now
            ]
            if (at := next_key_at(made, command.keys_per_minute_max)) is not None:
                raise KeyCreationTooFast(now, at)
        if command.sha256 in self._key_ids:
            raise ValueError("a key with this hash is kept already")
        key = Key(
            str(uuid4()), account.id, command.kind, command.label, command.prefix, self._now(),
            origins=command.origins, rate_per_min=command.rate_per_min, made_by=command.by.kind,
        )  # fmt: skip
        if command.answer is not None:
            first = command.answer(key)
            self._check_runs(first)
            self._answer(first)
        self._keys[key.id] = key
        self._key_ids[command.sha256] = key.id
        return key

    def _check_runs(self, first: EncryptedFirst | None) -> None:
        raise NotImplementedError  # of the layer above

    def _answer(self, first: EncryptedFirst | None) -> None:
        raise NotImplementedError

    def keys(self, account_id: str) -> list[Key]:
        return self._active_keys(account_id)

    def is_form_origin(self, origin: str) -> bool:
        return any(origin in key.origins and not key.revoked_at for key in self._keys.values())

    def note_key_uses(self, key_ids: Sequence[str]) -> None:
        now = self._now()
        for key in [self._keys[id] for id in key_ids if id in self._keys]:
            if key.used_at is None or not now - KEY_USE_EVERY < key.used_at <= now:
                self._keys[key.id] = replace(key, used_at=now)

    def revoke_key(self, account_id: str | None, key_id: str, *, by: Actor = SERVICE) -> bool:
        key = self._keys.get(key_id)
        if key is None or key.revoked_at or account_id not in (None, key.account_id):
            return False
        self._keys[key_id] = replace(key, revoked_at=self._now())
        return True

    def caller(self, sha256: str) -> Caller | None:
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
