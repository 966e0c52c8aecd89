"""Opens an engine: the lists, caches and connections that all streams of a process share."""

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import trio
from msgspec import Struct

from ..background import contained, sole_exception
from ..dns.doh import DohTransport
from ..dns.routes import Routes, open_routes
from ..egress import Egress, EgressControl
from ..lists.lists import Lists, load_lists
from ..lists.updated_lists import current_folder
from ..net.dialer import Dial, Dialer
from ..observer import NO_OBSERVER, Observer
from ..pauses import CurrentPauses
from ..reasons import verdict_cause
from ..settings import EngineSettings
from ..shared_cache import SharedCache
from ..smtp.connection_budget import ConnectionBudget
from ..smtp.egress.control import LocalEgressControl
from ..smtp.leases.ledger import RefusalLedger
from ..smtp.opening import open_probing
from ..smtp.operators import load_operators
from ..smtp.probing import Probing
from ..smtp.replies.rules import Rules, standard_rules
from ..smtp.tolerance.hosts import Attach
from .own_rules import OWN_RULES
from .submission_turns import SubmissionTurns

# The patterns for a reply are compiled when it is read. A command for a few addresses ends before
# this, and saves the rest; a list or a service compiles them before the first verdicts are due.
COMPILE_AFTER_S = 1.0


class Engine(Struct, frozen=True):
    """What the five layers need; opened by open_engine()."""

    settings: EngineSettings
    lists: Lists
    routes: Routes
    probing: Probing
    submission_turns: SubmissionTurns
    pauses: CurrentPauses
    observer: Observer = NO_OBSERVER


@cache
def lists_of(own_folder: Path | None) -> Lists:
    """The lists of this process, updated ones before shipped ones."""
    return load_lists(current_folder(own_folder))


_operators = cache(load_operators)


def load_rules_and_lists(own_folder: Path | None = None) -> None:
    """Load what all engines of a process share, so that processes forked later have it too.

    `own_folder` is the folder of the operator's lists, which updated lists are in, too.
    """
    len(lists_of(own_folder).disposable)  # builds its set
    _operators()
    standard_rules().compile_all()


async def compile_soon(rules: Rules) -> None:
    """Compile the rules' remaining patterns beside the work. Other tasks run after each."""
    await trio.sleep(COMPILE_AFTER_S)
    for _ in rules.compile_remaining():
        await trio.lowlevel.checkpoint()


def deciding_rules() -> tuple[str, ...]:
    """The ids of all rules that can decide an outcome, the engine's own first."""
    return (*OWN_RULES, *(rule.reading.rule for rule in standard_rules().rules))


def _dialer(settings: EngineSettings, egress: Egress) -> Dial:
    """The network of an egress, by its proxy or its own address if it has one."""
    proxies = settings.proxies if egress.source is None else ()
    return Dialer(
        proxies if egress.proxy is None else (egress.proxy,),
        source=egress.source,
        is_egress=not settings.egresses.is_default,
        allow_private=settings.allow_private,
    )


@asynccontextmanager
async def open_engine(
    settings: EngineSettings,
    *,
    transport: DohTransport | None = None,
    dial: Dial | None = None,
    rng: random.Random | None = None,
    mint: Callable[[int], str] | None = None,
    observer: Observer = NO_OBSERVER,
    permits: ConnectionBudget | None = None,
    egress_control: EgressControl | None = None,
    dial_by: Callable[[Egress], Dial] | None = None,
    exchange: SharedCache | None = None,
    refusals: RefusalLedger | Attach | None = None,
    computed_s: Callable[[], float] = time.thread_time,
) -> AsyncIterator[Engine]:
    """Open an engine with its caches and connections. Leaving the block sends QUIT on each.

    `transport`, `dial`, `rng` and `mint` (which makes the local part of a random address)
    replace the network and chance in tests; None means the real ones. `observer` is
    notified of what the engine does. `permits` limits the connections to one IP address
    where several processes share the limit of the settings. `egress_control` says what may
    leave by the egresses of the settings, and `dial_by` replaces the network of each, as
    `dial` does that of all. `exchange` carries facts between this engine and others.
    `refusals` leases the refusals that mail hosts take from several processes together, and
    keeps what was learned of hosts; or it gives each host what is known of its name.
    `computed_s` is the processor time of this thread: see SubmissionTurns.
    """
    rng = rng or random.Random()
    own = settings.own_lists
    lists = lists_of(own.folder).with_own(own) if own.folder else lists_of(None)
    rules = standard_rules()

    try:
        async with (
            open_routes(
                settings, transport=transport, rng=rng, observer=observer, exchange=exchange
            ) as routes,
            open_probing(
                settings,
                routes=routes,
                dial_by=dial_by or (lambda egress: dial or _dialer(settings, egress)),
                rules=rules,
                operators=_operators(),
                control=egress_control or LocalEgressControl(settings.egresses, time.time),
                cause_of=verdict_cause,
                mint=mint,
                observer=observer,
                permits=permits,
                exchange=exchange,
                refusals=refusals,
            ) as probing,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(contained, compile_soon, rules)
            yield Engine(
                settings, lists, routes, probing, SubmissionTurns(computed_s),
                CurrentPauses(probing.operators.id_of), observer,
            )  # fmt: skip
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise sole_exception(group) from None
