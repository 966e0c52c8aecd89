"""The owner's own lists: what their files may say, and what they change of a verdict."""

import os
from pathlib import Path

import pytest

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import WrongList, known_answers, read_own_lists
from mailprobe.engine.address import parse
from mailprobe.engine.lists.lists import DATA, Lists, load_lists, read_names
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.smtp.operators import load_operators
from tests.engine.engine_runs import open_test_engine
from tests.engine.stream.streams import collect

SHIPPED = load_lists()


def own_lists(folder: Path, **files: str) -> Lists:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text, "utf-8")
    return SHIPPED.with_own(read_own_lists(folder))


# text of disposable.txt, of allow.txt, address -> disposable
RULINGS = [
    ("shop.test", "", "ann@shop.test", True),
    ("shop.test", "", "ann@mail.shop.test", True),
    ("shop.test", "", "ann@workshop.test", False),
    ("# none\n\n", "", "ann@mailinator.com", True),
    ("", "mailinator.com", "ann@mailinator.com", False),
    ("", "ann@mailinator.com", "ANN@Mailinator.com", False),
    ("", "ann@mailinator.com", "bob@mailinator.com", True),
    ("nus.edu.sg", "", "ann@nus.edu.sg", True),  # the shipped lists allow it
    ("spam@gmail.com", "", "Spam@gmail.com", True),
    ("spam@gmail.com", "", "ann@gmail.com", False),
    ("shop.test", "shop.test", "ann@shop.test", False),
    ("shop.test", "mail.shop.test", "ann@mail.shop.test", False),  # the nearest row decides
    ("mail.shop.test", "shop.test", "ann@mail.shop.test", True),
    ("ann@shop.test", "shop.test", "ann@shop.test", True),
    ("BÜCHER.test # sold", "", "ann@xn--bcher-kva.test", True),
]


@pytest.mark.parametrize(("disposable", "allow", "text", "expected"), RULINGS)
def test_the_owners_word_goes_before_the_shipped_lists(
    tmp_path: Path, disposable: str, allow: str, text: str, expected: bool
) -> None:
    lists = own_lists(tmp_path, disposable=disposable, allow=allow)
    assert lists.signals(parse(text)).disposable is expected


def test_own_providers_are_free_and_get_no_suggestion(tmp_path: Path) -> None:
    typo = parse("ann@gmial.com")
    assert SHIPPED.signals(typo).suggestion == "gmail.com"
    signals = own_lists(tmp_path, free="gmial.com\n").signals(typo)
    assert (signals.free_provider, signals.suggestion) == (True, None)


@pytest.mark.parametrize(
    ("file", "octets", "words"),
    [
        (
            "never_ask",
            b"ann@shop.test\n\nno such thing\n",
            "never_ask.txt, line 3: 'no such thing'",
        ),
        ("disposable", b"shop.test, pub.test", "disposable.txt, line 1: 'shop.test, pub.test'"),
        ("disposable", b"com", "disposable.txt, line 1: 'com' is not a domain or an address"),
        ("free", b"# own\nann@shop.test", "free.txt, line 2: 'ann@shop.test' is not a domain"),
        ("allow", b"shop.test\n\xff", "allow.txt, line 2: it is not in UTF-8"),
        ("never-ask", b"", "never-ask.txt is none of its lists; did you mean never_ask.txt?"),
    ],
)
def test_a_bad_line_is_one_error_with_file_and_line(
    tmp_path: Path, file: str, octets: bytes, words: str
) -> None:
    (tmp_path / f"{file}.txt").write_bytes(octets)
    with pytest.raises(WrongList) as wrong:
        read_own_lists(tmp_path)
    assert str(wrong.value).startswith(words)
    assert "\n" not in str(wrong.value)


def test_a_folder_that_is_missing_is_an_error_and_an_empty_one_is_none(tmp_path: Path) -> None:
    assert not read_own_lists(tmp_path).never_ask
    with pytest.raises(WrongList, match="cannot be read: No such file"):
        read_own_lists(tmp_path / "none")
    os.mkfifo(tmp_path / "free.txt")
    with pytest.raises(WrongList, match=r"free.txt cannot be read: it is not a regular file"):
        read_own_lists(tmp_path)


