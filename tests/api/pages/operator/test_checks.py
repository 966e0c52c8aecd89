"""The checks of `mailprobe doctor` on the operator's page: the same table, for operators alone."""

import pytest
import trio.testing
from msgspec.structs import replace

from mailprobe.api.doctor.checks import BLOCKLISTS, CLOCK, PORT, Check
from mailprobe.api.doctor.latest import MachineChecks
from mailprobe.api.pages.dashboard.operator.checks import CHECKS
from mailprobe.api.serve import create_app
from mailprobe.api.service import Deployment
from tests.api.pages.test_dashboard import HOME, signed_in
from tests.api.service_fixture import RunningService, open_shop

Clock = trio.testing.MockClock
PLACE = CHECKS.removeprefix(HOME)
FOUND = [
    PORT.failed("closed", "no host answers at <25>", "25"),
    BLOCKLISTS.skipped("our public address is not known"),
    CLOCK.ok("right"),
]


def with_checks(shop: RunningService) -> list[int]:
    """Let the service have checks; the list has an item for each time that they were run."""
    ran: list[int] = []

    async def examine() -> list[Check]:
        ran.append(1)
        return FOUND

    deployment = Deployment(shop.clock(), database="mailprobe.db", checks=MachineChecks(examine))
    shop.app = create_app(replace(shop.service, deployment=deployment))
    return ran


async def test_the_page_has_the_table_of_the_doctor(autojump_clock: Clock) -> None:
    async with open_shop() as shop:
        ran, ann = with_checks(shop), await signed_in(shop)
        page = await ann.get("/operator")
        assert CHECKS.encode() in page.octets
        assert b"One check fails" not in page.octets
        assert ran == []  # until somebody looks
        part = {"hx-request": "true"}
        for got in (
            await ann.get(PLACE, **part),
            await ann.get(PLACE),
            await ann.post(PLACE, {}, **part),
        ):
            assert got.status == 200
            shown = got.octets.decode()
            for check in FOUND:
                for words in (check.check, check.question, check.status, check.advice):
                    assert words is None or words in shown, words
            assert "no host answers at &lt;25&gt;" in shown
            assert "1 check of 3 failed" in shown
        assert ran == [1]
        for path in ("", "/operator"):  # what is known is a notice, until it is mended
            shown = (await ann.get(path)).octets.decode()
            assert (
                f"<b>One check fails: {FOUND[0].check}.</b> No host answers at &lt;25&gt;" in shown
            )
            assert '<div class="notice bad">' in shown
        await trio.sleep(60)
        assert (await ann.post(PLACE)).headers["location"] == CHECKS
        assert ran == [1, 1]


@pytest.mark.parametrize("method", ["get", "post"])
async def test_others_run_no_checks(method: str, autojump_clock: Clock) -> None:
    async with open_shop() as shop:
        other = await shop.store.create_account("eve@example.org", "scale")
        ran = with_checks(shop)
        eve = await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))
        assert (await getattr(eve, method)(PLACE)).status == 404
        assert ran == []
