"""A row of a list shows what its mail host said, without asking it again."""

import pytest
import trio.testing

from mailprobe.api.lists.conversations import packed
from mailprobe.engine.evidence import ConversationLine, Evidence
from mailprobe.storage.list_jobs.conversations import CONVERSATIONS_KEPT, Conversations
from tests.api.lists.test_lists import ended, open_list_shop, send
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import RunningService

Clock = trio.testing.MockClock
LIST = "email\nknown@friendly.test\nnobody@friendly.test\na@nowhere.invalid\n"


async def kept(shop: RunningService, list_id: str) -> None:
    """Wait until the list has ended and what was said is written."""
    await ended(shop, list_id)
    with trio.fail_after(600):
        while True:
            if await shop.store.conversations_at(list_id, 0):
                return
            await trio.sleep(1)


async def test_a_row_has_the_conversation_of_its_answer(autojump_clock: Clock) -> None:
    async with open_list_shop() as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, LIST)).body["list_id"]
        await kept(shop, list_id)
        rows = [(await visitor.get(f"/lists/{list_id}/rows/0/{n}")).octets for n in range(3)]
        for row, words in zip(rows, (b"RCPT TO:&lt;known@", b"RCPT TO:&lt;nobody@"), strict=False):
            assert words in row
            assert b"This decides" in row
            assert b"Ask again" in row
        assert b"RCPT TO" not in rows[2]  # its domain takes no mail
        asked = len(shop.world.dialled)
        await visitor.get(f"/lists/{list_id}/rows/0/0", **{"hx-request": "true"})
        assert len(shop.world.dialled) == asked


async def test_a_row_offers_to_ask_again_after_a_day(autojump_clock: Clock) -> None:
    async with open_list_shop() as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, LIST)).body["list_id"]
        await kept(shop, list_id)
        shop.clock.set(shop.clock() + CONVERSATIONS_KEPT)
        visitor = await signed_in(shop)
        row = (await visitor.get(f"/lists/{list_id}/rows/0/0")).octets
        assert b"RCPT TO" not in row
        assert b"Ask again and show the conversation" in row


async def test_a_stranger_sees_no_conversation(autojump_clock: Clock) -> None:
    async with open_list_shop() as shop:
        list_id = (await send(shop, LIST)).body["list_id"]
        await kept(shop, list_id)
        other = await shop.store.create_account("eve@example.org", "scale")
        eve = await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))
        assert (await eve.get(f"/lists/{list_id}/rows/0/0")).status == 404


async def test_a_store_that_is_away_loses_conversations_and_no_answers(
    autojump_clock: Clock,
) -> None:
    async with open_list_shop() as shop:
        shop.store.away = {"keep_conversations"}
        visitor, list_id = await signed_in(shop), (await send(shop, LIST)).body["list_id"]
        assert (await ended(shop, list_id))["status"] == "done"
        got = await visitor.get(f"/lists/{list_id}/rows/0/0")
        assert (got.status, b"Ask again and show" in got.octets) == (200, True)


async def test_the_words_of_a_host_are_no_markup(autojump_clock: Clock) -> None:
    async with open_list_shop() as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, LIST)).body["list_id"]
        await kept(shop, list_id)
        lines = [ConversationLine(1.0, "server", "220 <script>alert(1)</script>")]
        evidence = {0: Evidence(conversation=lines, reason="accepted")}
        await shop.store.keep_conversations([Conversations(list_id, 0, 1, packed(evidence))])
        row = (await visitor.get(f"/lists/{list_id}/rows/0/0")).octets
        assert b"&lt;script&gt;alert(1)" in row
        assert b"<script>alert" not in row


@pytest.mark.parametrize("lines", [1, 100])
def test_a_part_has_few_octets_however_much_its_hosts_say(lines: int) -> None:
    long = [ConversationLine(1.0, "server", "250-" + "ä" * 254) for _ in range(lines)]
    found = {number: Evidence(conversation=long) for number in range(100)}
    assert len(packed(found)) < 64 * 1024
