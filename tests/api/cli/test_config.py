"""`mailprobe config`: every setting with its source and without secrets, and each wrong one at once."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mailprobe.api.cli import main
from mailprobe.api.settings import GROUPS, TABLE

ROOT = Path(__file__).parents[3]
SECRETS = {
    "KEY": "sk_live_secret1",
    "WEBHOOK_SECRET": "a secret9",
    "STRIPE_KEY": "sk_secret2",
    "STRIPE_WEBHOOK_SECRET": "whsec_secret3",
    "SECRET_KEY": "c2VjcmV0NHNlY3JldDRzZWNyZXQ0c2VjcmV0NHNlY3I=",
    "DATABASE": "postgresql://ann:secret5@db/mailprobe",
    "SMTP_PROXIES": "socks5://ann:secret6@192.0.2.1:1080,socks5://bob:secret7@192.0.2.2:1080",
    "ALERT_SMTP_URL": "smtp://ann:secret8@relay.example:25",
}


def config(place: Path, *words: str, **environ: str) -> Result:
    variables = {f"MAILPROBE_{name}": text for name, text in environ.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.delenv("MAILPROBE_TEST_SEEDS", raising=False)  # of `make test`, and no setting
        return CliRunner().invoke(main, ["config", *words], env=variables)


def shown(result: Result) -> dict[str, tuple[str, str]]:
    lines = [line for line in result.stdout.splitlines() if not line.startswith("# ")]
    rows = [line.split("\t") for line in lines]
    return {name.removeprefix("MAILPROBE_"): (value, source) for name, value, source in rows}


def test_every_setting_is_shown_with_its_source(tmp_path: Path) -> None:
    (tmp_path / "mailprobe.toml").write_text(
        'smtp_port = 2525\ndoh_urls = ["https://192.0.2.1/q", "https://192.0.2.2/q"]\nlog = "debug"\nproduction = true\n'
    )
    result = config(tmp_path, "show", LOG="error")
    assert result.exit_code == 0, result.output
    rows = shown(result)
    assert list(rows) == [row.name for row in TABLE]
    assert rows["LOG"] == ("error", "environment")
    assert rows["SMTP_PORT"] == ("2525", "mailprobe.toml")
    assert rows["DOH_URLS"] == ("https://192.0.2.1/q,https://192.0.2.2/q", "mailprobe.toml")
    assert rows["PRODUCTION"] == ("1", "mailprobe.toml")
    assert rows["HOST_CONNECTIONS"] == ("4", "default")
    assert rows["STRIPE_KEY"] == ("", "default")


def test_settings_are_shown_in_groups_by_subject(tmp_path: Path) -> None:
    _, *groups = re.split(r"^# (.+)\n", config(tmp_path, "show").stdout, flags=re.MULTILINE)
    found = dict(zip(groups[::2], groups[1::2], strict=True))
    assert list(found) == [group.title for group in GROUPS]
    assert found["Database"].startswith("MAILPROBE_DATABASE\t")
    assert "MAILPROBE_SMTP_HELO\t" in found["Mail hosts"]


def test_settings_are_aligned_in_a_terminal(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    words = "from mailprobe.api.cli import main; main(['config', 'show'])"
    environ = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT),
        "MAILPROBE_LOG": "error", "MAILPROBE_TOOLS_BIND": "",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=tmp_path, env=environ, stdout=theirs, check=True
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # EIO: all is read
        while piece := os.read(ours, 65_536):
            shown += piece
    os.close(ours)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    assert done.returncode == 0
    assert "\t" not in shown.decode()
    assert lines[0] == "DNS"
    [of_log] = [line for line in lines if "MAILPROBE_LOG " in line]
    [of_port] = [line for line in lines if "MAILPROBE_SMTP_PORT " in line]
    assert of_log.split() == ["MAILPROBE_LOG", "error", "environment"]
    assert of_log.index("error") == of_port.index("25")
    assert of_log.index("environment") == of_port.index("default")
    settled = {line.split()[0]: line.split()[1:] for line in lines if "MAILPROBE_" in line}
    assert settled["MAILPROBE_LIST_ROWS_MAX"] == ["by", "tier", "default"]
    assert settled["MAILPROBE_STRIPE_KEY"] == ["none", "default"]
    assert settled["MAILPROBE_TOOLS_BIND"] == ["nothing", "environment"]


@pytest.mark.parametrize("by_file", [False, True])
def test_no_secret_is_shown(tmp_path: Path, by_file: bool) -> None:
    if by_file:
        rows = "".join(f"{name.lower()} = {text!r}\n" for name, text in SECRETS.items())
        (tmp_path / "mailprobe.toml").write_text(rows)
    result = config(tmp_path, "show", **({} if by_file else SECRETS))
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output.replace("SECRET", "")
    assert SECRETS["SECRET_KEY"] not in result.output
    assert "***" in shown(result)["DATABASE"][0]


def test_each_wrong_setting_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "mailprobe.toml").write_text('host_connections = "many"\n')
    for words in ("check", "show"):
        result = config(tmp_path, words, SMTP_PORT="0", KEY="two secret words")
        assert result.exit_code == 2
        lines = result.stderr.splitlines()
        assert [line.split()[1] for line in lines] == [
            "MAILPROBE_SMTP_PORT", "host_connections", "MAILPROBE_KEY"
        ]  # fmt: skip
        assert "secret" not in result.output


@pytest.mark.parametrize(
    ("toml", "environ", "words"),
    [
        ("smtp_port = ", {}, "is not TOML"),
        ("smtp_prot = 25", {}, "did you mean smtp_port?"),
        ("", {"CONFIG": "none.toml"}, "MAILPROBE_CONFIG names 'none.toml'"),
        ("", {"PLANS_FILE": "none.toml"}, "MAILPROBE_PLANS_FILE"),
        ("", {"LISTS_DIR": "none"}, "MAILPROBE_LISTS_DIR is 'none': the folder cannot be read"),
        ("", {"DISPOSABLE_HOSTS_URL": "https://x.example/"}, "needs MAILPROBE_LISTS_DIR"),
    ],
)
def test_config_check_finds_each_setting_that_serve_refuses(
    tmp_path: Path, toml: str, environ: dict[str, str], words: str
) -> None:
    (tmp_path / "mailprobe.toml").write_text(toml)
    result = config(tmp_path, "check", **environ)
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert words in line


def test_settings_that_can_be_used_and_a_misspelt_variable(tmp_path: Path) -> None:
    result = config(tmp_path, "check", SMTP_HELLO="probe.example.org")
    assert (result.exit_code, result.stdout) == (0, "every setting can be used\n")
    assert result.stderr == (
        "mailprobe: MAILPROBE_SMTP_HELLO is not a setting, and is ignored; "
        "did you mean MAILPROBE_SMTP_HELO?\n"
    )


def test_traces_that_are_wanted_and_cannot_be_are_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    for words in ("check", "show"):
        result = config(tmp_path, words)
        assert result.exit_code == 0
        assert "traces are off: OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'" in result.stderr