@pytest.mark.parametrize("as_list", [False, True])
async def test_an_address_on_never_ask_costs_no_query_and_no_connection(
    autojump_clock, tmp_path: Path, as_list: bool
) -> None:
    (tmp_path / "never_ask.txt").write_text("quiet.test\nann@shop.test\nmailinator.com\n")
    async with open_fake_network() as network:
        for domain in ("shop.test", "quiet.test"):
            network.add(domain, MailHost())
        async with open_test_engine(network, own_lists=read_own_lists(tmp_path)) as engine:
            texts = ("ANN@shop.test", "known@sub.quiet.test", "x@quiet.test")
            answers = await collect(engine, *texts, deferred_start=as_list, explain=True)
            known = known_answers(engine, [*texts, "x@mailinator.com"])
            assert known is not None
            known.notify(engine.observer)
            assert not network.dialled
            assert not network.transport.exchanged
            [bob] = await collect(engine, "known@shop.test")  # others of the domain are asked
            assert bob.verdict.status == "deliverable"
    for answer in answers:
        verdict = answer.verdict
        assert (verdict.status, verdict.confidence, verdict.failed_check) == ("unknown", 0.5, None)
        assert answer.cause == VerdictCause("not_asked", None)
        assert answer.evidence is not None
        assert answer.evidence.rule == "never_ask"
    assert [answer.verdict.failed_check for answer in known.answers] == [None] * 3 + ["disposable"]


# -- mail hosts of throwaway services ---------------------------------------------------------


@pytest.mark.parametrize("as_list", [False, True])
async def test_a_domain_at_a_throwaway_host_is_disposable_without_a_connection(
    autojump_clock, tmp_path: Path, as_list: bool
) -> None:
    (tmp_path / "allow.txt").write_text("spared.test\nours.throwaway.test\n")
    (tmp_path / "disposable_hosts.txt").write_text("throwaway.test\n")
    hosts = {
        "today.test": "mx.mail-data.net",  # shipped
        "tomorrow.test": "mx7.throwaway.test",
        "spared.test": "mx7.throwaway.test",
        "own.test": "ours.throwaway.test",
        "gmail.com": "mx7.throwaway.test",
    }
    async with open_fake_network() as network:
        for domain, host in hosts.items():
            network.add(domain, MailHost(), mx=host)
        async with open_test_engine(network, own_lists=read_own_lists(tmp_path)) as engine:
            texts = [f"known@{domain}" for domain in hosts]
            answers = await collect(engine, *texts, deferred_start=as_list, explain=True)
            found = {answer.verdict.email.partition("@")[2]: answer for answer in answers}
            throwaways = {domain for domain in found if found[domain].verdict.disposable}
            assert throwaways == {"today.test", "tomorrow.test"}
            known = known_answers(engine, ["x@tomorrow.test"])
            assert known is not None
            known.notify(engine.observer)
            [again] = known.answers
            assert again.verdict.disposable
            engine.lists.disposable_hosts.replace_own(frozenset())
            [later] = await collect(engine, "known@tomorrow.test")
            assert later.verdict.status == "deliverable"
    answer = found["tomorrow.test"]
    assert (answer.verdict.status, answer.verdict.failed_check) == ("invalid", "disposable")
    assert (answer.verdict.confidence, answer.verdict.mx_host) == (0.0, "mx7.throwaway.test")
    assert answer.cause == VerdictCause("disposable", "address")
    assert answer.evidence is not None
    assert answer.evidence.rule == "disposable.host: mx7.throwaway.test"


def test_no_throwaway_host_is_a_providers_or_an_operators() -> None:
    hosts = read_names(DATA / "disposable_hosts.txt")
    spared = SHIPPED.free_providers | SHIPPED.smtp_blocked | SHIPPED.allowed
    for host in hosts:
        assert "." in host
        assert host not in spared
        assert not any(name.endswith(f".{host}") for name in spared)
        assert load_operators().find(host) is None, host
    sources = (DATA / "SOURCES.md").read_text("utf-8")
    assert all(host in sources for host in hosts)
