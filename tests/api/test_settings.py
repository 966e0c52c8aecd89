"""The environment and mailprobe.toml: accepted settings, and the one-line error for others."""

import base64
import socket
from pathlib import Path

import pytest
import trustme

import mailprobe.api.setting_values
from mailprobe.api.setting_values import Bind
from mailprobe.api.settings import (
    TRACES_PROTOCOL,
    Settings,
    WrongSetting,
    traces_protocol,
    without_password,
)
from mailprobe.engine.settings import DOH_URLS, EngineSettings
from mailprobe.storage.contract import DEFAULT_FOLDER
from tests.api.unreadable import unreadable_files


def read(tmp_path: Path, toml: str | None = None, **environ: str) -> Settings:
    if toml is not None:
        (tmp_path / "mailprobe.toml").write_text(toml)
    return Settings.read({f"MAILPROBE_{k}": v for k, v in environ.items()}, tmp_path)


def test_nothing_said_gives_the_contracts_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert settings.database == "data/mailprobe.db"
    assert Path(settings.database).parent == DEFAULT_FOLDER
    assert settings.log == "info"
    engine = settings.engine
    assert engine.doh_urls == DOH_URLS
    assert (engine.smtp_port, engine.host_connections, engine.probes_max) == (25, 4, 2000)
    assert (engine.mail_from, engine.proxies, engine.allow_private) == ("", (), False)
    assert engine.doh_ca_file is None


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("DOH_URLS", "https://192.0.2.1/q, https://192.0.2.2/q", "doh_urls",
         ("https://192.0.2.1/q", "https://192.0.2.2/q")),
        ("SMTP_PORT", "2525", "smtp_port", 2525),
        ("SMTP_PORT", " 65535 ", "smtp_port", 65535),
        ("SMTP_HELO", "probe.example.org", "helo_name", "probe.example.org"),
        ("SMTP_HELO", "[192.0.2.1]", "helo_name", "[192.0.2.1]"),
        ("SMTP_MAIL_FROM", "probe@example.org", "mail_from", "probe@example.org"),
        ("SMTP_MAIL_FROM", "<>", "mail_from", ""),
        ("SMTP_PROXIES", "socks5://u:p@192.0.2.1:1080", "proxies",
         ("socks5://u:p@192.0.2.1:1080",)),
        ("SMTP_PROXIES", "", "proxies", ()),
        ("HOST_CONNECTIONS", "1", "host_connections", 1),
        ("MAX_PROBES", "50", "probes_max", 50),
        ("LAYERS", "1-3,5", "asks_hosts", False),
        ("LAYERS", "1-5", "asks_hosts", True),
        ("ALLOW_PRIVATE", "1", "allow_private", True),
        ("ALLOW_PRIVATE", "0", "allow_private", False),
        ("DOH_CA_FILE", "", "doh_ca_file", None),
    ],
)  # fmt: skip
def test_the_environment_is_taken(
    tmp_path: Path, name: str, text: str, field: str, value: object
) -> None:
    assert getattr(read(tmp_path, **{name: text}).engine, field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SMTP_PORT", ""),
        ("SMTP_PORT", "0"),
        ("SMTP_PORT", "65536"),
        ("SMTP_PORT", "-1"),
        ("SMTP_PORT", "smtp"),
        ("SMTP_PORT", "٢٥"),
        ("SMTP_PORT", "2_5"),
        ("SMTP_PORT", "9" * 5000),
        ("HOST_CONNECTIONS", "0"),
        ("MAX_PROBES", "1e3"),
        ("ALLOW_PRIVATE", "yes"),
        ("LAYERS", "1-4"),
        ("LOG", "loud"),
        ("TRUSTED_PROXIES", "nginx"),
        ("TRUSTED_PROXIES", "10.0.0.0/33"),
        ("FORM_PROOF_BITS", "21"),
        ("DATABASE", ""),
        ("DATABASE", "mysql://localhost/x"),
        ("DOH_URLS", ""),
        ("DOH_URLS", "https://192.0.2.1/q,gopher://192.0.2.1"),
        ("DOH_CA_FILE", "/nowhere/ca.pem"),
        ("SMTP_HELO", ""),
        ("SMTP_HELO", "two words"),
        ("SMTP_HELO", "a\r\nRCPT"),
        ("SMTP_HELO", "bücher.example"),
        ("SMTP_MAIL_FROM", "nobody"),
        ("SMTP_MAIL_FROM", "a@b> SIZE=1"),
        ("SMTP_PROXIES", "http://192.0.2.1:80"),
        ("ABOUT_PROBES_FILE", "/nowhere/about.md"),
        ("LISTS_DIR", "/nowhere/lists"),
        ("LIST_ROWS_MAX", "20000001"),
        ("LIST_OCTETS_MAX", "0"),
        ("LISTS_ACTIVE_MAX", "many"),
        ("DATABASE_READERS", "0"),
        ("DATABASE_WRITERS", "33"),
        ("COMMAND_SECONDS", "0.8"),
        ("LIST_CHUNKS", "19"),
        ("UPLOAD_DIR", "/nowhere/uploads"),
        ("DISPOSABLE_HOSTS_URL", "http://lists.example/hosts.txt"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_on_one_line(
    tmp_path: Path, name: str, text: str
) -> None:
    with pytest.raises(WrongSetting) as wrong:
        read(tmp_path, **{name: text})
    line = str(wrong.value)
    assert line.startswith(f"MAILPROBE_{name} is ")
    assert line.isprintable()
    assert repr(text)[1:9] in line
    assert len(line) < 300


def test_a_wrong_setting_says_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(WrongSetting) as wrong:
        read(tmp_path, SMTP_PORT="smtp")
    assert str(wrong.value) == "MAILPROBE_SMTP_PORT is 'smtp': it takes a port, 1 to 65535"


@pytest.mark.parametrize("name", ["SMTP_PROXIES", "ALERT_SMTP_URL"])
def test_the_form_of_an_address_with_a_password_is_not_hidden(tmp_path: Path, name: str) -> None:
    """It was shown as `[user:***@]`, like a password."""
    with pytest.raises(WrongSetting, match="with user:pass@ before the "):
        read(tmp_path, **{name: "relay"})


@pytest.mark.parametrize(
    "text",
    ["socks4://ann:s3cret@192.0.2.1:1", "ann:s3cret@192.0.2.1", "socks5://ann:s3cret@h:1,x:s3cret@y"],
)  # fmt: skip
def test_no_password_is_repeated_to_the_screen(tmp_path: Path, text: str) -> None:
    with pytest.raises(WrongSetting) as wrong:
        read(tmp_path, SMTP_PROXIES=text)
    assert "s3cret" not in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:s3,cret@h/d", "postgresql://ann:***@h/d"),
        ("postgresql://ann:s3/cr@et@h/d", "postgresql://ann:***@h/d"),
        ("postgresql://h/d?user=ann&password=s3cret", "postgresql://h/d?user=ann&password=***"),
        ("https://t0ken@h/x", "https://***@h/x"),
        ("socks5://h:1,socks5://ann:s3cret@h:2", "socks5://h:1,socks5://ann:***@h:2"),
        ("ftp://ann:s3cret@h bad", "ftp://ann:***@h bad"),
        ("https://ann:s3://cret@h/x", "https://ann:***@h/x"),
        ("https://h:443/x", "https://h:443/x"),
    ],
)
def test_secrets_of_addresses_are_hidden(text: str, shown: str) -> None:
    assert without_password(text) == shown


