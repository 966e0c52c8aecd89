"""The library over a fake network: what it opens is an engine whose mail hosts are in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_description import HostAddress
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Engine, EngineSettings
from mailprobe.engine.background import sole_exception
from tests.engine.engine_runs import open_test_engine


class EngineFailure(Exception):
    """What a world's engine fails with."""


class LibraryWorld:
    """Stands for `open_engine`: shop.test has a mail host, and at silent.test no connect is answered."""

    def __init__(self) -> None:
        self.engine: Engine | None = None  # the latest
        self.token: trio.lowlevel.TrioToken | None = None  # of its event loop
        self.settings: list[EngineSettings] = []  # of each engine that was opened
        self.open_error: Exception | None = None

    @asynccontextmanager
    async def open_engine(self, settings: EngineSettings) -> AsyncIterator[Engine]:
        self.settings.append(settings)
        if self.open_error is not None:
            raise self.open_error
        self._fail = trio.Event()
        try:
            async with open_fake_network() as network, trio.open_nursery() as nursery:
                network.add("shop.test", MailHost())
                network.add("silent.test", MailHost(address=HostAddress.SILENT))
                nursery.start_soon(self._fail_later)
                async with open_test_engine(network) as self.engine:
                    self.token = trio.lowlevel.current_trio_token()
                    yield self.engine
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise sole_exception(group) from None

    async def _fail_later(self) -> None:
        await self._fail.wait()
        raise EngineFailure

    async def probes(self) -> int:
        """The probes under way, once all tasks of the engine's event loop wait."""
        await wait_all_tasks_blocked(0.01)
        assert self.engine is not None
        return self.engine.probing.turn.under_way

    def probes_in_thread(self) -> int:
        """The same, from a thread that is not the engine's."""
        return trio.from_thread.run(self.probes, trio_token=self.token)

    def fail_in_thread(self) -> None:
        assert self.token is not None
        self.token.run_sync_soon(self._fail.set)
