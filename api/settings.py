"""The operator's settings: the environment and `mailprobe.toml`, read once and checked.

Only this module reads the environment. The environment overrides the file, the file
overrides the defaults. A setting is one row of `GROUPS`; `config show` and the manual page
have its groups. The first wrong value raises WrongSetting with one line for a person.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from msgspec import Struct

from mailprobe.engine.egress import ONE_EGRESS
from mailprobe.engine.own_lists import NO_OWN_LISTS
from mailprobe.engine.settings import DOH_URLS, EngineSettings

from . import setting_values as types
from .egress.file import read_egress_file
from .forms.proof_of_work import BITS_MAX
from .setting_values import (
    Bind,
    ValueType,
    host_name,
    one_of,
    read_one_of,
    read_time,
    read_whole,
    whole,
    word,
)
from .settings_files import Unreadable, read_toml

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
TRACES_PROTOCOL = "http/protobuf"  # OpenTelemetry's default
ALL_LAYERS = "1-5"
LAYERS = (ALL_LAYERS, "1-3,5")  # layer 4 is the only one that may be left out
LEVELS = ("debug", "info", "warning", "error", "critical")
EGRESS_FILE = ValueType(read_egress_file, "the path of a TOML file")
LAYERS_TYPE = ValueType(read_one_of(*LAYERS), "1-5, or 1-3,5 to ask no mail host")
PATIENCE = ValueType(read_time(PATIENCE_S_MAX), "a time of at most 24 h, such as 15m or 4h, or 0")
PROOF_BITS = ValueType(read_whole(0, BITS_MAX), f"a whole number, 0 (off) to {BITS_MAX}")


class WrongSetting(ValueError):
    """A wrong setting. The message is one line: its name, its value and what it takes."""


class Setting(Struct, frozen=True):
    """One row: the name without prefix, what it takes, and its default.

    `words` says the default where the value does not, as None does not.
    """

    name: str
    type: ValueType[object]
    default_value: object = None
    secret: bool = False  # a wrong value is not shown
    default_of: Callable[[], object] | None = None  # in place of `default_value`
    words: str = "none"

    @property
    def variable(self) -> str:
        return PREFIX + self.name

    @property
    def key(self) -> str:
        return self.name.lower()

    def default(self) -> object:
        return self.default_value if self.default_of is None else self.default_of()

    @property
    def shown_default(self) -> str:
        """The default for a page that is alike on every machine."""
        return (self.default_of is None and _plain_text(self.default_value)) or self.words


class SettingGroup(Struct, frozen=True):
    """The settings of one subject."""

    title: str
    rows: tuple[Setting, ...]


GROUPS: tuple[SettingGroup, ...] = (
    SettingGroup(
        "DNS",
        (
            Setting("DOH_URLS", types.DOH_URLS, DOH_URLS),
            Setting("DOH_CA_FILE", types.PEM_FILE, words="the system's authorities"),
        ),
    ),
    SettingGroup(
        "Mail hosts",
        (
            Setting("SMTP_PORT", types.PORT, 25),
            Setting("SMTP_HELO", types.HELO, default_of=host_name, words="this host's full name"),
            Setting("SMTP_MAIL_FROM", types.MAIL_FROM, "", words="empty"),
            Setting("SMTP_PROXIES", types.PROXIES, (), words="empty"),
            Setting("EGRESS_FILE", EGRESS_FILE, ONE_EGRESS),
            Setting("HOST_CONNECTIONS", whole(1, HOST_CONNECTIONS_MAX), 4),
            Setting("MAX_PROBES", whole(1, PROBES_MAX), 2000),
            Setting("LAYERS", LAYERS_TYPE, ALL_LAYERS),
            Setting("WHEN_BLIND", one_of("answer", "503"), "answer"),
            Setting("ALLOW_PRIVATE", types.YES_OR_NO, False),
        ),
    ),
    SettingGroup(
        "Lists of domains",
        (
            Setting("LISTS_DIR", types.LISTS_DIR, NO_OWN_LISTS),
            Setting("LISTS_URL", types.PACKAGE_SOURCE),
            Setting("LISTS_KEY", types.PUBLIC_KEYS, words="the product's"),
            Setting("DISPOSABLE_HOSTS_URL", types.LIST_URL),
        ),
    ),
    SettingGroup(
        "Lists of addresses",
        (
            Setting("PATIENCE", PATIENCE, words="four hours (4h) for list jobs, 15m for clean"),
            Setting("LIST_ROWS_MAX", whole(1, LIST_ROWS_MAX), words="by tier"),
            Setting("LIST_OCTETS_MAX", whole(1, LIST_OCTETS_MAX), LIST_OCTETS),
            Setting("LISTS_ACTIVE_MAX", whole(1, LISTS_ACTIVE_MAX), 10),
            Setting("LIST_CHUNKS", whole(LIST_CHUNKS_MIN, LIST_CHUNKS_MAX), 400),
            Setting("UPLOAD_DIR", types.WRITABLE_DIR, words="the system's for temporary files"),
        ),
    ),
    SettingGroup(
        "Where the service listens",
        (
            Setting("BIND", types.BIND, Bind("127.0.0.1", 8080)),
            Setting("TOOLS_BIND", types.BIND_OR_NONE, Bind("127.0.0.1", 8081)),
            Setting("METRICS_BIND", types.BIND_OR_NONE),
            Setting("BASE_URL", types.PUBLIC_URL, words="made from the bind"),
            Setting("TOOLS_URL", types.PUBLIC_URL, words="made from the bind"),
            Setting("DOCS_URL", types.PUBLIC_URL, words="made from the base"),
            Setting("DASHBOARD_URL", types.PUBLIC_URL, words="made from the base"),
            Setting("TRUSTED_PROXIES", types.NETWORKS, ()),
        ),
    ),
    SettingGroup(
        "Database",
        (
            Setting("DATABASE", types.DATABASE, "data/mailprobe.db"),
            Setting("DATABASE_READERS", whole(1, DATABASE_CONNECTIONS_MAX), 2),
            Setting("DATABASE_WRITERS", whole(1, DATABASE_CONNECTIONS_MAX), 2),
            Setting("COMMAND_SECONDS", whole(1, COMMAND_S_MAX, "a whole number of seconds"), 30),
            Setting(
                "SECRET_KEY", types.SECRET_KEY, secret=True, words="key file beside the database"
            ),
        ),
    ),
    SettingGroup(
        "Accounts",
        (
            Setting("PLANS_FILE", types.PATH, words="built in"),
            Setting("OPERATOR", types.ACCOUNTS, words="the first account"),
            Setting("PRODUCTION", types.YES_OR_NO, False),
        ),
    ),
    SettingGroup(
        "Pages and forms",
        (
            Setting("ABOUT_PROBES_FILE", types.PAGE_FILE, words="built in"),
            Setting("FORM_PROOF_BITS", PROOF_BITS, 0),
        ),
    ),
    SettingGroup(
        "Callbacks",
        (
            Setting("WEBHOOK_CA_FILE", types.PEM_FILE, words="the system's authorities"),
            Setting("WEBHOOK_RETRY_SECONDS", types.RETRY_WAITS, WEBHOOK_RETRY_S),
        ),
    ),
    SettingGroup(
        "Billing",
        (
            Setting("STRIPE_KEY", word("a secret key of Stripe's"), secret=True),
            Setting(
                "STRIPE_WEBHOOK_SECRET",
                word("the signing secret of a Stripe endpoint"),
                secret=True,
            ),
            Setting("STRIPE_API_BASE", types.PUBLIC_URL, words="Stripe's own"),
        ),
    ),
    SettingGroup(
        "Alerts and log",
        (
            Setting("ALERT_SMTP_URL", types.MAIL_URL, secret=True),
            Setting("ALERT_FROM", types.SENDER, words="mailprobe@ and this host's full name"),
            Setting("LOG", one_of(*LEVELS), "info"),
        ),
    ),
    SettingGroup(
        "Sign-in",
        (
            Setting("OIDC_ISSUER", types.ISSUER),
            Setting("OIDC_CLIENT_ID", word("the id that an OpenID provider gave its client")),
            Setting("OIDC_CLIENT_SECRET", word("the secret that belongs to it"), secret=True),
        ),
    ),
    SettingGroup(
        "Command line",
        (
            Setting("SERVER", types.PUBLIC_URL),
            Setting("KEY", word("an API key, such as sk_live_…"), secret=True),
            Setting("PROVISIONING_KEY", word("a provisioning key, such as sk_mgmt_…"), secret=True),
            Setting("WEBHOOK_SECRET", types.WEBHOOK_SECRET, secret=True),
        ),
    ),
)
OIDC = ("OIDC_ISSUER", "OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET")
TABLE: tuple[Setting, ...] = tuple(row for group in GROUPS for row in group.rows)


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
    lists_url: str | None  # a file, too; None: `lists update` is told one
    lists_key: tuple[bytes, ...] | None  # None: the product's own
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
    oidc_issuer: str | None  # these three: all or none
    oidc_client_id: str | None
    oidc_client_secret: str | None = field(repr=False)
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
        _check_all_or_none(value, OIDC)
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


def _check_all_or_none(value: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise WrongSetting if some of these are set, and some are not."""
    missing = [f"{PREFIX}{name}" for name in names if value[name] is None]
    if missing and len(missing) < len(names):
        there = next(f"{PREFIX}{name}" for name in names if value[name] is not None)
        raise WrongSetting(f"{there} is set without {' and '.join(missing)}: set all or none")


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


