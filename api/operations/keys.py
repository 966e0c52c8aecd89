"""The operations on standard keys: create, list, revoke. A provisioning key is needed for them.

Every query of the store names the caller's own account, so the keys of other accounts are not
found.
"""

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from mailprobe.storage import contract
from mailprobe.storage.contract import KeyLimitReached
from mailprobe.storage.records import ActorKind, Key, KeyKind

from ..keys import LABEL, LABEL_CHARACTERS_MAX, key_hash, kind_of, mint, shown
from ..refusals import InvalidRequest, KeyNotFound, KeysTooFast, TooManyKeys
from ..schema import Instant, says
from ..service import Service
from .examples import AT, ID, KEY
from .operation import (
    BODIED,
    MANAGING,
    REPEATABLE,
    Call,
    ItemId,
    Operation,
    OperationReply,
    ToolForm,
    ToolText,
    reply,
)
from .parameter_texts import KEY_LABEL

VERIFYING: tuple[KeyKind, ...] = ("standard", "test")  # the kinds of keys that verify
KEYS_A_MINUTE = 20  # per account: each key is a row that its retention keeps
WARNING = "Keep this key now: it is shown only once and cannot be read again."
PATH = "/v1/management/keys"


class CreateKeyRequest(Struct, frozen=True):
    """The name of the key, without control characters. `test`: a test key, which sends nothing."""

    label: Annotated[
        Annotated[str, Meta(pattern=LABEL, min_length=1, max_length=LABEL_CHARACTERS_MAX)] | None,
        says(KEY_LABEL),
    ] = None
    test: Annotated[bool, says("true: a test key, which sends no packet and costs nothing.")] = (
        False
    )


class ManagementKey(Struct, frozen=True):
    """An active key, without its secret. `last_used_at` is accurate to an hour, and null before the first use.

    `made_by`: a browser's session, the operator's command line, or a provisioning key; `service`
    and `billing` make none. Null for a key of an older version.
    """

    id: Annotated[UUID, says("Its id.")]
    prefix: Annotated[str, says("The first characters of the key.")]
    created_at: Annotated[Instant, says("When it was created.")]
    label: Annotated[str | None, says(KEY_LABEL)] = None
    kind: Annotated[
        Literal["live", "test"], says("A test key sends nothing and costs nothing.")
    ] = "live"
    last_used_at: Annotated[Instant | None, says("The last use, accurate to an hour.")] = None
    made_by: Annotated[ActorKind | None, says("By what the key was made.")] = None


class ManagementKeysListResponse(Struct, frozen=True):
    """The active keys; `count` of them are live, and `max` may be. As many may be test keys."""

    keys: Annotated[list[ManagementKey], says("The active live and test keys, oldest first.")]
    count: Annotated[int, says("How many live keys there are.")]
    max: Annotated[int, says("How many live keys there may be.")]


class ManagementCreateKeyResponse(Struct, frozen=True):
    """A new standard key. `key` is never shown again."""

    id: Annotated[UUID, says("Its id.")]
    key: Annotated[str, says("The key itself. It is shown only once.")]
    created_at: Annotated[Instant, says("When it was created.")]
    warning: Annotated[str, says("A reminder to keep the key.")]
    label: Annotated[str | None, says(KEY_LABEL)] = None


class ManagementProvisioningKeyResponse(Struct, frozen=True):
    """A new provisioning key. `key` is never shown again."""

    id: Annotated[UUID, says("Its id.")]
    key: Annotated[str, says("The key itself. It is shown only once.")]


async def list_api_keys(service: Service, call: Call) -> OperationReply:
    """The active live and test keys, oldest first."""
    account = call.caller.account
    active = [key for key in await service.store.keys(account.id) if key.kind in VERIFYING]
    listed = [
        ManagementKey(
            UUID(key.id), key.prefix, key.created_at, key.label,
            kind="test" if key.is_test else "live", last_used_at=key.used_at, made_by=key.made_by,
        )
        for key in active
    ]  # fmt: skip
    live = sum(not key.is_test for key in active)
    return reply(
        200, ManagementKeysListResponse(listed, live, service.plans[account.tier].max_keys)
    )


