"""`mailprobe egress`: the egresses of MAILPROBE_EGRESS_FILE, over all processes of the store."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from ...errors import Misuse, print_error
from .. import COMMANDS
from ..operator_store import print_json, read_settings, with_store

if TYPE_CHECKING:
    from mailprobe.storage.store import Store

    from ...egress.report import EgressOverview
    from ...egress.tolerances import ShownTolerance
    from ...settings import Settings

NO_FILE = (
    "no egresses: MAILPROBE_EGRESS_FILE is not set; it takes the path of a TOML file with a"
    " [[egress]] table for each address or proxy (docs/egress.md)"
)
HOSTS_SHOWN = 20  # of each kind; --json has all
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print an object in JSON per egress, one a line."
)


egress = click.Group("egress", help=COMMANDS["egress"].summary)


@egress.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List every egress. Shows its state, its addresses of today, and who refused it last."""
    found = _overviews(read_with_file())
    if as_json:
        for each in found:
            print_json(_shown(each))
    else:
        _print_table(found)


@egress.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_option
def show(names: Sequence[str], as_json: bool) -> None:
    """Show all that is known of egresses; without a NAME of every one."""
    settings = read_with_file()
    check_names(settings, names)
    wanted = names or [row.name for row in settings.engine.egresses.rows]
    hosts = _hosts(settings, wanted)
    for each in _overviews(settings):
        if each.name not in wanted:
            continue
        if as_json:
            print_json({**_shown(each), **_details(each), **_shared(hosts[each.name])})
        else:
            _print_one(each, hosts[each.name])


@egress.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def pause(names: Sequence[str]) -> None:
    """Pause egresses until they are resumed. Each process knows it within 2 s."""
    _change(names, is_pause=True)


@egress.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def resume(names: Sequence[str]) -> None:
    """Use egresses again: ends a pause, and a quarantine."""
    _change(names, is_pause=False)


def read_with_file() -> "Settings":
    """The settings. Raises Misuse where they name no file of egresses."""
    from mailprobe.engine.egress import ONE_EGRESS

    settings = read_settings()
    if settings.engine.egresses is ONE_EGRESS:
        raise Misuse(NO_FILE)
    return settings


def check_names(settings: "Settings", names: Sequence[str]) -> None:
    """Raise Misuse for a name that no egress has."""
    known = [row.name for row in settings.engine.egresses.rows]
    for name in names:
        if name not in known:
            raise Misuse(f"no egress is called {name!r}; there are {', '.join(known)}")


def _overviews(settings: "Settings") -> "list[EgressOverview]":
    from ...egress.report import overviews

    async def read(store: "Store") -> "list[EgressOverview]":
        today = datetime.now(UTC).date()
        board, replies = await store.egresses(today), await store.egress_replies()
        return overviews(settings.engine.egresses, board, replies, today)

    return with_store(read, settings)


class _HostsOfEgress(Struct, frozen=True):
    """What the services share of hosts that refuse this egress."""

    resting: list[tuple[str, str, float]]  # exchange, rule, seconds left
    tolerances: "list[ShownTolerance]"


def _hosts(settings: "Settings", names: Sequence[str]) -> dict[str, _HostsOfEgress]:
    from mailprobe.engine.shared_cache import Fact
    from mailprobe.engine.smtp.host.host_shared_cache import resting_elsewhere

    from ...egress.tolerances import shown_tolerances

    async def read(store: "Store") -> dict[str, _HostsOfEgress]:
        facts: list[Fact] = []
        last, more = 0, True
        while more:
            page = await store.read_facts(last, not_by="", kind="backoff")
            facts += [Fact(each.kind, each.key, each.value, each.left_s) for each in page.facts]
            last, more = page.last, page.more
        return {
            name: _HostsOfEgress(
                resting_elsewhere(facts, name), shown_tolerances(await store.host_tolerances(name))
            )
            for name in names
        }

    return with_store(read, settings)


def _change(names: Sequence[str], *, is_pause: bool) -> None:
    from mailprobe.storage.records import COMMAND_LINE

    settings = read_with_file()
    check_names(settings, names)

    async def change(store: "Store") -> list[str]:
        account_id = await _operator_id(store, settings)
        act = store.pause_egress if is_pause else store.resume_egress
        return [
            name
            for name in dict.fromkeys(names)
            if await act(name, account_id=account_id, by=COMMAND_LINE)
        ]

    changed = with_store(change, settings)
    for name in dict.fromkeys(names):
        if name not in changed:
            print_error(f"{name} {'is paused already' if is_pause else 'was active already'}")
        print_json({"name": name, "state": "paused" if is_pause else "active"})


async def _operator_id(store: "Store", settings: "Settings") -> str | None:
    """The account in whose audit log the act is written: the operator's, if there is one."""
    from mailprobe.storage.contract import LISTED_MAX

    if settings.operators is None:
        first = await store.first_account_id()
        account = await store.account(first) if first else None
        return account.id if account is not None and account.email else None
    for named in settings.operators:
        for found in await store.find_accounts(named, limit=LISTED_MAX):
            if named in (found.id.lower(), found.email.lower()):
                return found.id
    return None


