"""The log has one line per request, and no line contains a key, a secret or a whole address."""

import io
import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import Context
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from mailprobe.api.keys import SHOWN_CHARACTERS, Prefix, mint
from mailprobe.api.observability.logs import (
    CUT,
    HIDDEN,
    Handler,
    covered,
    formatter,
    shortened,
)
from mailprobe.api.operations import verify
from mailprobe.api.operations.verify import VerifyRequest
from mailprobe.engine.lists.lists import DATA, version_of
from mailprobe.release import version
from tests.api.service_fixture import STREAM, VERIFY, RunningService
from tests.api.service_process import PATIENCE_S, make_place, running
from tests.docs.pages import ROOT, bare, table_of
from tests.warm_lab import start_lab

Lines = Callable[[], list[dict[str, Any]]]

log = logging.getLogger("mailprobe.test")


class Paper:
    """Captured log lines: formatted as for standard error, then parsed."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.stream = io.StringIO()
        self.handler = Handler(self.stream)
        self.handler.setFormatter(formatter(terminal=terminal))

    def write(self, message: str, *arguments: Any, error: Any = None, **extra: Any) -> str:
        record = log.makeRecord(
            log.name, logging.ERROR, __file__, 1, message, arguments,
            (type(error), error, error.__traceback__) if error else None, extra=extra,
        )  # fmt: skip
        self.handler.handle(record)
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        *lines, end = self.stream.getvalue().split("\n")
        assert end == ""
        return [json.loads(line) for line in lines]


@pytest.fixture
def paper() -> Iterator[Paper]:
    """Capture everything logged at level `info` and above."""
    paper, root = Paper(), logging.getLogger()
    level = root.level
    root.handlers.insert(0, paper.handler)  # before pytest's handler, which changes the records
    root.setLevel(logging.INFO)
    yield paper
    root.removeHandler(paper.handler)
    root.setLevel(level)


# -- what is never logged ---------------------------------------------------------------------

KEYS = st.builds(
    lambda prefix, seed: mint(prefix, random.Random(seed).randrange),
    st.sampled_from(get_args(Prefix)),
    st.integers(),
)
# Any words, and words made to mislead the search for keys and addresses.
WORDS = st.text() | st.text(alphabet="sk_liveтmgt AZ09@.=:;'\"\\\n\t%<>()…") | KEYS | st.emails()


class Leaking(Exception):
    """An error whose text and repr contain what it was given."""


def as_message(text: str, paper: Paper) -> str:
    return paper.write(text.replace("%", "%%"))


def as_argument(text: str, paper: Paper) -> str:
    return paper.write("%s and %r of %s", text, text, [text])


def as_field(text: str, paper: Paper) -> str:
    return paper.write("a field", said=text)


def as_fields(text: str, paper: Paper) -> str:
    deep = {"a": [{text: (text, {text})}, text.encode("utf-8", "replace")], "b": Leaking(text)}
    deepest: Any = deep
    for _ in range(10):
        deepest = [deepest]
    return paper.write("fields", said=deep, deep=deepest, asked=VerifyRequest(text, None, None))


def as_error(text: str, paper: Paper) -> str:
    try:
        try:
            raise Leaking(text)
        except Leaking as inner:
            inner.add_note(text)
            raise ValueError(repr(text)) from inner
    except ValueError as error:
        return paper.write("an error", error=error)


def as_group(text: str, paper: Paper) -> str:
    try:
        raise ExceptionGroup(text, [Leaking(text), ExceptionGroup("b", [KeyError(text)])])
    except ExceptionGroup as error:
        return paper.write("errors", error=error)


PLACES = [as_message, as_argument, as_field, as_fields, as_error, as_group]


@pytest.mark.parametrize("terminal", [False, True], ids=["json", "terminal"])
@pytest.mark.parametrize("place", PLACES)
@given(before=WORDS, key=KEYS, after=WORDS)
def test_no_key_is_ever_said(
    terminal: bool, place: Callable[[str, Paper], str], before: str, key: str, after: str
) -> None:
    """Whatever text surrounds a key, the line has at most the prefix that its owner is shown."""
    paper = Paper(terminal=terminal)
    said = place(f"{before}{key}{after}", paper)
    assert key[: SHOWN_CHARACTERS + 1] not in said
    assert key[SHOWN_CHARACTERS : SHOWN_CHARACTERS + 12] not in said
    if not terminal:
        assert len(paper.lines) == 1


@pytest.mark.parametrize("place", PLACES)
@given(before=WORDS, address=st.emails(), after=WORDS)
@example(before="", address="%40@example.org", after="")
def test_no_whole_address_is_ever_said(
    place: Callable[[str, Paper], str], before: str, address: str, after: str
) -> None:
    paper = Paper()
    said = place(f"{before}{address}{after}", paper)
    assert address not in said
    assert address.replace("@", "%40") not in said
    assert len(paper.lines) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("to ann@example.org", "to a…@example.org"),
        ("ann@example.org,bob@example.org", "a…@example.org,b…@example.org"),
        ("<ann.smith+x@example.org>", "<a…@example.org>"),
        ("email='ann@example.org'", "email='a…@example.org'"),
        ("b'ann@example.org'", "b'a…@example.org'"),
        ("mailto:ann@example.org", "mailto:a…@example.org"),
        ("o'neil@example.org", "o…@example.org"),
        ('"john doe"@example.org', '"…@example.org'),
        ('x "a \\" b"@example.org', 'x "…@example.org'),
        ("jürgen@example.org", "j…@example.org"),
        ("ann＠example.org", "a…＠example.org"),
        ("q=ann%40example.org", "q…%40example.org"),
        ("a@b@c.org", "a…@b…@c.org"),
        ("ann%40@example.org", "a…@example.org"),
        ("%40@example.org", "%…@example.org"),
        ("to ann@@example.org", "to a…@example.org"),
        ("ann(comment)@example.org", "a…@example.org"),
        ("at noon @ home", "at noon @ home"),
        ("@cache", "@cache"),
        ("no address", "no address"),
        ("sk_live_4Gx9", "sk_live_4Gx9"),
        ("sk_live_4Gx9abcdef.", "sk_live_4Gx9….",),
        ("sk_test_4Gx9sk_live_4Gx9abcdef", "sk_test_4Gx9…"),
        ("webhook_secret='hunter22', x=1", "webhook_secret=***, x=1"),
        ('{"webhook_secret": "hunter22"}', '{"webhook_secret": ***}'),
        ("Authorization: Bearer abc", "Authorization: ***"),
        ("(b'authorization', b'Basic abc')", "(b'authorization', b***)"),
        ("MAILPROBE_SECRET_KEY is wrong", "MAILPROBE_SECRET_KEY is wrong"),
    ],
)  # fmt: skip
def test_addresses_and_secrets_in_a_text_are_masked(text: str, said: str) -> None:
    assert covered(text) == said


def test_an_address_is_shortened_in_one_way() -> None:
    assert shortened("ann@example.org") == "a…@example.org"
    assert shortened('"a@b"@example.org') == '"…@example.org'
    assert shortened("no address") == "n…"
    assert shortened("") == CUT
    assert covered(shortened("ann@example.org")) == shortened("ann@example.org")


def test_a_field_that_is_called_a_secret_is_not_said(paper: Paper) -> None:
    log.info("x", extra={"webhook_secret": "hunter22", "headers": {"Authorization": "abc def"}})
    assert "hunter22" not in paper.stream.getvalue()
    [line] = paper.lines
    assert line["webhook_secret"] == line["headers"]["Authorization"] == HIDDEN


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000, "a" * 500_000 + "@" + "b" * 500_000, "@" * 300_000, '"@' * 200_000,
        "a " * 300_000 + "@x", '\\"' * 200_000 + "@x", "sk_live_" * 100_000, "secret=" * 100_000,
        "%40" * 200_000, "sk_live_abcd" * 100_000, "'" * 300_000 + "@x", "\\" * 300_000 + '"@x',
    ],
    ids=lambda text: f"{text[:9]!r}",
)  # fmt: skip
def test_a_hostile_text_takes_no_longer_than_its_length(text: str) -> None:
    """The bound is loose for any machine, and far too tight for a quadratic search."""
    began = time.process_time()
    covered(text)
    assert time.process_time() - began < 3


class Broken:
    def __repr__(self) -> str:
        raise ZeroDivisionError("ann@example.org")


def test_a_value_whose_repr_fails_is_logged_as_such(paper: Paper) -> None:
    log.info("x", extra={"said": Broken(), "number": 1, "nothing": None, "yes": True})
    [line] = paper.lines
    assert line["said"] == "<a Broken whose repr fails>"
    assert (line["number"], line["nothing"], line["yes"]) == (1, None, True)


def test_a_line_that_cannot_be_made_is_reported_without_its_contents() -> None:
    """logging's own error handler prints the message and its arguments unmasked."""
    paper = Paper()
    paper.write("%d addresses", "ann@example.org")
    paper.write("next")
    [broken, following] = paper.lines
    assert broken == {
        "event": "log line not written",
        "level": "error",
        "error": "TypeError",
        "logger": "mailprobe.test",
    }
    assert following["event"] == "next"
    assert "ann" not in paper.stream.getvalue()


