"""Found wrong, each with its reproduction; a test moves beside its like once it holds."""

import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import trio

from engine import EngineSettings, in_order, open_answers, open_engine
from engine.smtp import wire
from engine.smtp.throttle import Throttle
from engine.smtp.wire import Conversation, OurMistake, ReplyReader, TheirMistake
from engine.testing.hosts import MailHost
from engine.testing.personalities import new_host
from engine.testing.troubles import Late, Say, Silence
from engine.testing.world import open_world
from tests.engine.smtp.test_cancellation import SCENARIOS, STEPS_MAX, close_after, leave_after
from tests.engine.test_outcomes import DELIVERABLE, TIMED_OUT, told, verify


@pytest.mark.parametrize("name", ["pipelined", "in step", "on an idle connection", "patient"])
@pytest.mark.parametrize("cancelled", [False, True], ids=["leaves", "is cancelled"])
async def test_nothing_more_is_asked_for_an_asker_who_has_gone(autojump_clock, name, cancelled):
    """_Errand goes on after abandon(): a task of its nursery that was already rescheduled
    (feed, from its first step or from _room.wait(); _look_up, from routes.find()) runs to its
    next checkpoint before it is cancelled, and takes up to FEED_STEP texts or a whole domain's
    inquiries to the prober. Nobody abandons these: they are asked of the host, and hold room.
    """
    for steps in range(1, STEPS_MAX):
        if not await leave_after(steps, SCENARIOS[name], cancelled=cancelled, nothing_late=True):
            return


@pytest.mark.parametrize("name", ["pipelined", "in step", "refused at first"])
async def test_a_cancelled_engine_leaves_no_connection_open(autojump_clock, name):
    """Pool._reach: cancelled at its nursery's end, after _try_addresses gave a session, that
    session is nobody's: its stream is never closed and its seat never given back."""
    for steps in range(1, STEPS_MAX):
        if not await close_after(steps, SCENARIOS[name], politely=False, all_closed=True):
            return


async def test_leaving_at_once_asks_nothing(autojump_clock):
    """The same, in one step: the block is left before feed has run at all."""
    async with open_world() as world:
        host = MailHost()
        world.add("shop.test", host)
        async with open_engine(
            EngineSettings(), transport=world.transport, dial=world.dial
        ) as engine:
            async with open_answers(engine, ["known0@shop.test"], asker="me") as answers:
                await in_order(answers, 1)
            async with open_answers(
                engine, [f"known{number}@shop.test" for number in range(1, 200)], asker="me"
            ):
                pass
            await trio.sleep(5)
        assert {name for name in host.record.asked if name.startswith("known")} == {
            "known0@shop.test"
        }


async def test_duplicates_are_read_as_there_is_room(autojump_clock):
    """A twin adds a place to an inquiry and no address to _open: nothing bounds the places.
    An endless iterator of one address fills the memory (3 s long, with the real clock)."""
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for read in range(200_000):  # noqa: B007  # counted from outside
            yield "known@shop.test"

    async with open_world() as world:
        world.add("shop.test", MailHost(latency_s=0.05))
        async with (
            open_engine(EngineSettings(), transport=world.transport, dial=world.dial) as engine,
            open_answers(engine, texts(), asker="me"),
        ):
            await trio.sleep(0.01)
            assert read <= 25_000


async def test_a_list_over_vanity_exchanges_of_one_host_is_patient(autojump_clock):
    """Backlogs are kept by the exchange's name, capacity is the host's: where each domain has an
    exchange of its own name at one address, every name's backlog fills the whole capacity."""
    async with open_world() as world:
        host = new_host("no pipelining", latency_s=0.2)
        for number in range(100):
            world.add(f"d{number}.test", host)
        texts = [f"known@d{number}.test" for number in range(100)]
        async with (
            open_engine(EngineSettings(), transport=world.transport, dial=world.dial) as engine,
            open_answers(engine, texts, asker="me", patient=True) as answers,
        ):
            seen = Counter([answer.verdict.failed_check async for answer in answers])
        assert seen == {None: 100}