def _shown(each: "EgressOverview") -> dict[str, object]:
    last = each.last_refused
    return {
        "name": each.name,
        "way": each.way,
        "state": each.state,
        "since": each.since(),
        "why": each.rest.why,
        "addresses_today": each.asked,
        "limit_today": each.limit,
        "answers_today": each.answers,
        "refused_today": each.refused,
        "last_refused_at": last and last.last_at,
        "last_refused_by": last and last.operator,
    }


def _details(each: "EgressOverview") -> dict[str, object]:
    row = each.row
    return {
        "helo": row.helo_name,
        "mail_from": row.mail_from,
        "weight": row.weight,
        "only_operators": sorted(row.only),
        "never_operators": sorted(row.never),
        "reserved_today": each.reserved,
        "next_trial_at": each.rest.trial_at,
        "addresses_a_day": [
            {"since": step.since, "addresses": step.addresses} for step in each.steps
        ],
        "replies": [
            {
                "operator": reply.operator,
                "reason": reply.reason,
                "day": reply.day,
                "times": reply.times,
                "last_at": reply.last_at,
            }
            for reply in each.replies
        ],
    }


def _shared(hosts: _HostsOfEgress) -> dict[str, object]:
    return {
        "resting": [
            {"host": host, "rule": rule, "left_s": round(left_s)}
            for host, rule, left_s in hosts.resting
        ],
        "refused_recipients": [
            {
                "host": each.host,
                "refused_10_minutes": each.recent,
                "refused_hour": each.hour,
                "tolerance": each.tolerance,
                "learned_from_ban": each.is_careful,
                "rest_left_s": round(each.rest_left_s),
            }
            for each in hosts.tolerances
        ],
    }


def _used(each: "EgressOverview") -> str:
    return f"{each.asked:,}" + ("" if each.limit is None else f" of {each.limit:,}")


def _share(each: "EgressOverview") -> str:
    return "" if each.share is None else f"{each.share:.1%}"


def _instant(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M}"


def _last(each: "EgressOverview") -> str:
    last = each.last_refused
    return "" if last is None else f"{_instant(last.last_at)} by {last.operator}"


def _tolerance(each: "ShownTolerance") -> str:
    learned = f", {each.why}" if each.why else ""
    rests = f", rests for {each.rest_left_s / 60:.0f} min" if each.rest_left_s else ""
    return (
        f"{each.host}: {each.recent:,} of {each.tolerance:,} in 10 minutes{learned},"
        f" {each.hour:,} within the hour{rests}"
    )


def _print_table(found: "Sequence[EgressOverview]") -> None:
    from rich import box
    from rich.table import Table

    from ..output.report import console_on

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("name", "way out", "state", "today", "refused", "last refused"):
        table.add_column(title, overflow="fold")
    for each in found:
        table.add_row(each.name, each.way, each.state, _used(each), _share(each), _last(each))
    console_on(sys.stdout).print(table)


def _print_one(each: "EgressOverview", hosts: _HostsOfEgress) -> None:
    """The egress as lines of a name and a value."""
    row = each.row
    rests = f", since {_instant(each.since())}" if each.since() else ""
    trial = f"; next trial {_instant(each.rest.trial_at)}" if each.rest.trial_at else ""
    lines = [
        ("way out", each.way),
        ("state", each.state + rests + trial),
        ("why", each.rest.why or ""),
        ("EHLO name", row.helo_name or "MAILPROBE_SMTP_HELO"),
        ("sender", row.mail_from or "MAILPROBE_SMTP_MAIL_FROM"),
        ("weight", f"{row.weight:g}"),
        ("operators", ", ".join(sorted(row.only)) or "all"),
        ("never", ", ".join(sorted(row.never))),
        ("today", f"{_used(each)}, {each.answers:,} answers, {each.refused:,} refused"),
        ("last refused", _last(each)),
        *(
            (f"from {step.since}", f"{step.addresses:,} addresses a day")
            for step in each.steps
            if step.since.year > 1  # of one number, which holds for ever
        ),
        *(
            (reply.reason, f"{reply.operator}: {reply.times:,} on {reply.day}, last {_instant(reply.last_at)}")
            for reply in each.replies
        ),
        *(
            ("rests at", f"{host}, {rule}, for {left_s / 60:.0f} min")
            for host, rule, left_s in hosts.resting[:HOSTS_SHOWN]
        ),
        *(
            ("refused by", _tolerance(tolerance)) for tolerance in hosts.tolerances[:HOSTS_SHOWN]
        ),
    ]  # fmt: skip
    click.echo(each.name)
    for name, value in lines:
        if value:
            click.echo(f"  {name:<16}{value}")