async def create_api_key(service: Service, call: Call) -> OperationReply:
    """A new live or test key, shown only once."""
    body: CreateKeyRequest = call.body or CreateKeyRequest()
    account = call.caller.account
    keys_max = service.plans[account.tier].max_keys
    if body.test and not service.takes_test_keys:
        raise InvalidRequest(
            "This service is in production, so the field test must be false.",
            "management",
            was_json=True,
        )
    raw = mint("sk_test_" if body.test else "sk_live_", service.draw)

    def created(key: Key) -> OperationReply:
        reported = ManagementCreateKeyResponse(
            UUID(key.id), raw, key.created_at, WARNING, key.label
        )
        return reply(201, reported)

    try:
        key = await service.store.create_key(
            account.id,
            kind_of(raw),
            body.label,
            sha256=key_hash(raw),
            prefix=shown(raw),
            keys_max=keys_max,
            keys_per_minute_max=KEYS_A_MINUTE,
            idempotency=call.idempotency,
            answer=lambda key: call.answered(created(key)),
            by=call.actor(service),
        )
    except KeyLimitReached:
        raise TooManyKeys(keys_max) from None
    except contract.KeyCreationTooFast as early:
        raise KeysTooFast(KEYS_A_MINUTE, early.asked_at, early.reset_at, 1) from None
    call.mark_kept()
    return created(key)


async def revoke_api_key(service: Service, call: Call) -> OperationReply:
    """Revoke a live or test key of the account, for good."""
    key_id, account_id = call.path_id(), call.caller.account.id
    if key_id is None:
        raise KeyNotFound
    ours = await service.store.keys(account_id)
    if not any(key.id == key_id and key.kind in VERIFYING for key in ours):
        raise KeyNotFound
    by = call.actor(service)
    if not await service.store.revoke_key(account_id, key_id, by=by):
        raise KeyNotFound  # another request revoked it first
    return OperationReply(204)


class KeyId(ItemId, frozen=True):
    """The id of a key."""

    id: Annotated[
        str, Meta(extra_json_schema={"format": "uuid"}), says("The key's id, from list_api_keys.")
    ]


REVOKED = {
    "title": "Revoked",
    "description": "The key with this id is revoked.",
    "type": "object",
    "properties": {"revoked": {"type": "boolean"}, "id": {"type": "string", "format": "uuid"}},
    "required": ["revoked", "id"],
}


async def _revoked(taken: KeyId, reply: OperationReply) -> bytes:
    return msgspec.json.encode({"revoked": True, "id": taken.id.lower()})


CREATE_TOOL = ToolForm(
    ToolText(
        "Create an API key",
        "Create a standard key for the account. The answer has the key, which is never shown "
        "again: give it to the person and store it nowhere else.",
    ),
    CreateKeyRequest,
)
LIST_TOOL = ToolForm(
    ToolText(
        "List the API keys",
        "List the account's active standard keys, without their secrets.",
        only_reads=True,
        repeats_freely=True,
    )
)
REVOKE_TOOL = ToolForm(
    ToolText(
        "Revoke an API key",
        "Revoke a standard key permanently: everything that uses it stops working at once, "
        "including this connection if it uses the key. list_api_keys returns the ids.",
        destroys=True,
        repeats_freely=True,
    ),
    KeyId,
    output=REVOKED,
    answer_of=_revoked,
)
OPERATIONS = (
    Operation(
        "create_api_key", "POST", PATH, "Create a standard key",
        create_api_key, "provisioning", ManagementCreateKeyResponse, 201,
        takes=CreateKeyRequest, body_required=False,
        may=(*MANAGING, *BODIED, *REPEATABLE, TooManyKeys, KeysTooFast), tool=CREATE_TOOL,
        examples=(
            CreateKeyRequest("checkout"),
            ManagementCreateKeyResponse(ID, KEY, AT, WARNING, "checkout"),
        ),
    ),
    Operation(
        "list_api_keys", "GET", PATH, "List the active standard keys",
        list_api_keys, "provisioning", ManagementKeysListResponse, may=MANAGING, tool=LIST_TOOL,
        examples=(
            ManagementKeysListResponse([ManagementKey(ID, shown(KEY), AT, "checkout")], 1, 10),
        ),
    ),
    Operation(
        "revoke_api_key", "DELETE", f"{PATH}/{{id}}", "Revoke a standard key permanently",
        revoke_api_key, "provisioning", None, 204, may=(*MANAGING, KeyNotFound),
        tool=REVOKE_TOOL,
    ),
)  # fmt: skip
