"""What earlier versions have stored is read, and what is stored now has names.

The files of `earlier` were written by the code of before and never change: a new form gets a new file.
"""

import json
from pathlib import Path

import msgspec
import pytest

from mailprobe.api.listfile.journal import Header, SentRequest, open_journal
from mailprobe.api.results.chunk_lines import (
    addresses_of,
    encode_results,
    found_at,
    passing_of,
    results_in,
    rows_of,
)
from mailprobe.api.results.row_result import RowResult, row_result
from mailprobe.api.results.stored_row import (
    BLANK,
    FurtherAddress,
    StoredRow,
    blank_rows_in,
    encode_row,
)
from mailprobe.engine import Answer
from mailprobe.engine.dns.messages import NoMail, Route
from mailprobe.engine.dns.shared_routes import SharedRoutes
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.shared_cache import Fact, FactKind, Listener
from mailprobe.engine.smtp.host.host_shared_cache import resting_elsewhere
from mailprobe.engine.verdict import Outcome, judge
from mailprobe.storage.idempotency import packed, unpacked
from mailprobe.storage.list_records import ListChunk
from mailprobe.storage.migrate.target import MigrationProgress
from mailprobe.storage.records import Answered

EARLIER = Path(__file__).with_name("earlier")
ANN, BOB = "ann@shop.test", "bob@none.test"
ROWS = [
    StoredRow(0, 0, ANN, ["Ann", ANN]),
    StoredRow(0, 1, BOB, ["Bob \u2028", BOB]),
    StoredRow(0, 0, None, ["Ann again", ANN]),
    StoredRow(None, None, None, []),
    StoredRow(None, None, None, ["no address", "n/a"]),
]
ANSWERS = [
    Answer(
        0,
        judge(ANN, Outcome.DELIVERABLE, mx_host="mx.shop.test", mx_found=True, latency_ms=120),
        None,
        VerdictCause("accepted", None),
    ),
    Answer(
        1,
        judge(BOB, Outcome.CONVERSATION_FAILED, mx_host="mx.none.test", latency_ms=3000),
        None,
        VerdictCause("timeout", "host"),
    ),
]
RESULTS = {number: row_result(answer) for number, answer in enumerate(ANSWERS)}
FACTS: dict[str, str] = json.loads((EARLIER / "shared_facts.json").read_text())


def earlier(name: str) -> str:
    return (EARLIER / name).read_text("utf-8")


def lines(text: str) -> list[str]:
    return text.split("\n")[:-1]


EARLIER_ROWS, EARLIER_RESULTS = earlier("list_rows.jsonl"), earlier("list_results.jsonl")
ROW_LINES = "".join(map(encode_row, ROWS))
RESULT_LINES = encode_results(enumerate(ANSWERS))


@pytest.mark.parametrize("rows", [EARLIER_ROWS, ROW_LINES], ids=["earlier", "now"])
@pytest.mark.parametrize(
    "results",
    [
        EARLIER_RESULTS,
        RESULT_LINES,
        lines(EARLIER_RESULTS)[0] + "\n" + lines(RESULT_LINES)[1] + "\n",
    ],
    ids=["earlier", "now", "both"],
)
def test_a_stored_list_is_read_in_every_form(rows: str, results: str) -> None:
    chunk = ListChunk(0, 2, rows, results)
    assert list(rows_of(chunk)) == ROWS
    assert results_in(results) == RESULTS
    assert passing_of(chunk) == {1: (BOB, "unknown")}
    assert addresses_of(chunk) == {}
    assert addresses_of(ListChunk(0, 2, rows, lines(results)[1] + "\n")) == {0: ANN}
    assert list(found_at(chunk, [1, 0])) == [(n, ROWS[n], RESULTS[n]) for n in (0, 1)]
    assert list(found_at(chunk, [1])) == [(1, ROWS[1], RESULTS[1])]


def test_a_lists_lines_have_names_and_cost_no_more_than_before() -> None:
    assert [json.loads(line) for line in lines(ROW_LINES)][::4] == [
        {"p": 0, "n": 0, "a": ANN, "c": ["Ann", ANN]},
        {"c": ["no address", "n/a"]},
    ]
    assert [line.startswith(BLANK) for line in lines(ROW_LINES)] == [False] * 3 + [True] * 2
    assert {type(json.loads(line)) for line in lines(RESULT_LINES)} == {dict}
    assert len(ROW_LINES + RESULT_LINES) < 1.5 * len(EARLIER_ROWS + EARLIER_RESULTS)


def test_a_field_that_this_version_lacks_or_does_not_know_changes_no_line() -> None:
    line = json.loads(lines(RESULT_LINES)[0])
    del line["latency_ms"], line["mx_host"]
    text = json.dumps({**line, "a_fifteenth": True}) + "\n"
    found = results_in(text)[0]
    assert (found.email, found.status, found.mx_host, found.latency_ms) == (
        *(ANN, "deliverable"),
        *(None, 0),
    )
    (row,) = rows_of(ListChunk(0, 1, '{"p":0,"n":0,"a":"a@b.test","c":["x"],"more":1}\n'))
    assert row == StoredRow(0, 0, "a@b.test", ["x"])


