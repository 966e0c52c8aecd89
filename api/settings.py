"""The operator's settings: the environment and `mailprobe.toml`, read once and checked.

Only this module reads the environment. The environment overrides the file, the file
overrides the defaults. A setting is one row of `TABLE`. The first wrong value raises
WrongSetting with one line for a person.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from mailprobe.api.egress.file import read_egress_file
from mailprobe.api.forms.proof_of_work import BITS_MAX
from mailprobe.api.setting_values import (
    BIND_TAKES,
    RETRIES_MAX,
    SECRET_KEY_OCTETS,
    Bind,
    host_name,
    read_accounts,
    read_authority_file,
    read_bind,
    read_bind_or_none,
    read_database,
    read_doh_url,
    read_folder_or_none,
    read_helo,
    read_list_of,
    read_list_url,
    read_lists_dir,
    read_mail_from,
    read_mail_url,
    read_networks,
    read_one_of,
    read_page_file,
    read_proxy_url,
    read_public_url,
    read_retry_waits,
    read_secret_key,
    read_sender_or_none,
    read_time,
    read_webhook_secret,
    read_whole,
    read_word_or_none,
    read_yes_or_no,
)
from mailprobe.api.settings_files import Unreadable, read_toml
from mailprobe.engine.egress import ONE_EGRESS
from mailprobe.engine.own_lists import NO_OWN_LISTS
from mailprobe.engine.settings import DOH_URLS, EngineSettings

PREFIX = "MAILPROBE_"
FILE = "mailprobe.toml"
HOST_CONNECTIONS_MAX = 100  # no mail host accepts more from one address
PROBES_MAX = 100_000  # each is a socket and about 30 KiB: beyond it memory is the limit
LIST_ROWS_MAX = 20_000_000  # 200,000 chunks, and a message to the reader for each
LIST_OCTETS = 256 << 20
LIST_OCTETS_MAX = 16 << 30  # of an upload: several may be on the disk at a time
LISTS_ACTIVE_MAX = 1_000  # of an account: a claim reads a little of each running list
PATIENCE_S_MAX = 24 * 3600.0  # a mail host that takes a list only after a day is not worth it
LIST_CHUNKS_MIN = 20  # fewer leave no place for a second account
LIST_CHUNKS_MAX = 10_000  # each is extended every 4 s by a transaction
WEBHOOK_RETRY_S = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
DATABASE_CONNECTIONS_MAX = 32  # of a kind and process: PostgreSQL takes 100 in all by default
COMMAND_S_MAX = 3600
SHOWN_MAX = 200  # characters of a wrong value in its error: enough for a path
SECRET = "***"  # shown in place of a wrong secret
URL_TAKES = "an http:// or https:// address"
TRACES_PROTOCOL = "http/protobuf"  # OpenTelemetry's default
ALL_LAYERS = "1-5"
LAYERS = (ALL_LAYERS, "1-3,5")  # layer 4 is the only one that may be left out
LEVELS = ("debug", "info", "warning", "error", "critical")


class WrongSetting(ValueError):
    """A wrong setting. The message is one line: its name, its value and what it takes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: the name without prefix, its default, its reader, and what it takes.

    `read` raises ValueError for a wrong value. A message of that error replaces `takes`
    in the message of WrongSetting.
    """

    name: str
    default: Callable[[], object]
    read: Callable[[str], object]
    takes: str
    secret: bool = False  # a wrong value is not shown

    @property
    def variable(self) -> str:
        return PREFIX + self.name

    @property
    def key(self) -> str:
        return self.name.lower()


def _whole(
    name: str, default: int | None, least: int, most: int, takes: str = "a whole number"
) -> Setting:
    """The row of a number."""
    return Setting(name, lambda: default, read_whole(least, most), f"{takes}, {least} to {most}")


TABLE: tuple[Setting, ...] = (
    Setting(
        "DATABASE", lambda: "data/mailprobe.db", read_database, "a path or a postgresql:// URL"
    ),
    _whole("DATABASE_READERS", 2, 1, DATABASE_CONNECTIONS_MAX),
    _whole("DATABASE_WRITERS", 2, 1, DATABASE_CONNECTIONS_MAX),
    _whole("COMMAND_SECONDS", 30, 1, COMMAND_S_MAX, "a whole number of seconds"),
    Setting(
        "DOH_URLS",
        lambda: DOH_URLS,
        read_list_of(read_doh_url, empty=False),
        "comma-separated https:// addresses of DNS-over-HTTPS endpoints",
    ),
    Setting("DOH_CA_FILE", lambda: None, read_authority_file, "the path of a PEM file"),
    _whole("SMTP_PORT", 25, 1, 65535, "a port"),
    Setting("SMTP_HELO", host_name, read_helo, "a host name, in ASCII and without spaces"),
    Setting(
        "SMTP_MAIL_FROM",
        lambda: "",
        read_mail_from,
        "an address, in ASCII and without spaces, or nothing",
    ),
    Setting(
        "SMTP_PROXIES",
        lambda: (),
        read_list_of(read_proxy_url, empty=True),
        "comma-separated socks5://[user:pass@]host:port",
    ),
    Setting("EGRESS_FILE", lambda: ONE_EGRESS, read_egress_file, "the path of a TOML file"),
    _whole("HOST_CONNECTIONS", 4, 1, HOST_CONNECTIONS_MAX),
    _whole("MAX_PROBES", 2000, 1, PROBES_MAX),
    Setting(
        "LAYERS", lambda: ALL_LAYERS, read_one_of(*LAYERS), "1-5, or 1-3,5 to ask no mail host"
    ),
    Setting("LISTS_DIR", lambda: NO_OWN_LISTS, read_lists_dir, "the path of a folder"),
    _whole("LIST_ROWS_MAX", None, 1, LIST_ROWS_MAX),
    _whole("LIST_OCTETS_MAX", LIST_OCTETS, 1, LIST_OCTETS_MAX),
    _whole("LISTS_ACTIVE_MAX", 10, 1, LISTS_ACTIVE_MAX),
    _whole("LIST_CHUNKS", 400, LIST_CHUNKS_MIN, LIST_CHUNKS_MAX),
    Setting("UPLOAD_DIR", lambda: None, read_folder_or_none, "the path of a folder to write into"),
    Setting("DISPOSABLE_HOSTS_URL", lambda: None, read_list_url, "an https:// address"),
    Setting(
        "OPERATOR", lambda: None, read_accounts, "ids or e-mail addresses of accounts, with commas"
    ),
    Setting("PRODUCTION", lambda: False, read_yes_or_no, "0 or 1"),
    Setting("ALLOW_PRIVATE", lambda: False, read_yes_or_no, "0 or 1"),
    Setting("LOG", lambda: "info", read_one_of(*LEVELS), f"one of {', '.join(LEVELS)}"),
    Setting("BIND", lambda: Bind("127.0.0.1", 8080), read_bind, BIND_TAKES),
    Setting(
        "TOOLS_BIND",
        lambda: Bind("127.0.0.1", 8081),
        read_bind_or_none,
        f"{BIND_TAKES}, or nothing",
    ),
    Setting("BASE_URL", lambda: None, read_public_url, URL_TAKES),
    Setting("TOOLS_URL", lambda: None, read_public_url, URL_TAKES),
    Setting("DOCS_URL", lambda: None, read_public_url, URL_TAKES),
    Setting("DASHBOARD_URL", lambda: None, read_public_url, URL_TAKES),
    Setting(
        "SECRET_KEY",
        lambda: None,
        read_secret_key,
        f"{SECRET_KEY_OCTETS} octets in base64",
        secret=True,
    ),
    Setting("PLANS_FILE", lambda: None, lambda text: Path(text) if text else None, "a path"),
    Setting("ABOUT_PROBES_FILE", lambda: None, read_page_file, "the path of a Markdown file"),
    Setting(
        "TRUSTED_PROXIES",
        tuple,
        read_networks,
        "addresses or networks, such as 10.0.0.1 or 10.0.0.0/24, with commas",
    ),
    Setting(
        "FORM_PROOF_BITS",
        lambda: 0,
        read_whole(0, BITS_MAX),
        f"a whole number, 0 (off) to {BITS_MAX}",
    ),
    Setting(
        "PATIENCE",
        lambda: None,
        read_time(PATIENCE_S_MAX),
        "a time of at most 24 h, such as 15m or 4h, or 0",
    ),
    Setting("WHEN_BLIND", lambda: "answer", read_one_of("answer", "503"), "answer or 503"),
    Setting("METRICS_BIND", lambda: None, read_bind_or_none, f"{BIND_TAKES}, or nothing"),
    Setting("WEBHOOK_CA_FILE", lambda: None, read_authority_file, "the path of a PEM file"),
    Setting(
        "WEBHOOK_RETRY_SECONDS",
        lambda: WEBHOOK_RETRY_S,
        read_retry_waits,
        f"at most {RETRIES_MAX} whole numbers of seconds with commas between, or nothing",
    ),
    Setting("STRIPE_KEY", lambda: None, read_word_or_none, "a secret key of Stripe's", secret=True),
    Setting(
        "STRIPE_WEBHOOK_SECRET",
        lambda: None,
        read_word_or_none,
        "the signing secret of a Stripe endpoint",
        secret=True,
    ),
    Setting("STRIPE_API_BASE", lambda: None, read_public_url, URL_TAKES),
    Setting(
        "ALERT_SMTP_URL",
        lambda: None,
        read_mail_url,
        "smtp://[user:pass@]host:port, or smtps://",
        secret=True,
    ),
    Setting("ALERT_FROM", lambda: None, read_sender_or_none, "an e-mail address"),
    Setting("SERVER", lambda: None, read_public_url, URL_TAKES),
    Setting(
        "WEBHOOK_SECRET",
        lambda: None,
        read_webhook_secret,
        "the secret of callbacks, 8 to 256 characters",
        secret=True,
    ),
    Setting("KEY", lambda: None, read_word_or_none, "an API key, such as sk_live_…", secret=True),
    Setting(
        "PROVISIONING_KEY",
        lambda: None,
        read_word_or_none,
        "a provisioning key, such as sk_mgmt_…",
        secret=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, checked."""

    engine: EngineSettings
    database: str = field(repr=False)  # a URL may hold a password
    database_readers: int  # connections to PostgreSQL of each process
    database_writers: int
    command_s: int  # for each answer of the database to an operator's command
    # Ids or e-mail addresses in lower case; None: the first account.
    operators: tuple[str, ...] | None
    production: bool  # takes no test keys
    refuses_when_blind: bool  # with 503, while no mail host is reached
    # How long a list waits for what mail hosts take; None: 4 h for list jobs, 15 min for `clean`.
    patience_s: float | None
    list_rows_max: int | None  # None: by tier
    list_octets_max: int  # of an upload
    lists_active_max: int  # of an account
    list_chunks: int  # under way in a process
    upload_folder: Path | None  # None: the system's for temporary files
    disposable_hosts_url: str | None  # None: the list of hosts is not downloaded
    log: str
    bind: Bind
    tools_bind: Bind | None  # None: no tool server
    base_url: str | None  # these four: None is derived from the binds
    tools_url: str | None
    docs_url: str | None
    dashboard_url: str | None
    secret_key: bytes | None = field(repr=False)  # None: the file beside the database
    plans_file: Path | None  # None: the built-in plans
    about_probes: str | None = field(repr=False)  # Markdown; None: the built-in text
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]  # whose X-Forwarded-For is believed
    form_proof_bits: int  # zero bits of a form's proof of work; 0: none is needed
    metrics_bind: Bind | None
    traces_protocol: str | None  # None: traces are off
    webhook_ca_file: str | None  # None: the system's
    webhook_retry_s: tuple[int, ...]  # seconds before each retry of a callback
    stripe_key: str | None = field(repr=False)  # None: billing is local
    stripe_webhook_secret: str | None = field(repr=False)
    stripe_api_base: str | None  # None: Stripe's own
    alert_smtp_url: str | None = field(repr=False)  # None: alerts stay in the outbox
    alert_from: str | None
    server: str | None  # these two: what the command line uses without --server and --key
    key: str | None = field(repr=False)
    webhook_secret: str | None = field(repr=False)  # of the callbacks that `listen` receives
    provisioning_key: str | None = field(repr=False)  # of `mailprobe mcp`

    @classmethod
    def from_environment(cls) -> "Settings":
        """The settings of a program: those of its environment. See `read()`."""
        return cls.read(os.environ)

    @classmethod
    def read(cls, environ: Mapping[str, str], directory: Path | None = None) -> "Settings":
        """Read `environ`, and the file that it names or the one in `directory`.

        Raises WrongSetting. Unknown MAILPROBE_ names in the environment are ignored (they
        may belong to another version or program); in the file they are an error.
        """
        file_values = _read_file(environ.get(f"{PREFIX}CONFIG"), directory or Path())
        value = {row.name: _value(row, environ, file_values) for row in TABLE}
        if value["DISPOSABLE_HOSTS_URL"] and not value["LISTS_DIR"].folder:
            raise WrongSetting(
                "MAILPROBE_DISPOSABLE_HOSTS_URL needs MAILPROBE_LISTS_DIR, the folder of the download"
            )
        if value["SMTP_PROXIES"] and value["EGRESS_FILE"] is not ONE_EGRESS:
            raise WrongSetting(
                "MAILPROBE_SMTP_PROXIES and MAILPROBE_EGRESS_FILE are both set: write each proxy"
                " into the file, as the proxy of an egress"
            )
        of_their_names = {
            each.name: value[each.name.upper()]
            for each in fields(cls)
            if each.name.upper() in value
        }
        return cls(
            engine=_engine_settings(value),
            command_s=value["COMMAND_SECONDS"],
            operators=value["OPERATOR"],
            refuses_when_blind=value["WHEN_BLIND"] == "503",
            patience_s=value["PATIENCE"],
            upload_folder=value["UPLOAD_DIR"],
            about_probes=value["ABOUT_PROBES_FILE"],
            traces_protocol=traces_protocol(environ),
            webhook_retry_s=value["WEBHOOK_RETRY_SECONDS"],
            **of_their_names,
        )


