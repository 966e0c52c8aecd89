"""`mailprobe account`: accounts, their tiers and spend caps. Prints JSON, one object per line."""

import sys
from typing import TYPE_CHECKING, get_args

import click

from mailprobe.storage.records import SoldTier

from ..errors import CommandError, Misuse, print_error
from . import COMMANDS
from .operator_store import find, find_undeleted, no_account, print_json, read_settings, with_store

if TYPE_CHECKING:
    from mailprobe.storage.records import Account, Tier
    from mailprobe.storage.store import Store

TIERS = get_args(SoldTier)
OWN_HELP = "Your own account, which pays nothing: no rate limit, no quota, no price, no caps."


account = click.Group("account", help=COMMANDS["account"].summary)


@account.command()
@click.option("--email", required=True, metavar="E", help="Address for notifications.")
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    show_default="free",
    help="The plan: its limits and its price.",
)
@click.option("--own", is_flag=True, help=OWN_HELP)
def create(email: str, tier: "Tier | None", own: bool) -> None:
    """Create an account with two keys. Save them now; they are never shown again.

    `key` verifies addresses, `provisioning_key` manages the account over the API.
    An email address has one account.
    """
    from ..rest.accounts import account_of_email

    _check_email(email)
    chosen = _tier_of(tier, own) or "free"

    async def make(store: "Store") -> dict[str, object]:
        if known := await account_of_email(store, email):
            raise CommandError(
                f"{email} has an account already: {known.id}, tier {known.tier};"
                f" 'mailprobe key create {known.id}' makes a key for it,"
                f" 'mailprobe account set {known.id}' changes its settings"
            )
        made = await new_account(store, email, chosen)
        return {**made, **({"own": True} if own else {})}

    print_json(with_store(make))


@account.command()
@click.argument("account_id", metavar="ID")
def audit(account_id: str) -> None:
    """List who did what to an account. Of 90 days, newest first, one JSON object per line."""
    from ..operations.audit import entry_of

    async def every(store: "Store") -> None:
        await find(store, account_id)
        last: str | None = None
        while found := await store.audit(account_id, before=last):
            for entry in found:
                print_json(entry_of(entry))
            last = found[-1].id

    with_store(every)


@account.command("list")
def list_() -> None:
    """List every account, one JSON object per line."""
    for one in with_store(lambda store: store.accounts()):
        print_json(_shown(one))


@account.command()
@click.argument("account_id", metavar="ID")
def show(account_id: str) -> None:
    """Show an account's settings."""
    print_json(_shown(with_store(lambda store: find(store, account_id))))


@account.command("set")
@click.argument("account_id", metavar="ID")
@click.option("--tier", type=click.Choice(TIERS), help="The plan: its limits and its price.")
@click.option("--own", is_flag=True, help=OWN_HELP)
@click.option("--soft-cap", metavar="EUR|none", help="Overage that triggers a notification.")
@click.option("--hard-cap", metavar="EUR|none", help="Overage at which requests get 402.")
@click.option("--alerts", type=click.Choice(("on", "off")), help="Send mail about quota and spend.")
def set_(
    account_id: str,
    tier: "Tier | None",
    own: bool,
    soft_cap: str | None,
    hard_cap: str | None,
    alerts: str | None,
) -> None:
    """Change an account's settings. They apply from its next request."""
    changes: dict[str, object] = {}
    if chosen := _tier_of(tier, own):
        changes["tier"] = chosen
    if soft_cap is not None:
        changes["soft_cap_micros"] = read_cap(soft_cap, "--soft-cap")
    if hard_cap is not None:
        changes["hard_cap_micros"] = read_cap(hard_cap, "--hard-cap")
    if alerts:
        changes["alerts"] = alerts == "on"
    if not changes:
        raise Misuse("nothing to change; give --tier, --own, --soft-cap, --hard-cap or --alerts")

    from mailprobe.storage.records import COMMAND_LINE

    async def change(store: "Store") -> "Account":
        await find_undeleted(store, account_id)
        return await store.change_account(account_id, by=COMMAND_LINE, **changes) or no_account(
            account_id
        )

    print_json(_shown(with_store(change)))


@account.command()
@click.argument("account_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(account_id: str, yes: bool) -> None:
    """Delete the personal data of an account, which cannot be undone.

    Its email address, keys, jobs, lists, results and callbacks go, and what runs is cancelled.
    Counts of its usage stay, without a name. Repeat the command if it was interrupted.
    """
    from mailprobe.storage.records import COMMAND_LINE

    settings = read_settings()
    known = with_store(lambda store: find(store, account_id), settings)
    if not yes:
        _confirm(known)
    with_store(lambda store: store.delete_account(account_id, by=COMMAND_LINE), settings)
    print_json({"account_id": account_id, "deleted": True, "customer_id": known.customer_id})
    if known.customer_id:
        print_error(
            f"at Stripe, customer {known.customer_id} and any subscription are as before:"
            " delete the customer there too"
        )


def _confirm(known: "Account") -> None:
    """Have the account's id typed. Raises Misuse without a terminal, CommandError for another."""
    if not _is_terminal():
        raise Misuse("standard input is not a terminal; give --yes to delete without a question")
    typed = click.prompt(
        f"This deletes account {known.id} ({known.email or 'deleted before'}) for good."
        " Type its id to go on",
        err=True,
    )
    if typed.strip() != known.id:
        raise CommandError("that is another id; nothing was deleted")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


async def new_account(store: "Store", email: str, tier: "Tier") -> dict[str, str]:
    """Create an account with a key of each kind. The returned keys cannot be read again."""
    from mailprobe.storage.records import COMMAND_LINE

    from ..quota.plans import sold_tier
    from ..rest.accounts import make_account

    made = await make_account(store, email, tier, by=COMMAND_LINE)
    return {
        "account_id": made.account.id,
        "tier": sold_tier(made.account.tier),
        "key": made.key,
        "provisioning_key": made.provisioning_key,
    }


def read_cap(text: str, option: str) -> int | None:
    """Parse euros and cents into micro-euros; `none` gives None."""
    if text.strip().lower() == "none":
        return None
    from ..quota.plans import micros_of

    try:
        return micros_of(text.strip())
    except ValueError:
        raise Misuse(
            f"{option} is {text!r}: it takes euros, such as 25 or 12.50, or none"
        ) from None


def _check_email(email: str) -> None:
    from mailprobe.engine.address import NotAnAddress, parse

    try:
        parse(email)
    except NotAnAddress:
        raise Misuse(f"--email is {email!r}: it takes an email address") from None


def _tier_of(tier: "Tier | None", own: bool) -> "Tier | None":
    """The tier of the options; None without one. Raises Misuse for both."""
    if own and tier:
        raise Misuse("--own and --tier exclude each other: an own account has no plan")
    return "own" if own else tier


def _shown(account: "Account") -> dict[str, object]:
    from ..quota.plans import sold_tier

    return {
        "account_id": account.id,
        "email": account.email,
        "tier": sold_tier(account.tier),
        "own": account.tier == "own",
        "created_at": account.created_at,
        "soft_cap_eur": _eur(account.soft_cap_micros),
        "hard_cap_eur": _eur(account.hard_cap_micros),
        "alerts": account.alerts,
        **({} if account.email else {"deleted": True}),
    }


def _eur(micros: int | None) -> float | None:
    return None if micros is None else micros / 1_000_000