def test_the_authority_file_must_hold_a_certificate(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("hello")
    with pytest.raises(WrongSetting, match="no PEM certificate"):
        read(tmp_path, DOH_CA_FILE=str(pem))
    pem.write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(WrongSetting, match="no PEM certificate that can be used"):
        read(tmp_path, DOH_CA_FILE=str(pem))
    trustme.CA().cert_pem.write_to_path(pem)
    assert read(tmp_path, DOH_CA_FILE=str(pem)).engine.doh_ca_file == str(pem)


def test_the_page_about_probes_is_read_at_the_start(tmp_path: Path) -> None:
    page = tmp_path / "about.md"
    page.write_text("# Ours\n")
    assert read(tmp_path, ABOUT_PROBES_FILE=str(page)).about_probes == "# Ours\n"
    page.write_text("\n")
    assert read(tmp_path, ABOUT_PROBES_FILE=str(page)).about_probes is None
    for octets, said in ((b"\xff", "not in UTF-8"), (b"x" * 50_001, "more than 50,000")):
        page.write_bytes(octets)
        with pytest.raises(WrongSetting, match=said):
            read(tmp_path, ABOUT_PROBES_FILE=str(page))


@pytest.mark.parametrize(
    "said", ["No such file", "not a regular file", "Is a directory", "more than"]
)
@pytest.mark.parametrize("name", ["DOH_CA_FILE", "WEBHOOK_CA_FILE"])
def test_an_authority_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, said: str
) -> None:
    (path,) = (path for words, path in unreadable_files(tmp_path).items() if words.startswith(said))
    with pytest.raises(WrongSetting, match=f"^MAILPROBE_{name} is .*{said}.* PEM file$") as wrong:
        read(tmp_path, **{name: str(path)})
    assert str(path)[:40] in str(wrong.value)
    assert str(wrong.value).isprintable()


