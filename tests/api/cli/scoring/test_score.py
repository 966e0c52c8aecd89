"""How right a cleaned list was, by the bounces that came."""

import io
import json
import mailbox
import math
from email.message import EmailMessage, Message
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.bounces.kinds import KINDS, Kind, kind_of_reason
from mailprobe.api.cli import main
from mailprobe.api.cli.scoring.bounces import Bounces, key_of, read_bounces
from mailprobe.api.cli.scoring.output import notes
from mailprobe.api.cli.scoring.scores import CleanedRow, score, wilson
from mailprobe.api.listfile.opening import OutputFormat, open_list
from mailprobe.api.listfile.results import ResultColumns
from mailprobe.api.listfile.writer import open_writer
from mailprobe.api.reader import starting
from tests.api.fake_source import result_of
from tests.api.reader.test_reader_process import program_of

TEXTS: dict[str, Kind] = {
    "": "unknown",
    "smtp; 550 5.1.1 <x@shop.test>: Recipient address rejected: User unknown": "no_mailbox",
    "smtp; 550 Requested action not taken: mailbox unavailable": "no_mailbox",
    "smtp;552 5.2.2 Mailbox full": "temporary",
    "smtp; 452 4.2.2 The email account is over quota": "temporary",
    "smtp; 554 5.7.1 Message rejected due to spam content": "refused",
    "smtp; 550 5.7.1 Service unavailable; client host blocked using Spamhaus": "refused",
    "smtp; 451 4.7.1 Greylisting in action, please come back later": "temporary",
    "X-Postfix; delivery temporarily suspended 4.4.1": "temporary",
    "5.1.10": "no_mailbox",
    "5.7.26": "refused",
    "smtp;550 5.1.8 <news@news.test>: Sender address rejected: Domain not found": "refused",
    "smtp; 550 5.7.1 This user does not accept mail from your domain": "refused",
    "smtp; 556 5.1.10 This domain does not accept mail (nullMX)": "no_mailbox",
    "host mx.shop.test said:550 5.1.1 User unknown": "no_mailbox",
    "smtp; 550 Nope (in reply to end of DATA command)": "unknown",
    "Unsubscribed | 550 MB sent at 10:550 ": "unknown",
    "192.0.2.1 4.1.1.1": "unknown",
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_words_of_a_report_say_what_happened(text: str) -> None:
    assert (kind_of_reason(text) or "unknown") == TEXTS[text]


@given(text=st.text(max_size=300))
def test_any_words_are_read(text: str) -> None:
    assert kind_of_reason(text) in (*KINDS, None)


def report(address: str, diagnostic: str, action: str = "failed", status: str = "5.0.0") -> Message:
    """A delivery report as RFC 3464 has it."""
    whole = MIMEMultipart("report", report_type="delivery-status")
    whole["From"] = "MAILER-DAEMON@mx.test"
    whole["Subject"] = "Undelivered Mail Returned to Sender"
    whole.attach(MIMEText("This is the mail system."))
    blocks: list[Message | str] = [mta := Message(), recipient := Message()]
    mta["Reporting-MTA"] = "dns; mx.test"
    recipient["Final-Recipient"] = f"rfc822; {address}"
    recipient["Action"] = action
    recipient["Status"] = status
    recipient["Diagnostic-Code"] = diagnostic
    status_part = MIMEMultipart("x")
    status_part.set_type("message/delivery-status")
    status_part.set_payload(blocks)
    whole.attach(status_part)
    returned = EmailMessage()
    returned["To"] = "someone-else@shop.test"
    returned.set_content("our message")
    whole.attach(MIMEMessage(returned))
    return whole


def qmail_report(address: str) -> Message:
    message = EmailMessage()
    message["From"] = "MAILER-DAEMON@qmail.test"
    message["Subject"] = "failure notice"
    message.set_content(
        "Hi. This is the qmail-send program at qmail.test.\n"
        "I'm afraid I wasn't able to deliver your message to the following addresses.\n"
        "This is a permanent error; I've given up. Sorry it didn't work out.\n\n"
        f"<{address}>:\nSorry, no mailbox here by that name. (#5.1.1)\n\n"
        "--- Below this line is a copy of the message.\n\nReturn-Path: <x@y.test>\n"
    )
    return message


def holiday() -> Message:
    message = EmailMessage()
    message["From"] = "bob@shop.test"
    message["Subject"] = "Out of office"
    message.set_content("Back on Monday.\nFrom here on nothing is a report.\n")
    return message


def mbox(path: Path, *messages: Message) -> Path:
    box = mailbox.mbox(path)
    for message in messages:
        box.add(message)
    box.close()
    return path


def test_delivery_reports_are_read(tmp_path: Path) -> None:
    path = mbox(
        tmp_path / "bounces.mbox",
        report("gone@shop.test", "smtp; 550 5.1.1 User unknown"),
        report("FULL@shop.test", "smtp; 552 5.2.2 Mailbox full"),
        report("spam@shop.test", "smtp; 554 5.7.1 rejected as spam"),
        report("later@shop.test", "smtp; 451 4.7.1 try again", "delayed", "4.7.1"),
        qmail_report("old@shop.test"),
        holiday(),
        report("gone@shop.test", "smtp; 451 4.4.1 timed out", "delayed", "4.4.1"),
    )
    bounces = read_bounces(path)
    assert bounces.kinds == {
        "gone@shop.test": "no_mailbox",
        "full@shop.test": "temporary",
        "spam@shop.test": "refused",
        "later@shop.test": "temporary",
        "old@shop.test": "no_mailbox",
    }
    assert (bounces.unread, bounces.others) == (1, 1)


@pytest.mark.parametrize(
    "octets",
    [
        b"From x\n",
        b"From x\nContent-Type: multipart/report; boundary=\n\n--\n\xff\xfe\n",
        b"From x\nContent-Type: multipart/report; boundary=a\n\n--a\nContent-Type: message/delivery-status\n\n"
        b"Final-Recipient: rfc822;\nAction: failed\n\n--a--\n",
        b"From x\nContent-Type: message/delivery-status\n\nAction: failed\nFinal-Recipient: rfc822; \xff@x\n",
        b"From x\n" + b"Content-Type: multipart/mixed; boundary=a\n\n--a\n" * 200,
        b"From x\nSubject: =?utf-8?b?////?=\n\n" + b"<" * 100_000,
    ],
)
def test_a_damaged_report_is_counted_and_nothing_worse(tmp_path: Path, octets: bytes) -> None:
    path = tmp_path / "bounces.mbox"
    path.write_bytes(octets)
    bounces = read_bounces(path)
    assert bounces.unread == 1
    assert not bounces.kinds


def test_a_list_that_breaks_its_reader_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_readers: None
) -> None:
    """Lists are read by a process of their own here too, which has its bounds."""
    path = tmp_path / "bounces.csv"
    path.write_text("email,type\na@shop.test,Hard\n")
    assert read_bounces(path).kinds == {"a@shop.test": "no_mailbox"}
    monkeypatch.setattr(starting, "PROGRAM", program_of("os.abort()", "process"))
    for bounces in (path, mbox(tmp_path / "bounces.mbox", report("gone@shop.test", "550"))):
        done = CliRunner().invoke(main, ["score", str(path), str(bounces)])
        assert done.exit_code == 2
        assert "bounces.csv cannot be read" in done.output
        assert done.output.count("\n") == 1


