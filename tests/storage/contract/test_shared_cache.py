"""Every store: facts that processes share."""

import pytest

from mailprobe.storage.shared_cache import KEPT_S_MAX, ROWS_MAX, WRITTEN_MAX, NewFact
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import RETENTION, Clock


def fact(key: str = "mx.shop.test", value: str = "", left_s: float = 60.0) -> NewFact:
    return NewFact("strike", key, value, left_s)


async def test_a_fact_reaches_the_other_processes_until_its_end(store: Store, clock: Clock):
    await store.write_facts([fact(left_s=60)], by_process="one")
    assert (await store.read_facts(0, not_by="one")).facts == []
    clock.advance(20)
    read = await store.read_facts(0, not_by="two")
    assert read.facts == [fact(left_s=40)]
    assert not read.more
    assert (await store.read_facts(read.last, not_by="two")).facts == []
    clock.advance(40)
    assert (await store.read_facts(0, not_by="two")).facts == []
    await store.apply_retention(RETENTION)
    assert (await store.read_facts(0, not_by="two")).last == 0


async def test_a_fact_that_replaces_another_is_read_again(store: Store, clock: Clock):
    await store.write_facts([fact("a"), fact("b"), fact("a", "x")], by_process="one")
    read = await store.read_facts(0, not_by="two")
    assert {(each.key, each.value) for each in read.facts} == {("a", "x"), ("b", "")}
    await store.write_facts([fact("a", "y")], by_process="two")
    again = await store.read_facts(read.last, not_by="one")
    assert again.facts == [fact("a", "y")]
    assert again.last > read.last
    assert [each.key for each in (await store.read_facts(0, not_by="three")).facts] == ["b", "a"]


async def test_a_fact_that_is_written_late_does_not_replace_a_later_one(store: Store, clock: Clock):
    """The process could not write it before; a clock that was ahead must not block it."""
    clock.advance(86_400)
    await store.write_facts([fact("ahead")], by_process="one")
    clock.advance(-86_400)
    await store.write_facts([fact("a", "new", left_s=60)], by_process="one")
    late = [fact("a", "late", left_s=59), fact("ahead", "now", left_s=1)]
    await store.write_facts(late, by_process="two")
    read = await store.read_facts(0, not_by="three")
    assert {each.key: each.value for each in read.facts} == {"a": "new", "ahead": "now"}


async def test_facts_are_read_in_parts_and_by_kind(store: Store, clock: Clock):
    await store.write_facts([fact(str(n)) for n in range(5)], by_process="one")
    await store.write_facts([NewFact("route", "shop.test", "", 60)], by_process="one")
    first = await store.read_facts(0, not_by="two", limit=4)
    assert [each.key for each in first.facts] == ["0", "1", "2", "3"]
    assert first.more
    rest = await store.read_facts(first.last, not_by="two", limit=4)
    assert [each.key for each in rest.facts] == ["4", "shop.test"]
    assert [
        each.kind for each in (await store.read_facts(0, not_by="two", kind="route")).facts
    ] == ["route"]


@pytest.mark.parametrize(
    "facts",
    [
        [fact("x" * 10_000)],
        [fact("")],
        [fact(value="x" * 10_000)],
        [fact(value="\0")],
        [fact(left_s=0)],
        [fact(left_s=KEPT_S_MAX + 1)],
        [fact(left_s=float("inf"))],
        [fact(left_s=float("nan"))],
        [fact(str(n)) for n in range(WRITTEN_MAX + 1)],
    ],
)
async def test_facts_without_bounds_are_refused(store: Store, clock: Clock, facts):
    with pytest.raises(ValueError, match="may not be stored"):
        await store.write_facts(facts, by_process="one")


async def test_the_table_keeps_the_newest_of_each_kind(store: Store, clock: Clock, monkeypatch):
    """Few here: each kind's bound is a value of the same statement."""
    assert sum(ROWS_MAX.values()) == 170_000
    monkeypatch.setitem(ROWS_MAX, "strike", 3)
    await store.write_facts([fact(str(n)) for n in range(5)], by_process="one")
    await store.write_facts([NewFact("route", "shop.test", "", 60)], by_process="one")
    await store.apply_retention(RETENTION)
    read = await store.read_facts(0, not_by="two")
    assert [each.key for each in read.facts] == ["2", "3", "4", "shop.test"]


async def test_facts_of_a_clock_that_was_ahead_do_not_outlast_it(store: Store, clock: Clock):
    clock.advance(86_400)
    await store.write_facts([fact()], by_process="one")
    clock.advance(-86_400)
    assert (await store.read_facts(0, not_by="two")).facts[0].left_s == KEPT_S_MAX
    await store.apply_retention(RETENTION)
    assert (await store.read_facts(0, not_by="two")).facts == []