def test_a_named_file_that_cannot_be_read_is_named_with_its_setting(tmp_path: Path) -> None:
    for said, path in unreadable_files(tmp_path).items():
        with pytest.raises(WrongSetting, match=f"^MAILPROBE_CONFIG names .*{said}") as wrong:
            read(tmp_path, CONFIG=str(path))
        assert str(path)[:40] in str(wrong.value)
        assert str(wrong.value).endswith("it takes the path of a TOML file")
        assert str(wrong.value).isprintable()


def test_the_null_device_is_an_empty_file(tmp_path: Path) -> None:
    assert read(tmp_path, CONFIG="/dev/null") == read(tmp_path)


def test_a_file_of_settings_that_cannot_be_read_is_no_missing_one(tmp_path: Path) -> None:
    (tmp_path / "mailprobe.toml").mkdir()
    with pytest.raises(WrongSetting, match=r"mailprobe\.toml cannot be read: Is a directory"):
        Settings.read({}, tmp_path)


def test_the_file_gives_the_same_names_in_lower_case(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        'smtp_port = 2525\nallow_private = true\nlog = "debug"\n'
        'doh_urls = ["https://192.0.2.1/q", "https://192.0.2.2/q"]\n',
    )
    assert settings.engine.smtp_port == 2525
    assert settings.engine.allow_private is True
    assert settings.log == "debug"
    assert len(settings.engine.doh_urls) == 2


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, "smtp_port = 2525", SMTP_PORT="26").engine.smtp_port == 26


def test_a_file_can_be_named(tmp_path: Path) -> None:
    named = tmp_path / "other.toml"
    named.write_text("smtp_port = 27")
    assert read(tmp_path, "smtp_port = 28", CONFIG=str(named)).engine.smtp_port == 27


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("smtp_prot = 25", "smtp_prot; did you mean smtp_port?"),
        ("SMTP_PORT = 25", "SMTP_PORT; did you mean smtp_port?"),
        ("mailprobe_log = 'info'", "did you mean log?"),
        ("zzzzzzzz = 1", "it takes doh_urls, doh_ca_file"),
        ("smtp_port = 0", "smtp_port in "),
        ("smtp_port = 1.5", "'1.5': it takes a port"),
        ("[smtp_port]\nx = 1", "it takes a port"),
        ("smtp_port", "is not TOML"),
    ],
)
def test_a_wrong_file_gets_one_line_that_helps(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(WrongSetting) as wrong:
        read(tmp_path, toml)
    assert message in str(wrong.value)
    assert "mailprobe.toml" in str(wrong.value)
    assert str(wrong.value).isprintable()


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match=r"MAILPROBE_CONFIG names .* cannot be read"):
        read(tmp_path, CONFIG=str(tmp_path / "none.toml"))


def test_another_programs_variables_are_let_be(tmp_path: Path) -> None:
    assert read(tmp_path, FUTURE="x") == read(tmp_path)


def test_this_hosts_name_is_found_without_a_resolver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """getfqdn and similar calls use the system's resolver, which the service must not do."""

    def resolver(*_: object) -> None:
        raise AssertionError("the resolver was asked")

    for name in ("getfqdn", "gethostbyname", "gethostbyaddr", "getaddrinfo"):
        monkeypatch.setattr(socket, name, resolver)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 probe.example.org probe # us\n")
    monkeypatch.setattr(mailprobe.api.setting_values, "HOSTS_FILE", hosts)
    monkeypatch.setattr(socket, "gethostname", lambda: "probe")
    assert read(tmp_path).engine.helo_name == "probe.example.org"
    monkeypatch.setattr(socket, "gethostname", lambda: "mail.example.net")
    assert read(tmp_path).engine.helo_name == "mail.example.net"
    monkeypatch.setattr(socket, "gethostname", lambda: "no good\n")
    assert read(tmp_path).engine.helo_name == EngineSettings().helo_name


# The service's own settings