CRASHES = """
import logging, sys, threading, warnings
from mailprobe.api.observability.logs import log_to_standard_error
log_to_standard_error("info")
KEY = "sk_live_" + "Ab1" * 17
class Dying:
    def __del__(self):
        raise ValueError(KEY)
def fail():
    raise ValueError(KEY + " ann@example.org")
thread = threading.Thread(target=fail); thread.start(); thread.join()
warnings.warn("ann@example.org " + KEY)
Dying()
logging.getLogger("mailprobe.x").debug("not told")
logging.getLogger("httpx").info("not told")
fail()
"""


def test_crashes_and_warnings_are_lines_too() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", CRASHES], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines][::2] == ["crashed", "crashed"]
    assert [line["level"] for line in lines] == ["critical", "warning", "critical", "critical"]
    assert "Ab1Ab1" not in done.stderr
    assert "ann@" not in done.stderr
    assert "a…@example.org" in lines[3]["exception"]


# -- the line of a request --------------------------------------------------------------------


def accesses(paper: Paper) -> list[dict[str, Any]]:
    return [line for line in paper.lines if line["event"] == "access"]


async def test_each_request_has_one_line(
    autojump_clock: object, shop: RunningService, paper: Paper
) -> None:
    answers = [
        await shop.verify("known@slow.test"),
        await shop.batch("a", "b", "c"),
        await shop.stream("a", "b"),
        await shop.verify(key=None),
        await shop.verify(5),
        await shop.request("GET", "/nope"),
        await shop.request("PUT", "/health"),
        await shop.manage("GET", "/account"),
        await shop.request("GET", "/health"),
    ]
    lines = accesses(paper)
    assert paper.lines == lines
    assert [line["request"] for line in lines] == [got.headers["x-request-id"] for got in answers]
    assert [line["status"] for line in lines] == [got.status for got in answers]
    reported = [(line["operation"], line["addresses"], line.get("code")) for line in lines]
    assert reported == [
        ("verify_email", 1, None),
        ("verify_batch", 3, None),
        ("verify_stream", 2, None),
        ("verify_email", 0, "missing_api_key"),
        ("verify_email", 0, "invalid_request"),
        ("none", 0, "not_found"),
        ("none", 0, "method_not_allowed"),
        ("get_account", 0, None),
        ("health", 0, None),
    ]
    assert [line.get("lines") for line in lines if "lines" in line] == [2]
    assert not any("cut" in line for line in lines)
    assert lines[0]["duration_ms"] > 400
    for line in lines:
        assert line["level"] == "info"
        assert line["timestamp"].endswith("Z")


