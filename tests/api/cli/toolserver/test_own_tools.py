"""The tools of an engine in this process, files among them."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import trio

from mailprobe.api.cli.source import NoteWait
from mailprobe.api.cli.toolserver import file_cleaning
from mailprobe.api.cli.toolserver.file_cleaning import in_arguments
from mailprobe.api.cli.toolserver.own_tools import CALLS, FILES, own_toolbox
from mailprobe.engine.verdict import FIELDS
from tests.api.cli.test_clean import LIST, names_in, rows_of, written
from tests.api.cli.toolserver.client import ToolClient, open_session
from tests.api.fake_source import FakeSource
from tests.api.service_fixture import PLACES


class Hanging(FakeSource):
    """A source that hangs, and says when."""

    def __init__(self, hang_after: int) -> None:
        super().__init__(hang_after)
        self.hangs = trio.Event()

    def report(self, line: str) -> None:
        if line == "ready":
            self.hangs.set()


@dataclass
class Opened:
    """What the session's tools opened as sources: the account, and whether hosts are asked."""

    source: FakeSource = field(default_factory=FakeSource)
    opened: list[tuple[str, bool]] = field(default_factory=list)

    def open(self, account: str, smtp: bool) -> Any:
        self.opened.append((account, smtp))
        return self.source


@asynccontextmanager
async def own_session(opened: Opened | None = None) -> AsyncIterator[ToolClient]:
    async with open_session(own_toolbox((opened or Opened()).open, PLACES)) as client:
        with trio.fail_after(30):
            yield client


async def test_addresses_are_verified(autojump_clock):
    opened = Opened()
    async with own_session(opened) as client:
        await client.request("tools/list")
        listed = {each["name"]: each for each in (await client.next())["result"]["tools"]}
        assert list(listed) == ["verify_email", "verify_batch", "clean_file"]
        assert list(listed["verify_email"]["inputSchema"]["properties"]) == [
            "email", "smtp", "evidence", "advice",
        ]  # fmt: skip
        for tool in listed.values():
            jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
            for known in tool["inputSchema"]["properties"].values():
                assert known["description"]
        one = await client.result("verify_email", {"email": "ann@shop.test"})
        assert tuple(one) == FIELDS
        jsonschema.validate(one, listed["verify_email"]["outputSchema"])
        one = await client.result("verify_email", {"email": "ann@shop.test", "evidence": True})
        assert one["evidence"]["rule"] == "no-such-mailbox.enhanced"
        one = await client.result("verify_email", {"email": "ann@shop.test", "advice": True})
        assert one["advice"].startswith("The mail host has this mailbox.")
        emails = ["nobody@shop.test", "ann@shop.test", "x"]
        some = await client.result("verify_batch", {"emails": emails, "smtp": False})
        assert [each["email"] for each in some["results"]] == emails
        jsonschema.validate(some, listed["verify_batch"]["outputSchema"])
        assert opened.opened == [*[(CALLS, True)] * 3, (CALLS, False)]
        assert "emails" in await client.failure("verify_batch", {"emails": []})
        assert "needs a service" in await client.failure("create_list", {"emails": emails})


async def test_a_file_is_cleaned_beside_it_and_never_changed(tmp_path: Path):
    path, opened = written(tmp_path / "list.csv"), Opened()
    async with own_session(opened) as client:
        done = await client.result("clean_file", {"path": str(path), "smtp": False})
        output = tmp_path / "list.verified.csv"
        assert done["output"] == str(output)
        assert (done["rows"], done["addresses"], done["verified"]) == (6, 4, 4)
        assert done["statuses"] == {"deliverable": 3, "undeliverable": 1, "invalid": 1}
        jsonschema.validate(done, file_cleaning.OUTPUT)
        assert len(rows_of(output)) == 6
        assert path.read_text() == LIST
        assert opened.opened == [(FILES, False)]

        output.write_text("mine")
        text = await client.failure("clean_file", {"path": str(path)})
        assert text == f"{output} exists; replace it with overwrite: true"
        assert output.read_text() == "mine"
        more = {"overwrite": True, "only": "green", "dedupe": True, "suggest": True}
        await client.result("clean_file", {"path": str(path), "column": "email", **more})
        assert [row["name"] for row in rows_of(output)] == ["Ann"]
        assert path.read_text() == LIST


async def test_a_result_that_would_be_the_file_itself_is_refused(tmp_path: Path):
    path = written(tmp_path / "list.csv")
    (tmp_path / "list.verified.csv").symlink_to(path)
    async with own_session() as client:
        text = await client.failure("clean_file", {"path": str(path), "overwrite": True})
    assert text.endswith("list.verified.csv is the list itself")
    assert path.read_text() == LIST


