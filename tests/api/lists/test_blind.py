"""Lists wait while this process reaches no mail host, and go on by themselves."""

from collections.abc import Sequence

import trio

from mailprobe.api.quota.self_probe import is_greeted
from mailprobe.api.quota.self_protection import (
    PASS_EVERY_S,
    PROBE_EVERY_S,
    RESULTS_MIN,
    SelfProtection,
)
from mailprobe.bench.world.mail_host import MailHost
from tests.api.lists.test_lists import LISTS, causes_of, ended, open_list_shop, send
from tests.api.service_fixture import RunningService

DOMAINS = 60  # their hosts refuse us: more than enough operators
REFUSAL = "550 5.7.1 Service unavailable, client host blocked using a blocklist"


def refuse_all(shop: RunningService, *, refusing: bool) -> None:
    for n in range(DOMAINS):
        banner = REFUSAL.replace("550", "554") if refusing else "220 {name} ESMTP"
        shop.world.add(f"d{n}.test", MailHost(banner=banner))


async def test_a_list_waits_while_every_host_refuses_but_for_an_address_now_and_then(
    autojump_clock: object,
) -> None:
    protection = SelfProtection()
    async with open_list_shop(protection=protection) as shop, trio.open_nursery() as nursery:
        refuse_all(shop, refusing=True)
        engine = shop.service.quota.engine

        async def probe(domains: Sequence[str]) -> bool | None:
            return await is_greeted(engine, shop.world.dial, domains, ["refusing.test"])

        shop.world.add("refusing.test", MailHost(banner=REFUSAL.replace("550", "554")))
        nursery.start_soon(protection.watch, probe)
        count = 10 * RESULTS_MIN
        text = "email\n" + "".join(f"known{n}@d{n % DOMAINS}.test\n" for n in range(count))
        list_id = (await send(shop, text)).body["list_id"]
        with trio.fail_after(PROBE_EVERY_S * 3):
            while not protection.blind:  # noqa: ASYNC110  # of virtual time
                await trio.sleep(1)
        await trio.sleep(PROBE_EVERY_S)
        before = await shop.request("GET", f"{LISTS}/{list_id}")
        assert before.body["stage"] == "waiting"
        assert "self_protection" in causes_of(before.body)
        await trio.sleep(PROBE_EVERY_S * 4)
        during = await shop.request("GET", f"{LISTS}/{list_id}")
        tried = during.body["answered"] - before.body["answered"]
        assert 1 <= tried <= PROBE_EVERY_S * 4 / PASS_EVERY_S["list"] + 1
        assert during.body["answered"] < count / 2
        assert len(await shop.rows()) == during.body["answered"]
        refuse_all(shop, refusing=False)
        body = await ended(shop, list_id, within_s=4 * 3600)
        assert (body["status"], body["answered"]) == ("done", count)
        assert not protection.blind
        nursery.cancel_scope.cancel()