async def test_a_line_names_the_account_and_only_the_kept_part_of_the_key(
    autojump_clock: object, shop: RunningService, paper: Paper
) -> None:
    await shop.verify("known@friendly.test")
    await shop.verify(5)
    await shop.verify(key="sk_live_wrong")
    await shop.manage("GET", "/account")
    one, other, nobody, owner = accesses(paper)
    for line, key in ((one, shop.key), (other, shop.key), (owner, shop.provisioning)):
        assert line["account"] == shop.account.id
        assert line["key"] == key[:SHOWN_CHARACTERS]
    assert "account" not in nobody
    assert "key" not in nobody
    assert "known" not in paper.stream.getvalue()


async def test_a_streams_line_comes_when_the_stream_has_ended(
    autojump_clock: object, shop: RunningService, paper: Paper
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shop.stream, "known@slow.test", "x")
        await trio.sleep(0.3)
        assert paper.lines == []
    [line] = paper.lines
    assert (line["addresses"], line["lines"]) == (2, 2)
    assert line["duration_ms"] > 400


async def test_a_caller_who_leaves_has_a_line(
    autojump_clock: object, shop: RunningService, paper: Paper
) -> None:
    await shop.verify("known@slow.test", hang_up_at=0.1)
    body = {"emails": ["x", "known@slow.test"]}
    await shop.request("POST", STREAM, body, hang_up_after=lambda chunks: True)
    early, late = accesses(paper)
    assert (early["status"], early["cut"], early["addresses"]) == (None, True, 1)
    assert (late["status"], late["cut"], late["lines"]) == (200, True, 1)
    assert early["duration_ms"] == pytest.approx(100, abs=1)


