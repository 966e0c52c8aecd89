"""The scenario `sequences`: enough of every kind, its truth, and a sentence for what is hidden."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from mailprobe.bench.lab.scenario import Truth
from mailprobe.bench.lab.sequences import (
    BACKUPS,
    KINDS,
    LATE_MS,
    SENTENCES,
    Hidden,
    SequenceKind,
    build_site,
    sequences,
)
from mailprobe.bench.world.host_log import HostLogSession
from mailprobe.bench.world.smtp_script import SmtpScript

PAGE = Path(__file__).parents[3] / "dev/judging.md"


def test_every_kind_has_its_name_alone() -> None:
    assert max(Counter(kind.name for kind in KINDS).values()) == 1
    names = {kind.name for kind in KINDS}
    assert {f"late-{late}-backup-{backup}" for late in LATE_MS for backup in BACKUPS} <= names


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_twenty_living_and_missing_addresses(kind: SequenceKind) -> None:
    known = [a for n in range(kind.sites) for a in build_site(kind, Random(0), n)[1]]
    truths = Counter(address.truth for address in known)
    if kind.catch_all:
        assert truths[Truth.CATCH_ALL] >= 40
    else:
        assert min(truths[Truth.EXISTS], truths[Truth.ABSENT]) >= 20
    assert {address.hidden for address in known} == {kind.hidden}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_truth_is_what_the_first_host_says_when_it_is_patient(kind: SequenceKind) -> None:
    """Each address is the first that its primary hears of, after the time of a greylist."""
    site, addresses = build_site(kind, Random(0), 0)
    for address in addresses:
        host = site.hosts[site.exchanges[address.text.partition("@")[2]][0]]
        host.record.clear()
        host.record.count(address.text, 0.0)
        for _ in range(2):  # a greylist by tries refuses the first
            script = SmtpScript(host, HostLogSession(1, 0.0))
            script.receive("EHLO probe.test", 100, together=False)
            script.receive("MAIL FROM:<>", 100, together=False)
            reply = script.receive(f"RCPT TO:<{address.text}>", 100, together=False).text
        assert reply[0] == ("5" if address.truth is Truth.ABSENT else "2"), (address, reply)


def test_an_address_is_hidden_or_has_an_outcome() -> None:
    scenario = sequences(Random(0))
    hidden = [text for texts in scenario.hidden.values() for text in texts]
    judged = [text for texts in scenario.addresses.values() for text in texts]
    known = [text for texts in scenario.truth.values() for text in texts]
    assert sorted(hidden + judged) == sorted(known)
    assert sorted(known) == sorted(text for texts in scenario.groups.values() for text in texts)
    assert scenario.hidden.keys() == {reason.value for reason in Hidden}


@pytest.mark.parametrize("reason", Hidden)
def test_the_documentation_says_why_a_truth_is_hidden(reason: Hidden) -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    assert SENTENCES[reason] in page