def test_a_list_of_bounces_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bounces.csv"
    path.write_text(
        "created,email,type,description\n1,a@shop.test,Hard,550 5.1.1 no such user\n"
        "2,B@shop.test,Soft,mailbox full\n3,c@shop.test,,\n4,,,\n"
    )
    expected = {
        "a@shop.test": "no_mailbox",
        "b@shop.test": "temporary",
    }
    assert read_bounces(path).kinds == expected


def row_of(address: str, status: str = "deliverable", light: str = "GREEN_LIGHT") -> CleanedRow:
    return CleanedRow(address, status, "accepted", "google", light)


def test_verdicts_are_compared_with_outcomes() -> None:
    rows = [
        *(row_of(f"a{number}@liar.test") for number in range(10)),
        *(row_of(f"b{number}@shop.test", "catch_all", "YELLOW_LIGHT") for number in range(10)),
        row_of("A0@liar.test"),
        row_of("dropped@shop.test", "undeliverable", "RED_LIGHT"),
        row_of("kept@shop.test", "undeliverable", "RED_LIGHT"),
    ]
    kinds: dict[str, Kind] = {
        "a0@liar.test": "no_mailbox", "a1@liar.test": "no_mailbox", "a2@liar.test": "temporary",
        "b0@shop.test": "no_mailbox", "b1@shop.test": "refused", "dropped@shop.test": "no_mailbox",
        "stranger@x.test": "no_mailbox",
    }  # fmt: skip
    made = score(rows, kinds, frozenset({"GREEN_LIGHT", "YELLOW_LIGHT"}))
    assert (made.all.sent, made.all.gone) == (20, 3)
    statuses = made.groups["status"]
    assert (statuses["deliverable"].sent, statuses["deliverable"].gone) == (10, 2)
    assert statuses["catch_all"].bounced == {"no_mailbox": 1, "refused": 1}
    assert (made.not_sent, made.bounced_not_sent, made.foreign) == (2, 1, 1)
    assert [(name, group.gone) for name, group in made.worst_domains()] == [("liar.test", 2)]


