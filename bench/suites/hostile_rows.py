"""The rows of `bench hostile` for one fault each: what that fault costs the other addresses.

Each function verifies a group of the lab's scenario `adverse` with an engine of its own,
or simulates hours in virtual time where only durations and counts matter.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from statistics import fmean

import trio
from trio.testing import MockClock

from mailprobe.engine import Engine, EngineSettings, Verdict, open_answers, open_engine

from ..harness.engine_runs import open_watched, verify_all
from ..harness.figures import Figure
from ..lab import Lab
from ..world.fake_network import FakeNetwork, open_fake_network
from ..world.faults import Garbage, StaySilent, Twice
from ..world.host_profiles import NO_PIPELINING, SPAMHAUS, new_host
from ..world.mail_host import EHLO_LINES, MailHost

REFUSING = {
    **{
        name: new_host(name)
        for name in ("refused", "closing", "blocked at banner", "421 at rcpt", "closing at rcpt")
    },
    # such a session is unusable, because the host sends more replies than there were commands
    "answering EHLO twice": MailHost(latency_s=0.1, faults={"EHLO": Twice()}),
}
REFUSING |= {
    "garbage at rcpt": MailHost(faults={"RCPT": Garbage()}),
    "silent at rcpt": MailHost(faults={"RCPT": StaySilent()}),
}
FAR_TARPITS = {
    f"{words}, {delay_s:g} s": MailHost(
        ehlo_lines=offer, latency_s=0.1, connect_s=0.1, unknown_delay_s=delay_s
    )
    for words, offer in (("pipelined", EHLO_LINES), ("in step", NO_PIPELINING))
    for delay_s in (0.25, 0.6, 5.0)
}
FAR_BATCH, FAR_UNKNOWN_EVERY = 50, 7
BESIDE = 10
REFUSING_S = 120
REFUSING_ADDRESSES = 4
ROTATING_S, ROTATING_EVERY_S = 5.9 * 3600, 300  # a domain's results are cached for 6 hours
NEIGHBOUR_EVERY_S = 0.25


async def real_rows(lab: Lab) -> list[Figure]:
    """Return the figures measured on real sockets."""
    return [
        *await _tarpits(lab),
        *await _hung(lab),
        *await _neighbour(lab),
        *await _hostile_text(lab),
        *await _first_exchange(lab),
        await _later_transactions(lab),
    ]


def virtual_rows() -> list[Figure]:
    """Return the figures of minutes and hours: the same engine, in memory, in virtual time."""
    clock = partial(MockClock, autojump_threshold=0)
    counts = {}
    for words, host in REFUSING.items():
        counts[words] = trio.run(_count_dials, host, clock=clock())
        print(f"# {counts[words]} connections in 2 minutes to a host that is: {words}")
    strangers = trio.run(_count_strangers, clock=clock())
    found = {}
    for words, host in FAR_TARPITS.items():
        found[words] = trio.run(_found_far_away, host, clock=clock())
        print(f"# {found[words]:.1f} % of the known found deliverable, a far tarpit: {words}")
    beside = trio.run(_reported_beside_refused, clock=clock())
    return [
        Figure("tarpit 100 ms away, a batch of 50: found deliverable", min(found.values()), "%"),
        Figure("wrong verdicts beside two refused domains", beside, f"of {BESIDE}"),
        Figure("a host that refuses: connections in 2 minutes", max(counts.values()), ""),
        Figure("rotating addresses: random recipients in 6 hours", strangers, ""),
    ]


def share(part: int, whole: int) -> float:
    return 100 * part / whole


def _reported(verdicts: Sequence[Verdict], status: str, local: str = "known") -> int:
    return sum(v.status == status for v in verdicts if v.email.startswith(local))


def _lies(verdicts: Sequence[Verdict]) -> int:
    """Count missing mailboxes reported deliverable, and existing ones reported undeliverable."""
    return _reported(verdicts, "deliverable", "gone") + _reported(verdicts, "undeliverable")


def _remark(what: str, verdicts: Sequence[Verdict]) -> None:
    counts = Counter(
        f"{v.email.rstrip('0123456789').partition('@')[0].rstrip('0123456789')}: "
        f"{v.status}/{v.failed_check}"
        for v in verdicts
    )
    print(f"# {what}: " + ", ".join(f"{n} × {reported}" for reported, n in sorted(counts.items())))


# -- on real sockets -------------------------------------------------------------------------


async def _tarpits(lab: Lab) -> list[Figure]:
    figures, lies = [], 0
    for group, words, deferred_start in (
        ("tarpit batch", "tarpit, a batch of 50: the known found deliverable", False),
        ("tarpit list", "tarpit, a list of 400: the known found deliverable", True),
    ):
        texts = lab.groups[group]
        async with open_watched(lab) as (engine, _):
            verdicts = await verify_all(engine, texts, deferred_start=deferred_start)
        _remark(group, verdicts)
        known = sum(text.startswith("known") for text in texts)
        figures.append(Figure(words, share(_reported(verdicts, "deliverable"), known), "%"))
        lies += _lies(verdicts)
    async with open_watched(lab) as (engine, _):
        verdicts = await verify_all(engine, lab.groups["silent for some"])
    others = [v for v in verdicts if not v.email.startswith("known.silent")]
    right = Counter(v.email.partition("@")[2] for v in others if v.status == "deliverable")
    fewest = min(right[v.email.partition("@")[2]] for v in others)
    return [
        *figures,
        Figure("tarpit: wrong verdicts", lies + _lies(verdicts), ""),
        Figure("in step, silent for 2 of 8: right verdicts for the others", fewest, "of 6"),
    ]


async def _hung(lab: Lab) -> list[Figure]:
    """Verify lists in which the look-up of every fifth domain never ends."""
    figures = []
    for version, words, urls in (
        ("h2", "HTTP/2", {}),
        ("h1", "HTTP/1.1", {"doh_urls": (lab.http1_url,)}),
    ):
        healthy, hung = lab.groups[f"beside hung {version}"], lab.groups[f"hung {version}"]
        texts = [*healthy, *hung]
        random.Random(0).shuffle(texts)
        async with open_watched(lab, **urls) as (engine, _):
            began = time.perf_counter()
            verdicts = await verify_all(engine, texts, deferred_start=True)
            took_s = time.perf_counter() - began
        beside = set(healthy)
        reported = sum(v.status != "deliverable" for v in verdicts if v.email in beside)
        figures += [
            Figure(
                f"20 % hung names, {words}: wrong verdicts for healthy hosts",
                share(reported, len(healthy)),
                "%",
            ),
            Figure(f"20 % hung names, {words}: in all", took_s, "s"),
        ]
    return figures


async def _neighbour(lab: Lab) -> list[Figure]:
    """One account sends eight batches of domains that hang; another sends single addresses."""
    dead, size = lab.groups["dead"], len(lab.groups["dead"]) // 8
    late_s, wrong = [0.0], [0]

    async def verify_one(engine: Engine, text: str) -> None:
        began = trio.current_time()
        async with open_answers(engine, [text], account="neighbour") as answers:
            async for answer in answers:
                wrong[0] += answer.verdict.status != "deliverable"
        late_s[0] = max(late_s[0], trio.current_time() - began)

    async with open_watched(lab) as (engine, _), trio.open_nursery() as nursery:
        for start in range(0, len(dead), size):
            nursery.start_soon(verify_all, engine, dead[start : start + size])
        for text in lab.groups["neighbour"]:
            await trio.sleep(NEIGHBOUR_EVERY_S)
            nursery.start_soon(verify_one, engine, text)
    asked = len(lab.groups["neighbour"])
    return [
        Figure(
            "beside eight dead batches: wrong verdicts for a neighbour", wrong[0], f"of {asked}"
        ),
        Figure("beside eight dead batches: a neighbour's latest", late_s[0] * 1000, "ms"),
    ]


async def _hostile_text(lab: Lab) -> list[Figure]:
    healthy, wordy = lab.groups["beside hostile text"], lab.groups["hostile text"]
    async with open_watched(lab) as (engine, watch):
        verdicts = await verify_all(engine, [*wordy, *healthy])
    beside = set(healthy)
    reported = sum(v.status != "deliverable" for v in verdicts if v.email in beside)
    return [
        Figure("hostile text: wrong verdicts for healthy hosts", reported, f"of {len(healthy)}"),
        Figure("hostile text: the latest verdict", max(watch.layer4_ms), "ms"),
    ]


async def _first_exchange(lab: Lab) -> list[Figure]:
    """Verify one new domain at a time: how long until the engine tries the second exchange?"""
    took_ms, right = [], 0
    async with open_watched(lab) as (engine, _):
        for text in lab.groups["first exchange silent"]:
            began = time.perf_counter()
            right += _reported(await verify_all(engine, [text]), "deliverable")
            took_ms.append((time.perf_counter() - began) * 1000)
    return [
        Figure("first exchange silent: right verdicts", right, f"of {len(took_ms)}"),
        Figure("first exchange silent: time to a verdict", fmean(took_ms), "ms"),
    ]


async def _later_transactions(lab: Lab) -> Figure:
    texts = lab.groups["later transactions"]
    async with open_watched(lab) as (engine, _):
        verdicts = await verify_all(engine, texts, deferred_start=True)
    _remark("later transactions", verdicts)
    lost = len(texts) - _reported(verdicts, "deliverable")
    return Figure("later transactions refused: verdicts lost", lost, f"of {len(texts)}")


# -- in virtual time -------------------------------------------------------------------------


async def _verify_in_memory(network: FakeNetwork, count: int, every_s: float) -> None:
    """Verify `count` addresses of shop.test, one request every `every_s` seconds."""
    async with (
        open_engine(
            EngineSettings(), transport=network.transport, dial=network.dial, rng=random.Random(0)
        ) as engine,
        trio.open_nursery() as nursery,
    ):
        for number in range(count):
            nursery.start_soon(verify_all, engine, [f"known{number}@shop.test"])
            await trio.sleep(every_s)


async def _count_dials(host: MailHost) -> int:
    """Count the connections in two minutes to a refusing host, at one request per second."""
    async with open_fake_network() as network:
        addresses = {f"11.0.9.{place}" for place in range(REFUSING_ADDRESSES)}
        for address in sorted(addresses):
            network.add("shop.test", host, address=address)
        await _verify_in_memory(network, REFUSING_S, 1.0)
        return sum(address in addresses for address, _ in network.dialled)


async def _found_far_away(host: MailHost) -> float:
    """Return the percentage of a batch's existing mailboxes that is reported deliverable."""
    texts = [
        f"{'known' if number % FAR_UNKNOWN_EVERY else 'gone'}{number}@shop.test"
        for number in range(FAR_BATCH)
    ]
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with open_engine(
            EngineSettings(), transport=network.transport, dial=network.dial, rng=random.Random(0)
        ) as engine:
            verdicts = await verify_all(engine, texts)
    known = sum(text.startswith("known") for text in texts)
    return share(_reported(verdicts, "deliverable"), known)