class SettingState(Struct, frozen=True):
    """A setting as it stands: its value in text without secrets, where it is from, what is wrong.

    `words` says the default to a person where `shown` is empty.
    """

    group: str
    variable: str
    words: str
    shown: str
    source: str
    error: str | None


def survey(environ: Mapping[str, str], directory: Path | None = None) -> list[SettingState]:
    """Every setting that `Settings.read` would read; wrong ones with their errors.

    Raises WrongSetting if there is no reading the file, or if it has an unknown name.
    """
    file_values = _read_file(environ.get(f"{PREFIX}CONFIG"), directory or Path())
    return [
        _state(group.title, row, environ, file_values) for group in GROUPS for row in group.rows
    ]


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
    """The variables with our prefix that are not settings: misspelt, or of another version."""
    known = {row.variable for row in TABLE} | {f"{PREFIX}CONFIG"}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def _state(
    group: str, row: Setting, environ: Mapping[str, str], file_values: "_FileValues"
) -> SettingState:
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
    shown = SECRET if secret else _one_line(without_password(text))
    return SettingState(group, row.variable, row.words, shown, source, error)


def _plain_text(value: object) -> str:
    """A value as one would write it into the environment; nothing where nothing is set."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if value in (None, NO_OWN_LISTS, ONE_EGRESS):
        return ""
    return str(int(value) if isinstance(value, bool) else value)


class _FileValues(Struct, frozen=True):
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
        return row.type.read(text)
    except ValueError as error:
        shown = SECRET if row.secret else text
        raise _wrong(name, shown, str(error) or f"it takes {row.type.takes}") from None


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
    raise _wrong(f"{row.key} in {file_values.path}", shown, f"it takes {row.type.takes}")


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
        raise WrongSetting(f"{path} has a name that is not a setting: {_one_line(name)}; {hint}")


def wrong_file(name: str, path: Path, error: Unreadable) -> WrongSetting:
    """The error for an unusable file that the setting `name` names."""
    takes = "it takes the path of a TOML file"
    return _wrong(f"{PREFIX}{name} (or {name.lower()})", str(path), f"the file {error}; {takes}")


def _wrong(name: str, text: str, why: str) -> WrongSetting:
    return WrongSetting(f"{name} is {_shown(text)}: {_one_line(without_password(why))}")


def _shown(text: str) -> str:
    """The value, quoted, cut, on one line, with its password hidden."""
    text = without_password(text)
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…")


def without_password(text: str) -> str:
    """Hide the secrets of URLs: a password before the host or in the query, or a token before the host."""
    # `user:password@host`, with or without a scheme; then one whose password has a comma.
    text = re.sub(r"(://|^|,)([^:@/\s,]*):(?!//)[^\s,]*@", r"\1\2:***@", text)
    text = re.sub(r"(://|^|,)([^:@/\s,]*):(?!//)(?:(?!://)\S)*?@(?![^@,/\s]*@)", r"\1\2:***@", text)
    text = re.sub(r"(https?://)[^:@/\s,]+@", r"\1***@", text)
    return re.sub(r"([?&](?:password|sslpassword|token|key|secret)=)[^&\s]*", r"\1***", text)


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