def test_bounces_that_a_list_was_cleaned_with_do_not_show_that_mail_was_sent() -> None:
    known = CleanedRow("old@shop.test", "undeliverable", "bounced", "shop.test", "RED_LIGHT")
    rows = [row_of("a@shop.test"), known, row_of("b@shop.test", "undeliverable", "RED_LIGHT")]
    kinds: dict[str, Kind] = {"old@shop.test": "no_mailbox", "b@shop.test": "no_mailbox"}
    made = score(rows, kinds, frozenset({"GREEN_LIGHT"}))
    assert (made.not_sent, made.bounced_not_sent, made.bounced_before) == (2, 1, 1)
    noted = notes(made, Bounces(kinds))
    assert "1 of them bounced, so mail was sent to it after all" in noted
    assert any(note.startswith("1 bounce is older than the cleaned list") for note in noted)


def test_an_interval_is_wilsons() -> None:
    """The values of Newcombe (Statistics in Medicine 17, 1998, table I, method 3)."""
    for (hits, total), expected in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson(hits, total) == pytest.approx(expected, abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)


@given(total=st.integers(1, 10**6), share=st.floats(0, 1))
def test_an_interval_contains_the_share(total: int, share: float) -> None:
    hits = math.floor(share * total)
    low, high = wilson(hits, total)
    assert 0 <= low <= hits / total + 1e-12
    assert hits / total - 1e-12 <= high <= 1


def cleaned(path: Path, statuses: dict[str, str], kind: str) -> Path:
    """An output of `clean`."""
    source_path = path / "list.csv"
    source_path.write_text("name,email\n" + "".join(f"x,{address}\n" for address in statuses))
    file = io.BytesIO()
    manner = OutputFormat("xlsx" if kind == "xlsx" else "ndjson" if kind == "ndjson" else "csv")
    with open_list(source_path) as source:
        for _ in source.rows():
            pass
        with open_writer(file, manner, source, ResultColumns()) as write:
            for row in source.rows():
                status = statuses[row.address]
                valid = status == "deliverable"
                write(
                    row, msgspec.structs.replace(result_of(row.address), status=status, valid=valid)
                )
    output = path / f"list.verified.{kind}"
    output.write_bytes(file.getvalue())
    return output


STATUSES = {
    "ann@shop.test": "deliverable", "bob@shop.test": "deliverable", "cy@shop.test": "undeliverable",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "xlsx", "ndjson"])
