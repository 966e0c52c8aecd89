"""The reputation: which answers count, and when they are stored."""

from datetime import timedelta

import pytest

from mailprobe.api.observability.reputation import ReputationCounter
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine.observer import NO_OBSERVER
from mailprobe.storage.contract import StoreUnavailable
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import open_shop

REFUSAL = "550 5.7.1 Service unavailable; client host blocked using zen.spamhaus.org"


async def test_replies_of_hosts_are_counted_by_day(autojump_clock):
    counter = ReputationCounter(NO_OBSERVER)
    operators = frozenset({"ann@example.org"})
    async with open_shop("scale", observer=counter.observer, operators=operators) as shop:
        shop.world.add("strict.test", MailHost(default_unknown=REFUSAL))
        await shop.batch(
            "ann@friendly.test", "eve@friendly.test", "x@strict.test", "no address", "ann@gone.test"
        )
        day = shop.clock().date()
        shop.store.away = True
        with pytest.raises(StoreUnavailable):
            await counter.save(shop.store, day)
        shop.store.away = False
        await counter.save(shop.store, day)
        await counter.save(shop.store, day)
        [counted] = await shop.store.reputation(day - timedelta(days=3))
        assert (counted.day, counted.answers, counted.refused) == (day, 3, 1)
        page = (await (await signed_in(shop)).get("/operator")).octets.decode()
        assert "33.3 %" in page