def test_the_services_defaults_are_the_contracts(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert (str(settings.bind), str(settings.tools_bind)) == ("127.0.0.1:8080", "127.0.0.1:8081")
    assert settings.metrics_bind is None
    assert {settings.base_url, settings.tools_url, settings.docs_url} == {None}
    assert (settings.dashboard_url, settings.secret_key, settings.plans_file) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("BIND", "0.0.0.0:80", "bind", Bind("0.0.0.0", 80)),
        ("BIND", "[::1]:0", "bind", Bind("::1", 0)),
        ("BIND", "localhost:8080", "bind", Bind("localhost", 8080)),
        ("TOOLS_BIND", "", "tools_bind", None),
        ("PRODUCTION", "1", "production", True),
        ("METRICS_BIND", "127.0.0.1:9100", "metrics_bind", Bind("127.0.0.1", 9100)),
        ("BASE_URL", "https://api.example.org/", "base_url", "https://api.example.org"),
        ("TOOLS_URL", "", "tools_url", None),
        ("DOCS_URL", "https://example.org/docs", "docs_url", "https://example.org/docs"),
        ("DASHBOARD_URL", "http://h:1", "dashboard_url", "http://h:1"),
        ("SECRET_KEY", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "secret_key",
         b"01234567890123456789012345678901"),
        ("SECRET_KEY", "", "secret_key", None),
        ("PLANS_FILE", "plans.toml", "plans_file", Path("plans.toml")),
    ],
)  # fmt: skip
def test_the_services_settings_are_taken(
    tmp_path: Path, name: str, text: str, field: str, value: object
) -> None:
    assert getattr(read(tmp_path, **{name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("BIND", ""),
        ("BIND", "8080"),
        ("BIND", ":8080"),
        ("BIND", "::1:8080"),
        ("BIND", "127.0.0.1:65536"),
        ("BIND", "127.0.0.1:٨٠"),
        ("BIND", "http://127.0.0.1:80"),
        ("TOOLS_BIND", "off"),
        ("PRODUCTION", "yes"),
        ("WEBHOOK_RETRY_SECONDS", "5,-1"),
        ("WEBHOOK_RETRY_SECONDS", "soon"),
        ("STRIPE_KEY", "sk test"),
        ("STRIPE_API_BASE", "ftp://127.0.0.1"),
        ("ALERT_FROM", "a..b@x.test"),
        ("ALERT_FROM", "nobody"),
        ("OIDC_ISSUER", "login.example.org"),
        ("OIDC_ISSUER", "http://login.example.org"),
        ("OIDC_ISSUER", "https://login.example.org/?realm=1"),
        ("OIDC_CLIENT_ID", "two words"),
        ("ALERT_SMTP_URL", "relay.test:25"),
        ("METRICS_BIND", "9100"),
        ("BASE_URL", "api.example.org"),
        ("BASE_URL", "https://"),
        ("BASE_URL", "https://user:pass@example.org"),
        ("DOCS_URL", "javascript:alert(1)"),
        ("DASHBOARD_URL", 'https://x/"{base_url}'),
    ],
)
def test_a_wrong_setting_of_the_service_is_named(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(WrongSetting, match=f"MAILPROBE_{name} is .* it takes "):
        read(tmp_path, **{name: text})


@pytest.mark.parametrize("user", ["me", "me@corp.test", "m,e"])
def test_a_relays_password_is_never_shown(tmp_path: Path, user: str) -> None:
    with pytest.raises(WrongSetting) as wrong:
        read(tmp_path, ALERT_SMTP_URL=f"smtp://{user}:hunter2@relay.test:99999")
    assert "hunter2" not in str(wrong.value)


@pytest.mark.parametrize("text", ["c2hvcnRzM2NyZXQ=", "s3cret!", "c2hvcnRzM2NyZXQ"])
def test_a_wrong_secret_key_is_not_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(WrongSetting, match="32") as wrong:
        read(tmp_path, SECRET_KEY=text)
    assert text not in str(wrong.value)
    with pytest.raises(WrongSetting) as wrong:
        read(tmp_path, f'secret_key = "{text}"')
    assert text not in str(wrong.value)


def test_the_secret_key_is_not_shown_with_the_settings(tmp_path: Path) -> None:
    key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
    assert "0123456789" not in repr(read(tmp_path, SECRET_KEY=key))


def test_a_server_that_listens_everywhere_is_reached_on_loopback() -> None:
    assert Bind("0.0.0.0", 80).url == "http://127.0.0.1:80"
    assert Bind("::", 80).url == "http://[::1]:80"


def test_a_bad_line_of_an_own_list_is_named_by_the_setting(tmp_path: Path) -> None:
    (tmp_path / "never_ask.txt").write_text("ann@shop.test\nann at shop\n")
    with pytest.raises(
        WrongSetting, match=r"LISTS_DIR is '.*': never_ask.txt, line 2: 'ann at shop'"
    ):
        read(tmp_path, LISTS_DIR=str(tmp_path))
    (tmp_path / "never_ask.txt").write_text("ann@shop.test\n")
    settings = read(tmp_path, toml=f'lists_dir = "{tmp_path}"')
    assert settings.engine.own_lists.never_ask.addresses == {"ann@shop.test"}
    assert settings.engine.own_lists.folder == tmp_path


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("https://lists.example/lists.tar.gz", "https://lists.example/lists.tar.gz"),
        ("lists.tar.gz", "lists.tar.gz"),
        ("", None),
    ],
)
def test_a_package_of_lists_is_a_url_or_a_file(
    tmp_path: Path, text: str, read_as: str | None
) -> None:
    assert read(tmp_path, LISTS_URL=text).lists_url == read_as
    with pytest.raises(WrongSetting, match="LISTS_URL is 'ftp://x': it takes an http"):
        read(tmp_path, LISTS_URL="ftp://x")