async def test_a_file_that_cannot_be_cleaned_says_why(tmp_path: Path):
    path = written(tmp_path / "list.csv", "name,phone\nAnn,1\n")
    async with own_session() as client:
        for arguments, words in (
            ({"path": str(tmp_path / "no.csv")}, "no.csv is not there; give the whole path"),
            ({"path": str(tmp_path)}, "is not a file; give the whole path"),
            ({"path": "\0"}, "is not there"),
            ({"path": "/dev/zero"}, "is not a file"),
            ({"path": str(path), "column": "mail"}, "column"),
            ({"path": str(path), "encoding": "x"}, "encoding"),
            ({"path": str(path), "only": "blue"}, "green, yellow"),
            ({"path": str(path), "recheck": 9}, "The field recheck must be at most 2."),
            ({}, "path"),
        ):
            text = await client.failure("clean_file", arguments)
            assert words in text, text
            assert "--" not in text
    assert names_in(tmp_path) == ["list.csv"]


def test_options_of_the_command_are_said_as_arguments():
    for said, reported in (
        ("a exists; replace it with --force, or name another output with -o",
         "a exists; replace it with overwrite: true"),
        ("continue with --resume, or skip them with --skip-lines 2",
         "continue with resume: true, or skip them with skip_lines 2"),
    ):  # fmt: skip
        assert in_arguments(said) == reported


async def test_a_cancelled_cleaning_keeps_its_answers_and_goes_on(tmp_path: Path):
    hanging = Hanging(hang_after=2)
    path, opened = written(tmp_path / "list.csv"), Opened(hanging)
    async with own_session(opened) as client:
        await client.call("clean_file", {"path": str(path)}, id_=7)
        await hanging.hangs.wait()
        await client.notify("notifications/cancelled", {"requestId": 7})
        text = await client.failure("clean_file", {"path": str(path)})
        assert "an unfinished run left 2 answers" in text
        assert "resume: true" in text
        opened.source = FakeSource()
        done = await client.result("clean_file", {"path": str(path), "resume": True})
        assert (done["rows"], done["verified"]) == (6, 2)
    assert names_in(tmp_path) == ["list.csv", "list.verified.csv"]


class Patient(FakeSource):
    """A source that may wait for mail hosts, and knows for how long."""

    patience_s: float | None = None

    def wait_up_to(self, left_s: Callable[[], float], note_wait: NoteWait) -> None:
        self.patience_s = left_s()


@pytest.mark.parametrize(("given", "patience_s"), [({}, 600.0), ({"patience_s": 7}, 7.0)])
async def test_a_call_says_how_long_a_file_waits_for_mail_hosts(
    tmp_path: Path, given: dict[str, int], patience_s: float
):
    """Without a word of the call it is the patience that the server was started with."""
    source = Patient()
    toolbox = own_toolbox(Opened(source).open, PLACES, patience_s=600.0)
    path = written(tmp_path / "list.csv")
    async with open_session(toolbox) as client:
        await client.result("clean_file", {"path": str(path), **given})
        assert source.patience_s == patience_s
        text = await client.failure("clean_file", {"path": str(path), "patience_s": 86_401})
        assert "patience_s" in text


async def test_a_cleaning_that_leaves_addresses_waiting_says_how_to_go_on(tmp_path: Path):
    path = written(tmp_path / "list.csv")
    async with own_session(Opened(FakeSource(retry_s=3600.0))) as client:
        done = await client.result("clean_file", {"path": str(path), "patience_s": 0})
    assert any(
        "wait at" in line and line.endswith("the same call with resume: true, patience_s: 14400")
        for line in done["advice"]
    ), done["advice"]


async def test_a_cleaning_tells_its_progress(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(file_cleaning, "PROGRESS_S", 0.01)
    path, opened = written(tmp_path / "list.csv"), Opened(FakeSource(hang_after=3))
    async with own_session(opened) as client:
        await client.call("clean_file", {"path": str(path)}, id_=7, token="t")
        reported = {"params": {"progress": 0}}
        while reported["params"]["progress"] < 3:
            reported = await client.next()
        assert reported["params"]["total"] == 4
        assert "deliverable" in json.dumps(reported["params"]["message"])
        await client.notify("notifications/cancelled", {"requestId": 7})


async def test_files_are_cleaned_one_at_a_time(tmp_path: Path):
    for name in ("a.csv", "b.csv"):
        written(tmp_path / name)
    opened = Opened()
    async with own_session(opened) as client:
        for name in ("a.csv", "b.csv"):
            await client.call("clean_file", {"path": str(tmp_path / name)}, id_=name)
        assert [(await client.next())["id"] for _ in range(2)] == ["a.csv", "b.csv"]


async def test_a_cleaning_that_ends_early_says_how_to_go_on(tmp_path: Path):
    path, opened = written(tmp_path / "list.csv"), Opened(FakeSource(fail_after=2))
    async with own_session(opened) as client:
        text = await client.failure("clean_file", {"path": str(path)})
    assert text == (
        "the service is gone; 2 of 4 addresses are answered and kept; continue with: "
        "the same call with resume: true"
    )