async def test_the_health_checks_line_says_what_runs_and_its_answer_does_not(
    autojump_clock: object, shop: RunningService, paper: Paper
) -> None:
    got = await shop.request("GET", "/health")
    await shop.verify("x")
    health, other = accesses(paper)
    assert health["version"] == version()
    assert health["uptime_s"] >= 0
    assert set(got.body) == {"ok", "ts"}
    assert "version" not in other


async def test_every_line_of_a_request_says_so(
    autojump_clock: object, shop: RunningService, paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.store.away = {"spend"}
    failed = await shop.verify("x")
    shop.store.away = {"settle"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shop.stream, "known@friendly.test")
        await trio.sleep(0.3)
        shop.store.away = False

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("known@friendly.test")

    monkeypatch.setattr(verify, "answer_whole", broken)
    crashed = await shop.verify("x")
    Context().run(log.info, "nobody's")
    *lines, nobodys = paper.lines
    assert "request" not in nobodys
    reported = [(line["logger"].removeprefix("mailprobe."), line["operation"]) for line in lines]
    assert reported == [
        ("api", "verify_email"),
        ("access", "verify_email"),
        ("quota", "verify_stream"),
        ("quota", "verify_stream"),
        ("access", "verify_stream"),
        ("api", "verify_email"),
        ("access", "verify_email"),
    ]
    ids = [line["request"] for line in lines]
    assert ids[:2] == [failed.headers["x-request-id"]] * 2
    assert len(set(ids[2:5])) == 1
    assert ids[5:] == [crashed.headers["x-request-id"]] * 2
    assert "ZeroDivisionError: k…@friendly.test" in paper.stream.getvalue()


async def test_requests_side_by_side_keep_their_ids(
    autojump_clock: object, shop: RunningService, paper: Paper
) -> None:
    answers = []

    async def request(number: int) -> None:
        answers.append(await shop.batch(*["known@slow.test"] * number))

    async with trio.open_nursery() as nursery:
        for number in range(1, 6):
            nursery.start_soon(request, number)
    reported = {line["request"]: line["addresses"] for line in accesses(paper)}
    assert reported == {got.headers["x-request-id"]: len(got.body["results"]) for got in answers}


async def test_requests_have_no_line_at_level_warning(
    autojump_clock: object, shop: RunningService, paper: Paper
) -> None:
    logging.getLogger().setLevel(logging.WARNING)
    await shop.request("POST", VERIFY, {"email": "x"})
    assert paper.lines == []


async def test_every_field_is_documented(
    autojump_clock: object, shop: RunningService, paper: Paper
) -> None:
    await shop.stream("x")
    for _ in range(2):
        await shop.verify(key=None, headers={"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"})
    await trio.sleep(1)
    await shop.verify(key=None)
    await shop.verify("known@slow.test", hang_up_at=0.1)
    await shop.request("GET", "/health")
    log.error("x", exc_info=ValueError())
    reported = {
        name
        for row in table_of("docs/observability.md", "field", "in", "meaning")
        for name in bare(row[0]).replace("`", "").split(", ")
    }
    assert {name for line in paper.lines for name in line} == reported


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_says_json_but_to_whoever_starts_it(tmp_path: Path, workers: int) -> None:
    with start_lab() as lab:
        [address, *_] = lab.addresses["deliverable"]
        place = make_place(tmp_path, lab, "", log="info")
        who = place.make_account("scale")
        with running(place, workers=workers) as service:
            headers = {"Authorization": f"Bearer {who.key}"}
            with httpx.Client(base_url=service.url, headers=headers, trust_env=False) as client:
                results = [
                    client.post(VERIFY, json={"email": address}, timeout=PATIENCE_S).json(),
                    *client.post(STREAM, json={"emails": [address, who.key]}).text.splitlines(),
                    client.get("/health").json(),
                    client.get(f"/{who.key}/{address}").json(),
                ]
                assert len(results) == 5
            service.stop()
        said = place.log.read_text()
    lines = [json.loads(line) for line in said.splitlines() if not line.startswith("mailprobe: ")]
    started, *others = lines
    stops = [line["event"] for line in others if line["event"].startswith("stop")]
    assert sorted(stops) == ["stopped"] * workers + ["stopping"] * workers
    others = [line for line in others if line["event"] not in stops]
    assert (started["event"], started["version"]) == ("started", version())
    assert (started["workers"], started["lists"]) == (workers, version_of(DATA))
    assert [line["event"] for line in others] == ["access"] * 4
    assert [line["status"] for line in others] == [200, 200, 200, 404]
    assert address not in said
    assert who.key[: SHOWN_CHARACTERS + 1] not in said
