"""Opens an engine: the lists, caches and connections that all streams of a process share."""

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache

import trio

from mailprobe.engine.background import contained, sole_exception
from mailprobe.engine.dns.doh import DohTransport
from mailprobe.engine.dns.routes import Routes, open_routes
from mailprobe.engine.lists.lists import Lists, load_lists
from mailprobe.engine.net.dialer import Dial, Dialer
from mailprobe.engine.observer import NO_OBSERVER, Observer
from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.smtp.connection_budget import ConnectionBudget
from mailprobe.engine.smtp.dispatcher import ProbeDispatcher, open_dispatcher
from mailprobe.engine.smtp.operators import load_operators
from mailprobe.engine.smtp.replies.rules import Rules, standard_rules
from mailprobe.engine.stream.own_rules import OWN_RULES
from mailprobe.engine.stream.submission_turns import SubmissionTurns

COMPILE_AFTER_S = 0.05  # by then the first query has been sent; it goes before the rules


@dataclass(frozen=True, slots=True)
class Engine:
    """What the five layers need; opened by open_engine()."""

    settings: EngineSettings
    lists: Lists
    routes: Routes
    dispatcher: ProbeDispatcher
    rng: random.Random
    submission_turns: SubmissionTurns
    observer: Observer = NO_OBSERVER


_lists = cache(load_lists)
_operators = cache(load_operators)


def load_rules_and_lists() -> None:
    """Load what all engines of a process share, so that processes forked later have it too."""
    len(_lists().disposable)  # builds its set
    _operators()
    standard_rules().compile_all()


async def _compile(rules: Rules) -> None:
    """Compile the rules' patterns while the first answers are under way.

    Other tasks run after each pattern. All are compiled long before the first verdict is due.
    """
    await trio.sleep(COMPILE_AFTER_S)
    for _ in rules.compile_remaining():
        await trio.lowlevel.checkpoint()


def deciding_rules() -> tuple[str, ...]:
    """The ids of all rules that can decide an outcome, the engine's own first."""
    return (*OWN_RULES, *(rule.reading.rule for rule in standard_rules().rules))


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
    computed_s: Callable[[], float] = time.thread_time,
) -> AsyncIterator[Engine]:
    """Open an engine with its caches and connections. Leaving the block sends QUIT on each.

    `transport`, `dial`, `rng` and `mint` (which makes the local part of a random address)
    replace the network and chance in tests; None means the real ones. `observer` is
    notified of what the engine does. `permits` limits the connections to one IP address
    where several processes share the limit of the settings. `computed_s` is the processor
    time of this thread: see SubmissionTurns.
    """
    rng = rng or random.Random()
    lists = _lists().with_own(settings.own_lists) if settings.own_lists.folder else _lists()
    rules, operators = standard_rules(), _operators()
    try:
        async with (
            open_routes(settings, transport=transport, rng=rng, observer=observer) as routes,
            open_dispatcher(
                settings,
                routes=routes,
                dial=dial or Dialer(settings.proxies, allow_private=settings.allow_private),
                rules=rules,
                operators=operators,
                mint=mint,
                observer=observer,
                permits=permits,
            ) as dispatcher,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(contained, _compile, rules)
            yield Engine(
                settings, lists, routes, dispatcher, rng, SubmissionTurns(computed_s), observer
            )
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise sole_exception(group) from None