def test_the_keys_of_lists_are_public_keys_in_base64(tmp_path: Path) -> None:
    key = base64.b64encode(b"k" * 32).decode()
    assert read(tmp_path, LISTS_KEY=f"{key}, {key}").lists_key == (b"k" * 32, b"k" * 32)
    assert read(tmp_path).lists_key is None
    for wrong in ("no key", "c2hvcnQ="):
        with pytest.raises(WrongSetting, match=r"LISTS_KEY is '.*': it takes Ed25519 public keys"):
            read(tmp_path, LISTS_KEY=wrong)


def test_a_download_needs_a_folder(tmp_path: Path) -> None:
    url = "https://lists.example/hosts.txt"
    with pytest.raises(WrongSetting, match="DISPOSABLE_HOSTS_URL needs MAILPROBE_LISTS_DIR"):
        read(tmp_path, DISPOSABLE_HOSTS_URL=url)
    settings = read(tmp_path, DISPOSABLE_HOSTS_URL=url, LISTS_DIR=str(tmp_path))
    assert settings.disposable_hosts_url == url


@pytest.mark.parametrize(
    ("variables", "protocol"),
    [
        ({}, None),
        ({"EXPORTER_OTLP_ENDPOINT": ""}, None),
        ({"EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, TRACES_PROTOCOL),
        ({"EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, TRACES_PROTOCOL),
        ({"EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, None),
        ({"EXPORTER_OTLP_ENDPOINT": "http://c:4318", "SDK_DISABLED": " TRUE"}, None),
        ({"EXPORTER_OTLP_ENDPOINT": "http://c:4318", "SDK_DISABLED": "1"}, TRACES_PROTOCOL),
        ({"EXPORTER_OTLP_ENDPOINT": "http://c:4318", "TRACES_EXPORTER": "none"}, None),
        ({"EXPORTER_OTLP_ENDPOINT": "http://c:4318", "TRACES_EXPORTER": "otlp"}, TRACES_PROTOCOL),
        ({"EXPORTER_OTLP_ENDPOINT": "http://c:4317", "EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        ({"EXPORTER_OTLP_ENDPOINT": "http://c:4318", "EXPORTER_OTLP_PROTOCOL": "grpc",
          "EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, TRACES_PROTOCOL),
    ],
)  # fmt: skip
def test_traces_are_wanted_if_opentelemetrys_variables_say_where_to(
    variables: dict[str, str], protocol: str | None
) -> None:
    assert traces_protocol({f"OTEL_{k}": v for k, v in variables.items()}) == protocol


OIDC = {
    "OIDC_ISSUER": "https://login.example.org/",
    "OIDC_CLIENT_ID": "mailprobe",
    "OIDC_CLIENT_SECRET": "hunter2",
}


@pytest.mark.parametrize("absent", OIDC)
def test_sign_in_by_openid_connect_is_set_whole(tmp_path: Path, absent: str) -> None:
    some = {name: text for name, text in OIDC.items() if name != absent}
    with pytest.raises(WrongSetting, match=f"without MAILPROBE_{absent}: set all or none") as wrong:
        read(tmp_path, **some)
    assert "hunter2" not in str(wrong.value)


def test_an_issuer_is_kept_as_its_provider_writes_it(tmp_path: Path) -> None:
    settings = read(tmp_path, **OIDC)
    assert settings.oidc_issuer == "https://login.example.org/"
    assert "hunter2" not in repr(settings)
    here = read(tmp_path, **{**OIDC, "OIDC_ISSUER": "http://localhost:9998/"})
    assert here.oidc_issuer == "http://localhost:9998/"
