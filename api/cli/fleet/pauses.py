"""Hands on a running fleet: pause a domain, an operator or an account; drain a machine of lists.

Prints JSON, one object per line. A running service follows within two seconds.
"""

from typing import TYPE_CHECKING

import click

from ...errors import CommandError, Misuse
from ..operator_store import find, print_json, with_store
from ..shell.durations import seconds_of
from ..shell.options import F

if TYPE_CHECKING:
    from mailprobe.storage.pauses import Pause, PauseKind
    from mailprobe.storage.store import Store

KINDS = ("domain", "operator", "account")
FOR_S_MAX = 31 * 24 * 3600.0  # what is to last longer is ended by hand, or belongs into own lists


def _subject(command: F) -> F:
    command = click.argument("name", metavar="NAME")(command)
    return click.argument("kind", type=click.Choice(KINDS), metavar="KIND")(command)


@click.command()
@_subject
@click.option("--for", "for_", metavar="TIME", help="Such as 30m, 2h or 7d; else until unpaused.")
@click.option("--why", default="", metavar="TEXT", help="A note for your colleagues.")
def pause(kind: "PauseKind", name: str, for_: str | None, why: str) -> None:
    """Pause a domain, an operator of mail hosts or an account's lists, in all processes.

    KIND is domain, operator or account. A domain stands for everything below it, too. No mail
    host of a paused domain or operator is asked: lists wait, requests are answered `paused`. A
    paused account's lists wait, and its requests go on.
    """
    for_s = None if for_ is None else seconds_of(for_, "--for", seconds_max=FOR_S_MAX)
    name = _name_of(kind, name)

    async def begin(store: "Store") -> "Pause":
        if kind == "account":
            await find(store, name)
        return await _begin(store, kind, name, why, for_s)

    print_json(with_store(begin))


@click.command()
@_subject
def unpause(kind: "PauseKind", name: str) -> None:
    """End a pause. Lists go on within a minute. Exit 1 if there is none."""
    _end(kind, _name_of(kind, name), f"{kind} {name} is not paused")


@click.command()
def pauses() -> None:
    """List what is paused, one JSON object per line."""
    for each in with_store(lambda store: store.pauses()):
        print_json(each)


@click.command()
@click.argument("machine", metavar="MACHINE")
@click.option("--why", default="", metavar="TEXT", help="A note for your colleagues.")
def drain(machine: str, why: str) -> None:
    """Stop a machine from taking lists: it finishes the part of each that it has, and serves requests as before.

    MACHINE is its host name, as `mailprobe machines` lists it.
    """

    async def begin(store: "Store") -> "tuple[Pause, bool]":
        known = [each.name for each in await store.machines()]
        if machine not in known:
            names = f"these have: {', '.join(known)}" if known else "no other has, either"
            raise Misuse(f"no machine {machine!r} has used this database within a day; {names}")
        begun = await _begin(store, "machine", machine, why)
        left = [each for each in await _machines(store) if each["live"] and not each["drained"]]
        return begun, bool(left)

    begun, has_left = with_store(begin)
    print_json(begun)
    if not has_left:
        click.echo(
            "mailprobe: no machine is left that takes lists: they wait until `mailprobe undrain`",
            err=True,
        )


@click.command()
@click.argument("machine", metavar="MACHINE")
def undrain(machine: str) -> None:
    """Let a machine take chunks of lists again. Exit 1 if it is not drained."""
    _end("machine", machine, f"{machine} is not drained")


@click.command()
def machines() -> None:
    """List the machines whose services have used this database within a day, as JSON lines."""
    for each in with_store(_machines):
        print_json(each)


async def _machines(store: "Store") -> list[dict[str, object]]:
    from ...quota.pauses import LIVE_S

    now = await store.check()
    drained = {each.name for each in await store.pauses() if each.kind == "machine"}
    return [
        {
            "machine": each.name,
            "version": each.version,
            "seen_at": each.seen_at,
            "live": (now - each.seen_at).total_seconds() < LIVE_S,
            "drained": each.name in drained,
        }
        for each in await store.machines()
    ]


async def _begin(
    store: "Store", kind: "PauseKind", name: str, why: str, for_s: float | None = None
) -> "Pause":
    from mailprobe.storage.pauses import PAUSES_MAX, WHY_CHARACTERS_MAX, TooManyPauses
    from mailprobe.storage.records import COMMAND_LINE

    if len(why) > WHY_CHARACTERS_MAX:
        raise Misuse(f"--why takes at most {WHY_CHARACTERS_MAX} characters")
    try:
        return await store.pause(kind, name, for_s=for_s, why=why, by=COMMAND_LINE)
    except TooManyPauses:
        raise CommandError(f"there are {PAUSES_MAX} pauses already: end one first") from None


def _end(kind: "PauseKind", name: str, there_is_none: str) -> None:
    from mailprobe.storage.records import COMMAND_LINE

    if not with_store(lambda store: store.unpause(kind, name, by=COMMAND_LINE)):
        raise CommandError(there_is_none)


def _name_of(kind: str, name: str) -> str:
    """The name as the store keeps it: a domain as A-labels, ids in lower case. Raises Misuse."""
    if kind == "domain":
        from mailprobe.engine.address import NotAnAddress, parse

        try:
            return parse(f"postmaster@{name.strip().rstrip('.')}").domain
        except NotAnAddress as error:
            raise Misuse(f"{name!r} is not a domain: {error}") from None
    name = name.strip().lower()
    if kind == "operator":
        from mailprobe.engine.smtp.operators import OTHERS, operator_labels

        known = [each for each in operator_labels() if each != OTHERS]
        if name not in known:
            raise Misuse(f"no operator {name!r}; known are {', '.join(sorted(known))}")
    return name