def _engine_settings(value: Mapping[str, Any]) -> EngineSettings:
    return EngineSettings(
        doh_urls=value["DOH_URLS"],
        doh_ca_file=value["DOH_CA_FILE"],
        smtp_port=value["SMTP_PORT"],
        helo_name=value["SMTP_HELO"],
        mail_from=value["SMTP_MAIL_FROM"],
        proxies=value["SMTP_PROXIES"],
        egresses=value["EGRESS_FILE"],
        host_connections=value["HOST_CONNECTIONS"],
        probes_max=value["MAX_PROBES"],
        asks_hosts=value["LAYERS"] == ALL_LAYERS,
        own_lists=value["LISTS_DIR"],
        allow_private=value["ALLOW_PRIVATE"],
    )


@dataclass(frozen=True, slots=True)
class SettingState:
    """A setting as it stands: its value in text without secrets, where it is from, what is wrong."""

    variable: str
    shown: str
    source: str
    error: str | None


def survey(environ: Mapping[str, str], directory: Path | None = None) -> list[SettingState]:
    """Every setting that `Settings.read` would read; wrong ones with their errors.

    Raises WrongSetting if there is no reading the file, or if it has an unknown name.
    """
    file_values = _read_file(environ.get(f"{PREFIX}CONFIG"), directory or Path())
    return [_state(row, environ, file_values) for row in TABLE]