def test_every_field_of_a_result_is_kept_but_for_those_of_clean() -> None:
    verdict = msgspec.structs.replace(
        judge(ANN, Outcome.SMTP_BLOCKED, mx_found=True, mx_host="mx.shop.test", latency_ms=7),
        suggestion="shop.test",
        role=True,
        free_provider=True,
        catch_all=True,
    )
    answer = Answer(4, verdict, None, VerdictCause("smtp_blocked", "network"))
    assert results_in(encode_results([(4, answer)])) == {4: row_result(answer)}
    own = RowResult.__struct_fields__[-5:]
    assert own == ("attempts", "answered_at", "retry_at", "takes", "waits")


def test_a_row_keeps_its_further_addresses_and_is_not_blank_for_its_cells() -> None:
    rows = [
        StoredRow(0, 0, ANN, [f"{ANN}; {BOB}"], [FurtherAddress(0, 0, 1, BOB)]),
        StoredRow(None, None, None, ["", ANN], [FurtherAddress(1, 0, 0)]),
        StoredRow(None, None, None, ['"f":[{"i":0}]}']),
    ]
    text = "".join(map(encode_row, rows))
    assert blank_rows_in(text) == 1
    chunk = ListChunk(0, 2, text, RESULT_LINES)
    assert list(rows_of(chunk)) == rows
    assert list(found_at(chunk, [1])) == [(1, rows[0], RESULTS[1])]
    assert addresses_of(ListChunk(0, 2, text, "")) == {0: ANN, 1: BOB}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (
            "idempotent_answer.bin",
            Answered(201, (("Location", "/v1/x"),), b'{"key":"sk_live_1"}\n{}'),
        ),
        ("idempotent_answer_not_kept.bin", Answered(200, (("RateLimit", "x"),), None)),
    ],
)
def test_an_idempotent_answer_is_read_in_both_forms(name: str, answer: Answered) -> None:
    assert unpacked((EARLIER / name).read_bytes()) == answer
    assert unpacked(packed(answer)) == answer
    assert json.loads(packed(answer).partition(b"\n")[0])["status"] == answer.status


def test_a_move_that_an_earlier_version_began_goes_on() -> None:
    progress = MigrationProgress.unpacked((EARLIER / "migration_progress.json").read_bytes())
    assert progress == MigrationProgress(
        "/srv/mailprobe.db",
        [4096, 17],
        {"accounts": [3], "list_lines": [0, 1, 2, 0]},
        {"accounts": 3},
        None,
    )
    assert MigrationProgress.unpacked(progress.packed()) == progress
    assert json.loads(progress.packed())["path"] == "/srv/mailprobe.db"


def test_the_journal_of_an_earlier_run_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "list.journal"
    path.write_bytes((EARLIER / "clean_journal.bin").read_bytes())
    with open_journal(path, Header(2, 5120, "9f86"), resume=True) as journal:
        found = [result for _, result in journal.answers()]
        assert [(each.email, each.reason, each.answered_at) for each in found] == [
            (ANN, "accepted", 1750000000.0),
            (BOB, "timeout", 1750000000.0),
        ]
        assert (journal.damaged, journal.sent) == (0, [SentRequest("9b1c", ["carl@shop.test"])])
        assert journal.written == {(2049, 131, 5120, 1750000000000000000)}


class Exchange:
    """Keeps what is shared, and the listener."""

    def __init__(self) -> None:
        self.shared: list[Fact] = []
        self.listener: Listener = lambda _: False

    def share(self, fact: Fact) -> None:
        self.shared.append(fact)

    def listen(self, kinds: tuple[FactKind, ...], listener: Listener) -> None:
        self.listener = listener


@pytest.mark.parametrize("name", ["route", "no_mail"])
def test_a_route_is_understood_from_engines_of_both_forms(name: str) -> None:
    kept: list[Route | NoMail] = []

    def keep(domain: str, route: Route | NoMail, kept_s: float) -> bool:
        kept.append(route)
        return True

    exchange = Exchange()
    routes = SharedRoutes(exchange, ["https://r.test/dns-query"], keep)
    routes.found("probe.test", NoMail("x"), 60)
    asked = exchange.shared.pop().key.split()[0]
    assert exchange.listener(Fact("route", f"{asked} shop.test", FACTS[name], 60))
    routes.found("shop.test", kept[0], 60)
    assert json.loads(exchange.shared[-1].value).keys() <= {"exchanges", "no_mail"}
    assert exchange.listener(exchange.shared[-1])
    assert kept[0] == kept[1]


def test_a_back_off_is_understood_from_engines_of_both_forms() -> None:
    for value in (
        FACTS["backoff"],
        '{"outcome":"REFUSED_BY_POLICY","rule":"blocked.spamhaus","failures":2}',
    ):
        fact = Fact("backoff", "own name mx.shop.test", value, 60)
        assert resting_elsewhere([fact], "own") == [("mx.shop.test", "blocked.spamhaus", 60)]
