"""Lists and jobs belong to the kind of the key that made them: to the other they are not there."""

from typing import Any

import trio.testing
from msgspec.structs import replace

from tests.api.lists.test_lists import LISTS, ended, open_list_shop, rows_of, send
from tests.api.sandbox.test_test_keys import assert_untouched
from tests.api.service_fixture import LazyApp

SANDBOX = "email\nfull@sandbox.test\nundeliverable@sandbox.test\nknown@friendly.test\n"
ON_A_LIST = (
    ("GET", ""), ("GET", "/results"), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/cancel"),
    ("DELETE", ""),
)  # fmt: skip


async def test_a_list_of_a_test_key_is_answered_without_a_packet_or_a_unit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        key = await shop.new_key("sk_test_")
        got = await send(shop, SANDBOX, key=key)
        done = await ended(shop, got.body["list_id"], key=key)
        assert (done["status"], done["answered"]) == ("done", 3)
        rows = await rows_of(shop, got.body["list_id"], key=key)
        assert [row["status"] for row in rows] == ["unknown", "undeliverable", "deliverable"]
        await assert_untouched(shop)


async def test_lists_and_jobs_of_the_other_kind_are_not_found(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        keys = shop.key, await shop.new_key("sk_test_")
        made: list[tuple[str, str]] = []
        shop.service = replace(shop.service, jobs=Idle())
        shop.app = LazyApp(shop.service)
        for key in keys:
            sent = await send(shop, SANDBOX, "?start=0", key=key)
            job = await shop.request(
                "POST", "/v1/email/verify", {"email": "full@sandbox.test", "async": True}, key=key
            )
            made.append((sent.body["list_id"], job.body["job_id"]))
        for mine, (list_id, job_id) in zip(keys, reversed(made), strict=True):
            for method, more in ON_A_LIST:
                got = await shop.request(method, f"{LISTS}/{list_id}{more}", key=mine)
                assert (got.status, got.error) == (404, "list_not_found")
            got = await shop.request("GET", f"/v1/jobs/{job_id}", key=mine)
            assert (got.status, got.error) == (404, "job_not_found")
        for mine, (list_id, job_id) in zip(keys, made, strict=True):
            listed = (await shop.request("GET", LISTS, key=mine)).body["lists"]
            assert [each["list_id"] for each in listed] == [list_id]
            assert (await shop.request("GET", f"/v1/jobs/{job_id}", key=mine)).status == 200


class Idle:
    """Jobs that are stored and not run."""

    def wake(self) -> None:
        """Nothing."""

    def stop(self) -> Any:
        """Nothing."""