def traces_protocol(environ: Mapping[str, str]) -> str | None:
    """The protocol of traces by OpenTelemetry's own variables; None if they ask for no traces.

    OpenTelemetry reads those of its variables that are not here.
    """

    def value(*names: str) -> str:
        found = (environ.get(f"OTEL_{name}", "").strip() for name in names)
        return next(filter(None, found), "")

    exporters = {each.strip() for each in value("TRACES_EXPORTER").lower().split(",")}
    if value("SDK_DISABLED").lower() == "true" or not {"", "otlp"} & exporters:
        return None
    if not value("EXPORTER_OTLP_TRACES_ENDPOINT", "EXPORTER_OTLP_ENDPOINT"):
        return None
    stated = value("EXPORTER_OTLP_TRACES_PROTOCOL", "EXPORTER_OTLP_PROTOCOL")
    return stated.lower() or TRACES_PROTOCOL


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """The variables with our prefix that are no settings: misspelt, or of another version."""
    known = {row.variable for row in TABLE} | {f"{PREFIX}CONFIG"}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def _state(row: Setting, environ: Mapping[str, str], file_values: "_FileValues") -> SettingState:
    source, error = "default", None
    if row.variable in environ:
        source, text = "environment", environ[row.variable]
    elif row.key in file_values.values:
        source, text = str(file_values.path), _plain_text(file_values.values[row.key])
    else:
        text = _plain_text(row.default())
    try:
        _value(row, environ, file_values)
    except WrongSetting as wrong:
        error = str(wrong)
    secret = row.secret and text != ""
    return SettingState(
        row.variable, SECRET if secret else _one_line(_without_password(text)), source, error
    )


