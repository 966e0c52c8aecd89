"""`mailprobe key`: API keys, for the operator. Prints JSON, one object per line."""

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import asdict

from ..errors import CommandError, Misuse
from ..forms.origins import RATE_DEFAULT, RATE_MAX
from ..operations.parameter_texts import KEY_LABEL
from . import COMMANDS
from .operator_store import find, find_undeleted, print_json, read_settings, with_store

if TYPE_CHECKING:
    from mailprobe.storage.records import Key
    from mailprobe.storage.store import Store

    from ..keys import Prefix


class KeyBounds(Struct, frozen=True):
    """What a publishable key is bound to."""

    origins: tuple[str, ...]
    rate_per_min: int


key = click.Group("key", help=COMMANDS["key"].summary)


@key.command()
@click.argument("account_id")
@click.option("--label", metavar="L", help=KEY_LABEL)
@click.option(
    "--provisioning", is_flag=True, help="Create a key that manages the account (sk_mgmt_)."
)
@click.option("--test", is_flag=True, help="Create a test key (sk_test_, pk_test_).")
@click.option(
    "--origin",
    "origins",
    metavar="ORIGIN",
    multiple=True,
    help="Create a publishable key (pk_) for the forms of this site, such as "
    "https://shop.example.org; may be repeated.",
)
@click.option(
    "--rate",
    type=click.IntRange(1, RATE_MAX),
    help=f"Checks a minute of a publishable key, {RATE_DEFAULT} by default; never more than its tier's.",
)
def create(
    account_id: str,
    label: str | None,
    provisioning: bool,
    test: bool,
    origins: tuple[str, ...],
    rate: int | None,
) -> None:
    """Create a key for an account. Save it now; it is never shown again."""
    from mailprobe.storage.contract import KeyLimitReached

    from ..forms.origins import read_origins
    from ..quota.plans import read_plans

    if provisioning and test:
        raise Misuse("--provisioning and --test exclude each other")
    _check_label(label)
    bounds: KeyBounds | None = None
    if origins:
        if provisioning:
            raise Misuse("--provisioning and --origin exclude each other")
        try:
            bounds = KeyBounds(read_origins(origins), rate or RATE_DEFAULT)
        except ValueError as error:
            raise Misuse(f"--origin: {error}") from None
    elif rate:
        raise Misuse("--rate is for a publishable key: give --origin too")
    prefix = _prefix(provisioning=provisioning, test=test, publishable=bounds is not None)
    settings = read_settings()
    if test and settings.production:
        raise CommandError(
            "the service is in production (MAILPROBE_PRODUCTION=1) and takes no test keys"
        )
    plans = read_plans(settings.plans_file)

    async def make(store: "Store") -> dict[str, object]:
        account = await find_undeleted(store, account_id)
        keys_max = None if provisioning else plans[account.tier].max_keys
        try:
            return await _new_key(
                store, account_id, prefix, label, keys_max=keys_max, bounds=bounds
            )
        except KeyLimitReached:
            raise CommandError(
                f"the account has all {keys_max} keys of its tier; revoke one that is not used, "
                "or change the account to a larger tier"
            ) from None

    print_json(with_store(make, settings))


@key.command("list")
@click.argument("account_id", required=False)
def list_(account_id: str | None) -> None:
    """List the active keys of one account or of all.

    A table on a terminal; elsewhere one JSON object per line.
    """

    async def every(store: "Store") -> "list[Key]":
        accounts = [await find(store, account_id)] if account_id else await store.accounts()
        return [key for account in accounts for key in await store.keys(account.id)]

    keys = with_store(every)
    if sys.stdout.isatty():
        _print_table(keys)
        return
    for one in keys:
        print_json(
            {
                "id": one.id,
                "account_id": one.account_id,
                "kind": one.kind,
                "label": one.label,
                "prefix": one.prefix,
                "created_at": one.created_at,
                "last_used_at": one.used_at,
                "made_by": one.made_by,
                **_bounds_of(one),
            }
        )


def _prefix(*, provisioning: bool, test: bool, publishable: bool) -> "Prefix":
    if publishable:
        return "pk_test_" if test else "pk_live_"
    return "sk_mgmt_" if provisioning else "sk_test_" if test else "sk_live_"


def _bounds_of(key: "Key") -> dict[str, object]:
    """What a publishable key is bound to; nothing for others."""
    if not key.is_publishable:
        return {}
    return {"origins": key.origins, "rate_per_min": key.rate_per_min}


def _print_table(keys: "Sequence[Key]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..terminal import plain
    from .output.report import console_on

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("id", "account"):
        table.add_column(name, overflow="fold")  # copied whole, on any screen
    has_origins = any(one.origins for one in keys)
    names = ("kind", "prefix", "label", "made", "made by", "last used")
    for name in (*names, *(["origins"] if has_origins else [])):
        table.add_column(name)
    for one in keys:
        cells = [one.id, one.account_id, one.kind, one.prefix, one.label or ""]
        cells += [f"{one.created_at:%Y-%m-%d}", (one.made_by or "").replace("_", " ")]
        # it is accurate to an hour, so more would be false
        cells.append(f"{one.used_at:%Y-%m-%d %H:%M}" if one.used_at else "")
        cells += [" ".join(one.origins)] if has_origins else []
        table.add_row(*(Text(plain(cell)) for cell in cells))
    console_on(sys.stdout).print(table)


@key.command()
@click.argument("key_id")
def revoke(key_id: str) -> None:
    """Revoke a key permanently; requests with it fail from now on."""
    from mailprobe.storage.records import COMMAND_LINE

    if not with_store(lambda store: store.revoke_key(None, key_id, by=COMMAND_LINE)):
        raise CommandError(f"there is no active key {key_id}; 'mailprobe key list' shows all keys")


async def _new_key(
    store: "Store",
    account_id: str,
    prefix: "Prefix",
    label: str | None,
    *,
    keys_max: int | None,
    bounds: KeyBounds | None = None,
) -> dict[str, Any]:
    """Create a key of the kind that `prefix` names. Raises KeyLimitReached."""
    from mailprobe.storage.records import COMMAND_LINE

    from ..rest.accounts import make_key

    bound = {} if bounds is None else asdict(bounds)
    raw, key = await make_key(
        store, account_id, prefix, label, keys_max=keys_max, by=COMMAND_LINE, **bound
    )
    made = {"id": key.id, "account_id": account_id, "kind": key.kind, "label": label, "key": raw}
    return made if bounds is None else {**made, **asdict(bounds)}


def _check_label(label: str | None) -> None:
    from ..keys import LABEL, LABEL_CHARACTERS_MAX

    if label is None:
        return
    if not re.search(LABEL, label) or not 1 <= len(label) <= LABEL_CHARACTERS_MAX:
        raise Misuse(
            f"--label takes 1 to {LABEL_CHARACTERS_MAX} characters, without control characters"
        )