async def test_patient_lists_share_what_a_host_can_bear(autojump_clock):
    """Each asker's backlog fills the whole capacity, whatever others have under way there: six
    lists at a host that bears one connection in step run into the clock."""
    async with open_world() as world:
        world.add("shop.test", new_host("no pipelining", latency_s=0.15))
        seen: Counter[str | None] = Counter()
        async with open_engine(
            EngineSettings(host_connections=1), transport=world.transport, dial=world.dial
        ) as engine:
            async with open_answers(engine, ["known@shop.test"], asker="before") as answers:
                await in_order(answers, 1)

            async def clean(asker: str) -> None:
                texts = [f"known-{asker}{number}@shop.test" for number in range(60)]
                async with open_answers(engine, texts, asker=asker, patient=True) as answers:
                    async for answer in answers:
                        seen[answer.verdict.failed_check] += 1

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(clean, f"asker{number}")
        assert seen == {None: 1200}


async def test_a_list_behind_a_dead_first_exchange_is_patient(autojump_clock):
    """Capacity is asked of the first exchange alone, which never gets to know its pipelining."""
    async with open_world() as world:
        world.add("shop.test", new_host("refused"), mx="mx1.shop.test", preference=10)
        host = new_host("no pipelining", reply_s=0.5)
        world.add("shop.test", host, mx="mx2.shop.test", preference=20)
        texts = [f"known{number}@shop.test" for number in range(40)]
        async with (
            open_engine(EngineSettings(), transport=world.transport, dial=world.dial) as engine,
            open_answers(engine, texts, asker="me", patient=True) as answers,
        ):
            seen = Counter([answer.verdict.failed_check async for answer in answers])
        assert seen == {None: 40}


@pytest.mark.parametrize("line", [b"25\r\n", b"2\r\n", b"55\n", b"5\n"])
def test_a_code_has_three_digits(line):
    """ReplyReader._take_line takes `25` for a reply of code 25: nobody looks
    how many digits there are. At RCPT that is `unknown` without `smtp`: no conversation failed."""
    reader = ReplyReader()
    reader.feed(line)
    with pytest.raises(TheirMistake):
        reader.next_reply()


@pytest.mark.parametrize("limit", [6, 7, 10, 13])
def test_a_whole_round_of_good_news_is_as_many_as_the_limit(limit):
    """Throttle adds up 1/limit in floats: six sixths are 0.9999999999999999."""
    throttle = Throttle(limit_max=100, limit=limit)
    for _ in range(limit):
        throttle = throttle.after_success(0.0)
    assert throttle.limit == limit + 1


def test_a_group_that_may_not_be_said_leaves_the_conversation_as_it_was():
    """Conversation.send marks the commands before the wrong one as unanswered, and writes none."""
    conversation = Conversation()
    conversation.receive(b"220 hello\r\n")
    conversation.next_turn()
    conversation.send(wire.ehlo("me.example.org"))
    conversation.receive(b"250-mx\r\n250 PIPELINING\r\n")
    conversation.next_turn()
    with pytest.raises(OurMistake):
        conversation.send(wire.mail(""), wire.rcpt("ann\r\n@shop.test"))
    assert conversation.quiet


async def test_a_site_is_known_whichever_domain_came_first(autojump_clock):
    """A pool keeps the site of the name that made it: an exchange of another name at the same
    address, asked first, lifts the operator's limits for all."""
    async with open_world() as world:
        host = MailHost(latency_s=0.1)
        address = world.add("vanity.test", host)
        world.add("yahoo.test", host, mx="mta5.am0.yahoodns.net", address=address)
        await verify(
            world,
            "known@vanity.test",
            *(f"known{number}@yahoo.test" for number in range(200)),
        )
        assert host.record.connections_peak <= 2


async def test_a_busy_address_is_not_a_failed_one(autojump_clock):
    """Pool._try_addresses passes over an address without a free seat, and when the others fail
    it tells everyone who waits that the exchange failed: the healthy address was never asked."""
    async with open_world() as world:
        busy = MailHost(latency_s=0.1)
        address = world.add("busy.test", busy)
        dead = world.add("both.test", new_host("refused"), mx="mx.both.test")
        world.zone.host("mx.both.test", dead, address)
        async with (
            open_engine(
                EngineSettings(host_connections=1),
                transport=world.transport,
                dial=world.dial,
                rng=random.Random(0),
            ) as engine,
            trio.open_nursery() as nursery,
        ):

            async def keep_busy() -> None:
                texts = [f"known{number}@busy.test" for number in range(40)]
                async with open_answers(engine, texts, asker="a") as answers:
                    await in_order(answers, len(texts))

            nursery.start_soon(keep_busy)
            await trio.sleep(0.3)
            async with open_answers(engine, ["known@both.test"], asker="b") as answers:
                [verdict] = await in_order(answers, 1)
        assert told(verdict) == DELIVERABLE