def _plain_text(value: object) -> str:
    """A value as one would write it into the environment; nothing where nothing is set."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if value in (None, NO_OWN_LISTS, ONE_EGRESS):
        return ""
    return str(int(value) if isinstance(value, bool) else value)


@dataclass(frozen=True, slots=True)
class _FileValues:
    """The values of the file by lower-case name, and its path for error messages."""

    path: Path
    values: Mapping[str, object]


def _value(row: Setting, environ: Mapping[str, str], file_values: _FileValues) -> Any:
    if row.variable in environ:
        name, text = row.variable, environ[row.variable]
    elif row.key in file_values.values:
        name, text = f"{row.key} in {file_values.path}", _as_text(row, file_values)
    else:
        return row.default()
    try:
        return row.read(text)
    except ValueError as error:
        shown = SECRET if row.secret else text
        raise _wrong(name, shown, str(error) or f"it takes {row.takes}") from None


def _as_text(row: Setting, file_values: _FileValues) -> str:
    """A value of the file, as text like in the environment."""
    value = file_values.values[row.key]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str | int):
        return str(value)
    shown = SECRET if row.secret else str(value)
    raise _wrong(f"{row.key} in {file_values.path}", shown, f"it takes {row.takes}")


def _read_file(named: str | None, directory: Path) -> _FileValues:
    path = Path(named) if named else directory / FILE
    try:
        values = read_toml(path)
    except Unreadable as error:
        if error.missing and not named:
            return _FileValues(path, {})
        subject = f"{PREFIX}CONFIG names {_shown(str(path))}, which" if named else str(path)
        takes = "; it takes the path of a TOML file" if named else ""
        raise WrongSetting(_one_line(f"{subject} {error}{takes}")) from None
    _check_names(path, values)
    return _FileValues(path, values)


def _check_names(path: Path, values: Mapping[str, object]) -> None:
    known = [row.key for row in TABLE]
    for name in values:
        if name in known:
            continue
        import difflib

        wanted = name.lower().removeprefix(PREFIX.lower())
        near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
        raise WrongSetting(f"{path} has a name that is no setting: {_one_line(name)}; {hint}")


def wrong_file(name: str, path: Path, error: Unreadable) -> WrongSetting:
    """The error for an unusable file that the setting `name` names."""
    takes = "it takes the path of a TOML file"
    return _wrong(f"{PREFIX}{name} (or {name.lower()})", str(path), f"the file {error}; {takes}")


def _wrong(name: str, text: str, why: str) -> WrongSetting:
    return WrongSetting(f"{name} is {_shown(text)}: {_one_line(_without_password(why))}")


def _shown(text: str) -> str:
    """The value, quoted, cut, on one line, with its password hidden."""
    text = _without_password(text)
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…")


def _without_password(text: str) -> str:
    """Hide the password of each `user:password@host`, with or without a scheme."""
    return re.sub(r"(://|^|,)([^:@/\s,]*):(?!//)[^\s,]*@", r"\1\2:***@", text)


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
