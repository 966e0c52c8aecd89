"""Publishable keys in the dashboard: made from a form's fields, and revoked.

The management API makes and revokes secret keys alone, so these act on the store.
"""

from collections.abc import Mapping

import msgspec

from mailprobe.storage.contract import KeyCreationTooFast, KeyLimitReached
from mailprobe.storage.records import Actor, Caller

from ...forms.origins import RATE_DEFAULT, RATE_MAX, read_origins
from ...keys import PUBLISHABLE, key_hash, kind_of, mint, shown
from ...operations.keys import CreateKeyRequest
from ...refusals import KeysTooFast, TooManyKeys
from ...service import Service

# A fresh key has a fresh minute; sites are few, so no one needs more.
FORM_KEYS_A_MINUTE = 5
BAD_SITES = "A site is written like https://shop.example.org, without a path; ten at most."
BAD_LABEL = "This label cannot be used: it has more than 100 characters, or one that is not shown."


class WrongField(Exception):
    """A field of the form cannot be used; the text is a sentence for a person."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


def is_wanted(form: Mapping[str, str]) -> bool:
    """Whether the form asks for a publishable key."""
    return form.get("kind", "").startswith(PUBLISHABLE)


async def make_form_key(
    service: Service, caller: Caller, form: Mapping[str, str], by: Actor
) -> str:
    """Make a key from the fields kind, label, origins and rate.

    Raises WrongField, Refusal, StoreUnavailable.
    """
    is_test = form["kind"] == "pk_test_"
    rate = form.get("rate", "").strip() or str(RATE_DEFAULT)
    is_number = rate.isascii() and rate.isdigit() and len(rate) <= len(str(RATE_MAX))
    if not is_number or not 1 <= int(rate) <= RATE_MAX:
        raise WrongField("rate", f"The checks a minute are a whole number, 1 to {RATE_MAX:,}.")
    if is_test and not service.takes_test_keys:
        raise WrongField("kind", "This service is in production: it takes no test keys.")
    try:
        origins = read_origins(form.get("origins", "").split())
        label = msgspec.convert({"label": form.get("label", "").strip() or None}, CreateKeyRequest)
    except msgspec.ValidationError:
        raise WrongField("label", BAD_LABEL) from None
    except ValueError:
        raise WrongField("origins", BAD_SITES) from None
    raw, keys_max = mint("pk_test_" if is_test else "pk_live_"), service.plan(caller).max_keys
    try:
        await service.store.create_key(
            caller.account.id, kind_of(raw), label.label, sha256=key_hash(raw), prefix=shown(raw),
            keys_max=keys_max, keys_per_minute_max=FORM_KEYS_A_MINUTE,
            origins=origins, rate_per_min=int(rate), by=by,
        )  # fmt: skip
    except KeyLimitReached:
        raise TooManyKeys(keys_max) from None
    except KeyCreationTooFast as early:
        raise KeysTooFast(FORM_KEYS_A_MINUTE, early.asked_at, early.reset_at, 1) from None
    return raw


async def revoke_form_key(service: Service, account_id: str, key_id: str, by: Actor) -> bool:
    """Revoke the account's publishable key; False if it has no such one. Raises StoreUnavailable."""
    keys = await service.store.keys(account_id)
    if not any(key.id == key_id and key.is_publishable for key in keys):
        return False
    return await service.store.revoke_key(account_id, key_id, by=by)