async def _reported_beside_refused() -> int:
    """Count the mailboxes that are not found while their host refuses two other domains."""
    refused = ("one.test", "two.test")
    host = MailHost(replies={f"@{domain}": SPAMHAUS for domain in refused})
    wrong = 0
    async with open_fake_network() as network:
        for domain in ("shop.test", *refused):
            network.add(domain, host)
        async with open_engine(
            EngineSettings(), transport=network.transport, dial=network.dial, rng=random.Random(0)
        ) as engine:
            for number in range(BESIDE):
                texts = [f"a{n}@{domain}" for n in range(4) for domain in refused]
                await verify_all(engine, texts)
                wrong += not _reported(
                    await verify_all(engine, [f"known{number}@shop.test"]), "deliverable"
                )
                await trio.sleep(10)
    return wrong


async def _count_strangers() -> int:
    """Count the random recipients at a domain whose exchange changes its address every look-up."""
    async with open_fake_network() as network:
        host = new_host("plain")
        addresses = [f"11.0.9.{place}" for place in range(24)]
        for address in addresses:
            network.add("shop.test", host, address=address)
        network.zone.host("mx.shop.test", *addresses, ttl_s=60)
        network.zone.rotate("mx.shop.test")
        await _verify_in_memory(network, round(ROTATING_S / ROTATING_EVERY_S), ROTATING_EVERY_S)
        asked = host.record.recipients.items()
        return sum(times for mailbox, times in asked if not mailbox.startswith("known"))
