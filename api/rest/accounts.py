"""Accounts and their keys as the operator makes them, by a command or in the dashboard."""

from collections.abc import Sequence

from msgspec import Struct

from mailprobe.storage.records import Account, Actor, Key, Tier
from mailprobe.storage.store import Store

from ..keys import Prefix, key_hash, kind_of, mint, shown


class MadeAccount(Struct, frozen=True):
    """A new account with a key of each kind, which cannot be read again."""

    account: Account
    key: str
    provisioning_key: str


async def make_account(store: Store, email: str, tier: Tier, *, by: Actor) -> MadeAccount:
    """Create an account. E-mail addresses need not be unique: see account_of_email()."""
    account = await store.create_account(email, tier, by=by)
    key, _ = await make_key(store, account.id, "sk_live_", by=by)
    provisioning_key, _ = await make_key(store, account.id, "sk_mgmt_", by=by)
    return MadeAccount(account, key, provisioning_key)


async def make_key(
    store: Store,
    account_id: str,
    prefix: Prefix,
    label: str | None = None,
    *,
    keys_max: int | None = None,
    origins: Sequence[str] = (),
    rate_per_min: int | None = None,
    by: Actor,
) -> tuple[str, Key]:
    """Create a key of the kind that `prefix` names, and return it as it is shown once.

    Raises KeyLimitReached, and KeyError if there is no such account.
    """
    raw = mint(prefix)
    key = await store.create_key(
        account_id,
        kind_of(raw),
        label,
        sha256=key_hash(raw),
        prefix=shown(raw),
        keys_max=keys_max,
        origins=origins,
        rate_per_min=rate_per_min,
        by=by,
    )
    return raw, key


async def account_of_email(store: Store, email: str) -> Account | None:
    """The account with this e-mail address, in whatever case; None if there is none."""
    found = await store.find_accounts(email, limit=FOUND_MAX)
    return next((each for each in found if each.email.lower() == email.lower()), None)


FOUND_MAX = 1_000  # accounts whose address contains another one: there are few
