"""The file of egresses: what it says, and the one line that names each error in it."""

from datetime import date
from pathlib import Path

import pytest

from mailprobe.api.egress.file import read_egress_file
from mailprobe.api.settings import Settings, WrongSetting
from mailprobe.engine.egress import EGRESSES_MAX, ONE_EGRESS, DailyLimit, Egress
from tests.api.unreadable import unreadable_files

EXAMPLE = Path(__file__).parents[3] / "examples" / "egress.toml"
PASSWORD = "pass" + "word"


def written(folder: Path, text: str) -> str:
    path = folder / "egress.toml"
    path.write_text(text)
    return str(path)


def test_the_example_has_all_that_a_file_can_have() -> None:
    egresses = read_egress_file(str(EXAMPLE))
    first, second, third = egresses.rows
    assert first == Egress(
        "fra-1",
        source="192.0.2.10",
        helo_name="fra-1.probe.example.org",
        mail_from="verify@probe.example.org",
        weight=2,
    )
    assert second.daily[0] == DailyLimit(date(2026, 11, 1), 500)
    assert [second.limit_on(date(2026, 11, day)) for day in (7, 8, 14)] == [500, 1_000, 1_000]
    assert second.limit_on(date(2026, 10, 31)) is None
    assert not second.may_ask("microsoft")
    assert second.may_ask("google")
    assert third.proxy == f"socks5://user:{PASSWORD}@198.51.100.20:1080"
    assert third.limit_on(date(2026, 1, 1)) == 200_000
    assert PASSWORD not in repr(egresses)


def test_limits_hold_from_their_dates_whatever_their_order(tmp_path: Path) -> None:
    daily = 'addresses_a_day = { "2026-12-01" = 9, "2026-11-01" = 5 }'
    (row,) = read_egress_file(written(tmp_path, f'[[egress]]\nname = "a"\n{daily}')).rows
    assert [row.limit_on(date(2026, month, 2)) for month in (10, 11, 12)] == [None, 5, 9]


A = '[[egress]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "the file has no [[egress]]: it takes a table for each egress"),
        ("egress = 1", "the file has no [[egress]]: it takes a table for each egress"),
        ("egress = []", f"the file has 0 egresses; it takes 1 to {EGRESSES_MAX}"),
        (
            "\n".join(f'[[egress]]\nname = "e{n}"' for n in range(EGRESSES_MAX + 1)),
            f"the file has {EGRESSES_MAX + 1} egresses; it takes 1 to {EGRESSES_MAX}",
        ),
        (f"quarantine_shar = 1\n{A}", "the file has an unknown key 'quarantine_shar'; did you"),
        (f"quarantine_share = 1.1\n{A}", "quarantine_share is '1.1'; it takes a number above 0"),
        (f"quarantine_share = nan\n{A}", "quarantine_share is 'nan'; it takes a number above 0"),
        ("[[egress]]\nweight = 1", "egress 1 has no name; it takes 1 to 40 letters"),
        ('[[egress]]\nname = "a\\"} 1\\nx"', "egress 1: name is "),
        (f'[[egress]]\nname = "{"x" * 41}"', "egress 1: name is "),
        ('[[egress]]\nname = "-rf"', "egress 1: name is '-rf'; it takes 1 to 40 letters"),
        (A + A, "egress a: name: another egress has this name"),
        (f'{A}[[egress]]\nname = "A"', "egress A: name: another egress has this name"),
        (
            f'{A}[[egress]]\nname = "b"',
            "egress b: only one may have neither address nor proxy, as has egress",
        ),
        (
            f'{A}address = "2001:db8::1"\n[[egress]]\nname = "b"\naddress = "2001:DB8:0::1"',
            "egress b: address: it is also that of egress a",
        ),
        (f'{A}adress = "192.0.2.1"', "egress a has an unknown key 'adress'; did you mean address?"),
        (
            f'{A}address = "mail.example.org"',
            "egress a: address is 'mail.example.org'; it takes an",
        ),
        (f'{A}address = "0.0.0.0"', "egress a: address is '0.0.0.0'; it takes an IP address"),
        (f'{A}address = "fe80::1%eth0"', "egress a: address is 'fe80::1%eth0'; it takes an IP"),
        (f"{A}address = 3232235777", "egress a: address is '3232235777'; it takes an IP address"),
        (f'{A}proxy = "socks5://u:{PASSWORD}@host:1"', "egress a: proxy; it takes socks5://[user"),
        (f'{A}proxy = "http://{PASSWORD}"', "egress a: proxy; it takes socks5://[user"),
        (
            f'{A}address = "192.0.2.1"\nproxy = "socks5://192.0.2.1:1080"',
            "egress a: address and proxy; it takes one of the two",
        ),
        (f'{A}helo = "two words"', "egress a: helo is 'two words'; it takes a host name"),
        (f'{A}mail_from = "a@b> SIZE=1"', "egress a: mail_from is 'a@b> SIZE=1'; it takes an"),
        (f"{A}weight = 0", "egress a: weight is '0'; it takes a number above 0"),
        (f"{A}weight = -inf", "egress a: weight is '-inf'; it takes a number above 0"),
        (f"{A}weight = nan", "egress a: weight is 'nan'; it takes a number above 0"),
        (f"{A}weight = true", "egress a: weight is 'True'; it takes a number above 0"),
        (f"{A}addresses_a_day = -1", "egress a: addresses_a_day is '-1'; it takes 0 to"),
        (f"{A}addresses_a_day = {{}}", "egress a: addresses_a_day is a table; it takes 0 to"),
        (
            f'{A}addresses_a_day = {{ "2026-11-31" = 5 }}',
            "egress a: addresses_a_day is a table; '2026-11-31' is not a date, such as 2026-11-01",
        ),
        (f'{A}addresses_a_day = {{ "2026-W45-1" = 5 }}', "'2026-W45-1' is not a date"),
        (
            f'{A}only_operators = ["gogle"]',
            "egress a: only_operators is a list; 'gogle' is not an operator; did you mean google?",
        ),
        (
            f'{A}never_operators = "google"',
            "egress a: never_operators is 'google'; it takes a list",
        ),
        (
            f'{A}only_operators = ["google"]\nnever_operators = ["google"]',
            "egress a: google is in only_operators and in never_operators",
        ),
    ],
)
def test_each_error_is_one_line_with_its_egress_and_its_key(
    tmp_path: Path, text: str, line: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(WrongSetting) as wrong:
        Settings.read({"MAILPROBE_EGRESS_FILE": path}, tmp_path)
    message = str(wrong.value)
    assert message.startswith(f"MAILPROBE_EGRESS_FILE is {path!r}: ")
    assert line in message
    assert message.isprintable()
    assert PASSWORD not in message


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    for words, path in unreadable_files(tmp_path).items():
        with pytest.raises(ValueError, match=words):
            read_egress_file(str(path))


def test_proxies_stand_in_the_file_or_in_the_setting(tmp_path: Path) -> None:
    environ = {
        "MAILPROBE_EGRESS_FILE": str(EXAMPLE),
        "MAILPROBE_SMTP_PROXIES": "socks5://192.0.2.1:1080",
    }
    with pytest.raises(WrongSetting, match="are both set: write each proxy into the file"):
        Settings.read(environ, tmp_path)
    assert len(Settings.read(environ | {"MAILPROBE_SMTP_PROXIES": ""}).engine.egresses.rows) == 3
    assert Settings.read({}, tmp_path).engine.egresses is ONE_EGRESS
