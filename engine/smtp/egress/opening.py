"""Opens layer 4: one dispatcher, or one for each egress of the settings behind a router."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import trio

from ...background import contained, supervised
from ...dns.routes import Routes
from ...egress import Egress, EgressControl
from ...net.dialer import Dial
from ...net.reactor import open_reactor
from ...observer import NO_OBSERVER, Observer
from ...settings import EngineSettings
from ...shared_cache import SharedCache
from ..catchall import Domains
from ..connection_budget import ConnectionBudget
from ..controls import SharedControls
from ..dispatcher import ProbeDispatcher
from ..leases.ledger import RefusalLedger
from ..operators import MailOperators
from ..pool.engine_shared_cache import EngineSharedCache
from ..pool.pool import Pool
from ..replies.rules import Rules
from ..turn import Turn
from .budgets import EgressBudgets
from .router import EgressRouter, ReadCause


@asynccontextmanager
async def open_dispatcher(
    settings: EngineSettings,
    *,
    routes: Routes,
    dial: Dial,
    rules: Rules,
    operators: MailOperators,
    mint: Callable[[int], str] | None = None,
    observer: Observer = NO_OBSERVER,
    permits: ConnectionBudget | None = None,
    exchange: SharedCache | None = None,
    refusals: RefusalLedger | None = None,
) -> AsyncIterator[ProbeDispatcher]:
    """Layer 4. Leaving the block sends QUIT and closes every connection.

    `mint` makes the local part of a random address, the first or the second; by default it can't
    be guessed, and has the shape of the address that it tests.
    `permits` is the connection budget; by default it is all that the settings allow.
    `exchange` carries what is learned of hosts between engines. `refusals` leases those that hosts take;
    by default all belong to this process.
    """
    async with open_reactor() as reactor, trio.open_nursery() as nursery:
        dispatcher = ProbeDispatcher(
            *(settings, routes, dial, rules, operators, nursery, mint, observer, reactor),
            permits,
            fleet=_engine_shared_cache(exchange),
            refusals=refusals,
        )
        for patient in (False, True):
            nursery.start_soon(supervised, partial(dispatcher.turn.keep_time, patient=patient))
        try:
            yield dispatcher
            await dispatcher.close()
        finally:
            dispatcher.stop()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_egresses(
    settings: EngineSettings,
    *,
    routes: Routes,
    dial_by: Callable[[Egress], Dial],
    rules: Rules,
    operators: MailOperators,
    control: EgressControl,
    cause_of: ReadCause,
    mint: Callable[[int], str] | None = None,
    observer: Observer = NO_OBSERVER,
    permits: ConnectionBudget | None = None,
    exchange: SharedCache | None = None,
    refusals: RefusalLedger | None = None,
) -> AsyncIterator[EgressRouter]:
    """Layer 4 with the egresses of the settings; otherwise like open_dispatcher()."""
    turn = Turn[Pool](settings)
    budgets = None if permits is None else EgressBudgets(permits)
    domains: list[Domains] = []
    controls = SharedControls()
    fleet = _engine_shared_cache(exchange)
    async with open_reactor() as reactor, trio.open_nursery() as nursery:

        def new_dispatcher(row: Egress, router: EgressRouter) -> ProbeDispatcher:
            domains.append(Domains(settings.cache_s, mint, domains))
            return ProbeDispatcher(
                settings_of(settings, row),
                routes,
                dial_by(row),
                rules,
                operators,
                nursery,
                mint,
                observer,
                reactor,
                None if budgets is None else budgets.of(row.name),
                row,
                domains[-1],
                controls,
                turn,
                router,
                fleet,
                refusals,
            )

        dispatchers: list[ProbeDispatcher] = []

        def new_dispatchers(router: EgressRouter) -> list[tuple[Egress, ProbeDispatcher]]:
            dispatchers.extend(new_dispatcher(row, router) for row in settings.egresses.rows)
            return list(zip(settings.egresses.rows, dispatchers, strict=True))

        share = settings.egresses.quarantine_share
        router = EgressRouter(new_dispatchers, operators, turn, control, share, cause_of)
        for patient in (False, True):  # the clocks are those of all
            nursery.start_soon(supervised, partial(turn.keep_time, patient=patient))
        for keep in (router.keep_held, router.keep_withdrawn):
            nursery.start_soon(supervised, keep)
        try:
            yield router
            async with trio.open_nursery() as closing:
                for dispatcher in dispatchers:
                    closing.start_soon(contained, dispatcher.close)
        finally:
            for dispatcher in dispatchers:
                dispatcher.stop()
            nursery.cancel_scope.cancel()


def _engine_shared_cache(exchange: SharedCache | None) -> EngineSharedCache | None:
    return None if exchange is None else EngineSharedCache(exchange)


def settings_of(settings: EngineSettings, row: Egress) -> EngineSettings:
    """The settings with the names of this egress."""
    return replace(
        settings,
        helo_name=settings.helo_name if row.helo_name is None else row.helo_name,
        mail_from=settings.mail_from if row.mail_from is None else row.mail_from,
    )