async def test_an_idle_connection_of_another_pool_is_not_a_failure(autojump_clock):
    """The same, with nothing going on at all: the seat is held by an idle connection. seat_free()
    tells it to leave and says no; the address is passed over, the other one is dead: failed."""
    async with open_world() as world:
        address = world.add("one.test", MailHost(latency_s=0.01))
        dead = world.add("gone.test", new_host("refused"))
        world.zone.mx("two.test", "mx.two.test")
        world.zone.host("mx.two.test", address, dead)
        async with open_engine(
            EngineSettings(host_connections=1), transport=world.transport, dial=world.dial
        ) as engine:
            for text in ("known@one.test", "known1@two.test", "known2@two.test"):
                async with open_answers(engine, [text], asker="me") as answers:
                    [verdict] = await in_order(answers, 1)
                assert told(verdict) == DELIVERABLE


async def test_a_pool_does_not_starve_another_at_the_same_address(autojump_clock):
    """Turns are taken within a pool; between pools whose address sets overlap nobody takes turns:
    a seat is given up when its session ends (100 recipients) and goes to whoever is first."""
    seen: Counter[object] = Counter()
    async with open_world() as world:
        hosts = [MailHost(reply_s=0.05) for _ in range(2)]
        addresses = [world.add(f"d{number}.test", host) for number, host in enumerate(hosts)]
        world.zone.mx("both.test", "mx.both.test")
        world.zone.host("mx.both.test", *addresses)
        async with (
            open_engine(
                EngineSettings(host_connections=1), transport=world.transport, dial=world.dial
            ) as engine,
            trio.open_nursery() as nursery,
        ):

            async def clean(domain: str) -> None:
                texts = [f"known{number}@{domain}" for number in range(2000)]
                async with open_answers(engine, texts, asker=domain, patient=True) as answers:
                    await in_order(answers, len(texts))

            nursery.start_soon(clean, "d0.test")
            nursery.start_soon(clean, "d1.test")
            for number in range(20):
                await trio.sleep(1)
                text = f"known{number}@both.test"
                async with open_answers(engine, [text], asker="neighbour") as answers:
                    [verdict] = await in_order(answers, 1)
                seen[told(verdict)] += 1
            nursery.cancel_scope.cancel()
    assert seen == {DELIVERABLE: 20}


async def test_a_host_that_bears_one_connection_is_not_tried_with_two_all_the_time(autojump_clock):
    """Throttle: at a limit of 1 every good round adds one, the second is turned away (421), the
    limit is 1 again: 170 refused connections for 200 addresses, for which a host blocks us."""
    async with open_world() as world:
        host = new_host("no pipelining", latency_s=0.02, connections_max=1)
        world.add("shop.test", host)
        texts = [f"known{number}@shop.test" for number in range(200)]
        async with (
            open_engine(EngineSettings(), transport=world.transport, dial=world.dial) as engine,
            open_answers(engine, texts, asker="me", patient=True) as answers,
        ):
            await in_order(answers, len(texts))
    assert sum(not session.recipients for session in host.record.sessions) <= 20


async def test_a_long_list_can_be_left_quickly(autojump_clock):
    """Errand.abandon: each question that leaves lets the next one of the same list in, which joins
    the pool, whose staff() looks through all the dead ones: quadratic. With 20,000 at a silent
    host the loop stands still for 30 s; with 5,000 for 0.7 s."""
    async with open_world() as world:
        world.add("shop.test", new_host("silent"))
        async with open_engine(
            EngineSettings(), transport=world.transport, dial=world.dial
        ) as engine:
            texts = [f"known{number}@shop.test" for number in range(8_000)]
            async with open_answers(engine, texts, asker="me"):
                await trio.sleep(0.5)
                began = time.perf_counter()
            assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize(("reply_s", "host_connections"), [(0.5, 4), (0.3, 1)])
async def test_a_patient_list_begins_with_as_few_as_the_host_can_bear(
    autojump_clock, reply_s, host_connections
):
    """Pool.capacity() is 8 (REFUSALS_MAX) before the first EHLO was heard: in step these eight
    wait for one or two connections, and the last of them run into the clock."""
    async with open_world() as world:
        world.add("shop.test", new_host("no pipelining", reply_s=reply_s))
        settings = EngineSettings(host_connections=host_connections)
        texts = [f"known{number}@shop.test" for number in range(500)]
        async with (
            open_engine(settings, transport=world.transport, dial=world.dial) as engine,
            open_answers(engine, texts, asker="me", patient=True) as answers,
        ):
            seen = Counter([answer.verdict.failed_check async for answer in answers])
        assert seen == {None: 500}