def test_the_command_compares_a_cleaned_list_with_bounces(tmp_path: Path, kind: str) -> None:
    bounces = tmp_path / "bounces.csv"
    bounces.write_text("email,type\nbob@shop.test,hard\ncy@shop.test,hard\nx@y.test,hard\n")
    output = cleaned(tmp_path, STATUSES, kind)
    done = CliRunner().invoke(main, ["score", str(output), str(bounces), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["all"]["sent"] == 2
    assert found["status"]["deliverable"]["no_mailbox"] == 1
    assert found["domains"]["shop.test"]["no_mailbox"] == 1
    assert (found["not_sent"], found["bounced_not_sent"], found["not_in_list"]) == (1, 1, 1)
    done = CliRunner().invoke(main, ["score", str(output), str(bounces)])
    assert done.exit_code == 0
    assert "called status" in done.stdout
    assert "50.00%" in done.stdout
    assert "1 bounced address is not in the list" in done.stdout


def test_a_score_fits_on_one_screen_and_begins_with_the_result(tmp_path: Path) -> None:
    """With rows of every kind, every remark and many domains; --verbose has the rest."""
    rows = {
        f"user{number}@domain-with-a-long-name-{number % 40}.example.test": status
        for number, status in enumerate(
            ["deliverable"] * 200 + ["catch_all", "unknown", "undeliverable", "invalid"] * 20
        )
    }
    output = cleaned(tmp_path, rows, "csv")
    bounced = "".join(
        f"{address},{kind},{words}\n"
        for address, (kind, words) in zip(
            [*list(rows)[:150], "stranger@x.test"],
            [("hard", "550 5.1.1 no such user"), ("soft", "mailbox full"), ("sent", ""),
             ("bounce", "550 Nope"), ("soft", "554 5.7.1 rejected as spam")] * 31,
            strict=False,
        )
    )  # fmt: skip
    (tmp_path / "bounces.csv").write_text(f"email,type,description\n{bounced}")
    words = ["score", str(output), str(tmp_path / "bounces.csv"), "--sent", "green,yellow,red"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert " addresses that mail was sent to, " in " ".join(lines[:2])
    assert any("hosts accepted addresses that bounced at" in line for line in lines)
    assert "called reason" not in done.stdout
    whole = CliRunner().invoke(main, [*words, "--verbose"])
    assert whole.stdout.startswith(lines[0])
    for heading in ("called status", "called reason", "provider", "domain "):
        assert heading in whole.stdout
    assert "such as user" in whole.stdout


def test_a_list_without_kinds_of_bounces_is_warned_of_first(tmp_path: Path) -> None:
    output = cleaned(tmp_path, STATUSES, "csv")
    (tmp_path / "bounces.txt").write_text("bob@shop.test\ncy@shop.test\n")
    done = CliRunner().invoke(main, ["score", str(output), str(tmp_path / "bounces.txt")])
    assert done.exit_code == 0, done.output
    remarks = [line for line in done.stdout.splitlines() if line.startswith("- ")]
    assert remarks[0].startswith("- no row reports a bounce")


def test_unreadable_reports_are_unknown_and_other_mail_is_not_counted(tmp_path: Path) -> None:
    output = cleaned(tmp_path, STATUSES, "csv")
    folder = tmp_path / "bounces"
    folder.mkdir()
    mails = (report("ann@shop.test", "smtp; 554 Transaction failed"), holiday(),
             qmail_report("bob@shop.test"))  # fmt: skip
    for number, message in enumerate(mails):
        (folder / f"{number}.eml").write_bytes(message.as_bytes())
    (folder / "3.eml").write_text("From: MAILER-DAEMON@x.test\nSubject: failure notice\n\nSorry.\n")
    done = CliRunner().invoke(main, ["score", str(output), str(folder), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["all"]["unknown"], found["all"]["no_mailbox"]) == (1, 1)
    assert (found["unread_messages"], found["other_messages"]) == (1, 1)
    done = CliRunner().invoke(main, ["score", str(output), str(folder)])
    assert "1 bounce gives no reason that is understood" in done.stdout
    assert "1 message reports no bounce that could be read" in done.stdout
    assert "1 message is not a bounce" in done.stdout


def test_files_that_cannot_be_compared_are_rejected(tmp_path: Path) -> None:
    output = cleaned(tmp_path, STATUSES, "csv")
    bounces = tmp_path / "bounces.csv"
    bounces.write_text("email,type\nstranger@x.test,hard\n")
    for arguments, code, words in [
        ([str(output), str(bounces)], 1, "none of the bounced addresses is in the list"),
        ([str(tmp_path / "list.csv"), str(bounces)], 2, "it takes an output of mailprobe clean"),
        ([str(output), str(tmp_path / "missing")], 2, "cannot be read"),
        ([str(output), str(bounces), "--sent", "blue"], 2, "--sent takes green, yellow and red"),
        ([str(output), str(tmp_path)], 2, "cannot be read"),
    ]:
        done = CliRunner().invoke(main, ["score", *arguments])
        assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.output


def test_reports_change_the_case_of_an_address() -> None:
    assert key_of("Ann@Shop.test") == key_of("ann@shop.TEST")
    assert key_of("no address") == "no address"
