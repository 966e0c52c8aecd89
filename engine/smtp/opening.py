"""Opens layer 4, with one egress or with those of the settings."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

from ..background import contained, supervised
from ..dns.routes import Routes
from ..egress import Egress, EgressControl
from ..net.dialer import Dial
from ..net.reactor import open_reactor
from ..observer import NO_OBSERVER, Observer
from ..settings import EngineSettings
from ..shared_cache import SharedCache
from .catchall import Domains
from .connection_budget import ConnectionBudget
from .controls import SharedControls
from .egress.budgets import EgressBudgets
from .egress.choice import EgressChoice, Way, seed_of
from .egress.hosts import EgressHosts
from .egress.relief import EgressRelief, ReadCause
from .egress.trials import EgressTrials
from .host.engine_shared_cache import EngineSharedCache
from .leases.ledger import RefusalLedger
from .operators import MailOperators
from .probing import Probing
from .replies.rules import Rules
from .tolerance.hosts import Attach


@asynccontextmanager
async def open_probing(
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
    refusals: RefusalLedger | Attach | None = None,
) -> AsyncIterator[Probing]:
    """Layer 4. Leaving the block sends QUIT and closes every connection.

    `mint` makes the local part of a random address, the first or the second; by default it can't
    be guessed, and has the shape of the address that it tests.
    `permits` is the connection budget; by default it is all that the settings allow.
    `exchange` carries what is learned of hosts between engines. `refusals` leases those that hosts take, or knows earlier ones;
    by default all belong to this process. `control` and `cause_of` are for egresses that a file names.
    """
    rows = settings.egresses.rows
    are_named = not settings.egresses.is_default
    budgets = EgressBudgets(permits) if are_named and permits is not None else None
    controls = SharedControls() if are_named else None
    domains: list[Domains] = []  # of each egress; a catch-all is one by whichever
    fleet = None if exchange is None else EngineSharedCache(exchange)
    async with open_reactor() as reactor, trio.open_nursery() as nursery:

        def hosts_of(probing: Probing) -> list[EgressHosts]:
            for _ in rows:
                domains.append(Domains(settings.cache_s, mint, domains if are_named else ()))
            return [
                EgressHosts(
                    *(probing, row, settings.by(row), routes, dial_by(row), nursery),
                    *(reactor, own_domains, controls),
                    permits if budgets is None else budgets.of(row.name),
                    *(fleet, refusals),
                )
                for row, own_domains in zip(rows, domains, strict=True)
            ]

        def relief_of(probing: Probing) -> EgressRelief | None:
            return _relief(probing, settings, control, cause_of) if are_named else None

        probing = Probing(settings, routes, rules, operators, observer, hosts_of, relief_of)
        for clocks in probing.turn.clocks:
            nursery.start_soon(supervised, partial(clocks.keep, probing.turn.run))
        if probing.relief is not None:
            nursery.start_soon(supervised, probing.relief.held.keep)
            nursery.start_soon(supervised, probing.relief.keep_withdrawn)
        try:
            yield probing
            async with trio.open_nursery() as closing:
                for hosts in probing.egresses:
                    closing.start_soon(contained, hosts.close)
        finally:
            for hosts in probing.egresses:
                hosts.stop()
            nursery.cancel_scope.cancel()


def _relief(
    probing: Probing, settings: EngineSettings, control: EgressControl, cause_of: ReadCause
) -> EgressRelief:
    """The choice among the egresses of the settings, and their trials."""
    ways = [
        Way(row.name, seed_of(row.name), row, hosts)
        for row, hosts in zip(settings.egresses.rows, probing.egresses, strict=True)
    ]
    choice = EgressChoice(ways, probing.operators, control)
    trials = EgressTrials(choice, control, settings.egresses.quarantine_share)
    return EgressRelief(
        *(choice, trials, probing.turn, probing.queue_by, probing.settle, control, cause_of)
    )