async def test_evidence_is_not_changed_after_it_was_given(autojump_clock):
    """Evidence.exchanges is the question's own list of notes, and a question that its clock has
    settled stands in the pool's queue as long as others wait there: _tell_tried writes into what
    the reader holds already."""
    async with open_world() as world:
        addresses = [
            world.add(f"other{number}.test", new_host("unanswered")) for number in range(5)
        ]
        world.zone.mx("shop.test", "mx.shop.test")
        world.zone.host("mx.shop.test", *addresses)
        async with (
            open_engine(
                EngineSettings(read_s=0.9), transport=world.transport, dial=world.dial
            ) as engine,
            trio.open_nursery() as nursery,
        ):

            async def ask_bob() -> None:
                await trio.sleep(1.5)
                async with open_answers(engine, ["bob@shop.test"], asker="bob") as answers:
                    await in_order(answers, 1)

            nursery.start_soon(ask_bob)
            async with open_answers(engine, ["ann@shop.test"], asker="me", explain=True) as answers:
                [answer] = [answer async for answer in answers]
            assert told(answer.verdict) == TIMED_OUT
            tried = len(answer.evidence.exchanges)
            await trio.sleep(5)
            assert len(answer.evidence.exchanges) == tried


async def test_an_accepted_address_is_not_left_untested_by_anothers_silence(autojump_clock):
    """The random address stands behind somebody's silent recipient: when that session fails,
    leave_untested() settles everyone who waits for the test with 0.90, though seconds are left
    to ask it elsewhere."""
    async with open_world() as world:
        world.add("shop.test", MailHost(latency_s=0.05, troubles={"nobody1": Silence()}))
        async with (
            open_engine(EngineSettings(), transport=world.transport, dial=world.dial) as engine,
            trio.open_nursery() as nursery,
        ):

            async def ask_silent() -> None:
                async with open_answers(engine, ["nobody1@shop.test"], asker="a") as answers:
                    await in_order(answers, 1)

            nursery.start_soon(ask_silent)
            await trio.sleep(0.3)
            async with open_answers(engine, ["known@shop.test"], asker="b") as answers:
                [verdict] = await in_order(answers, 1)
        assert told(verdict) == DELIVERABLE


async def test_quit_to_who_refused_us_does_not_keep_the_next_exchange_waiting(autojump_clock):
    """Pool._greet says QUIT and waits up to a second for its answer before the cause is told."""
    async with open_world() as world:
        first = MailHost(troubles={"CONNECT": Say("554 No"), "QUIT": Silence()})
        world.add("shop.test", first, mx="mx1.shop.test", preference=10)
        world.add("shop.test", MailHost(), mx="mx2.shop.test", preference=20)
        [verdict] = await verify(world, "known@shop.test")
        assert told(verdict) == DELIVERABLE
        assert verdict.latency_ms < 500


class Broken(Exception):
    pass


async def test_what_texts_raises_is_raised_as_it_is(autojump_clock):
    """An exception of the caller's own iterator comes out wrapped in an ExceptionGroup (or two),
    so that no caller can catch it by its name."""

    def texts() -> Iterator[str]:
        yield "known@shop.test"
        raise Broken

    async with open_world() as world:
        world.add("shop.test", MailHost())
        async with open_engine(
            EngineSettings(), transport=world.transport, dial=world.dial
        ) as engine:

            async def read_all() -> None:
                async with open_answers(engine, texts(), asker="me") as answers:
                    await in_order(answers, 1)

            with pytest.raises(Broken):
                await read_all()


async def test_dead_questions_open_no_connections(autojump_clock):
    """_wants_connection counts settled questions that still stand in the queue."""
    async with open_world() as world:
        host = MailHost(troubles={"CONNECT": Late(0.5)})
        world.add("shop.test", host)
        async with open_engine(
            EngineSettings(), transport=world.transport, dial=world.dial
        ) as engine:
            with trio.move_on_after(0.1):
                async with open_answers(
                    engine, [f"known{number}@shop.test" for number in range(50)], asker="a"
                ) as answers:
                    await in_order(answers, 50)
            async with open_answers(engine, ["known@shop.test"], asker="b") as answers:
                await in_order(answers, 1)
        assert host.record.connections_peak == 1
