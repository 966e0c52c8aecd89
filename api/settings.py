"""What the operator says: the environment and `mailprobe.toml`, read once, checked whole.

The only reader of the environment. The environment wins over the file; what
neither says keeps the default of the operator's contract. A setting is one row
of `TABLE`. The first wrong one ends the reading with one line for a person.
"""

import base64
import binascii
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mailprobe.api.settings_files import Unreadable, check_authorities, read_toml
from mailprobe.engine.settings import DOH_URLS, EngineSettings

PREFIX = "MAILPROBE_"
FILE = "mailprobe.toml"
HOSTS_FILE = Path("/etc/hosts")

HOST_NAME_OCTETS_MAX = 255  # RFC 5321 4.5.3.1.2
REVERSE_PATH_OCTETS_MAX = 254  # RFC 5321 4.5.3.1.3, less the angle brackets
HOST_CONNECTIONS_MAX = 100  # no exchange on earth welcomes more from one address
PROBES_MAX = 100_000  # each is a socket and about 30 KiB: beyond it memory is the limit
WEBHOOK_RETRY_S = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
RETRIES_MAX = 50
RETRY_S_MAX = 30 * 86400
SHOWN_MAX = 200  # characters of a wrong value that are repeated: a path is shown whole
SECRET = "***"  # in place of a wrong value that is a secret
SECRET_KEY_OCTETS = 32  # AES-256
BIND_TAKES = "an address and a port, such as 127.0.0.1:8080 or [::1]:8080"
URL_TAKES = "an http:// or https:// address"
LEVELS = ("debug", "info", "warning", "error", "critical")


class WrongSetting(ValueError):
    """A setting that cannot be used: one line that names it, its value and what it takes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: the name without prefix, its default, how it is read, what it takes.

    `read` raises ValueError for a value that will not do; a message of its own
    replaces `takes` in what the operator is told.
    """

    name: str
    default: Callable[[], Any]
    read: Callable[[str], Any]
    takes: str
    secret: bool = False  # a wrong value is not repeated

    @property
    def variable(self) -> str:
        return PREFIX + self.name

    @property
    def key(self) -> str:
        return self.name.lower()


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        text = text.strip()
        # int() would take "٢٥", "2_5" and "+25" too.
        if not (text.isascii() and text.isdigit() and low <= int(text[:12]) <= high):
            raise ValueError
        return int(text)

    return read


def _yes_or_no(text: str) -> bool:
    answers = {"0": False, "1": True, "false": False, "true": True}
    try:
        return answers[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError
        return text.strip().lower()

    return read


def _list_of(read_item: Callable[[str], str], *, empty: bool) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items and not empty:
            raise ValueError
        return tuple(map(read_item, items))

    return read


def _doh_url(url: str) -> str:
    from mailprobe.engine.dns.doh import check_doh_url  # brings a DNS and an HTTP library along

    return check_doh_url(url)


def _proxy_url(url: str) -> str:
    from mailprobe.engine.net.socks5 import check_proxy_url

    check_proxy_url(url)
    return url


def _authority_file(text: str) -> str | None:
    if not text:
        return None
    try:
        check_authorities(Path(text))
    except Unreadable as error:
        raise ValueError(f"the file {error}; it takes the path of a PEM file") from None
    return text


def _readable(text: str) -> bool:
    """May this stand in a line to a mail server?"""
    return text.isascii() and text.isprintable() and not set(text) & set(" <>")


def _helo(text: str) -> str:
    if not text or len(text) > HOST_NAME_OCTETS_MAX or not _readable(text):
        raise ValueError
    return text


def _mail_from(text: str) -> str:
    if text in ("", "<>"):
        return ""
    local, at, domain = text.rpartition("@")
    if not (local and at and domain and _readable(text) and len(text) <= REVERSE_PATH_OCTETS_MAX):
        raise ValueError
    return text


def _seconds(text: str) -> tuple[int, ...]:
    waits = tuple(_whole(0, RETRY_S_MAX)(each) for each in text.split(",") if each.strip())
    if len(waits) > RETRIES_MAX:
        raise ValueError
    return waits


def _word_or_none(text: str) -> str | None:
    if text and not _readable(text):
        raise ValueError
    return text or None


def _mail_url(text: str) -> str | None:
    from urllib.parse import urlsplit

    if not text:
        return None
    url = urlsplit(text)
    if url.scheme not in ("smtp", "smtps") or not url.hostname or url.path.strip("/"):
        raise ValueError
    if url.query or url.fragment or url.port == 0:
        raise ValueError
    return text


def _mail_from_or_none(text: str) -> str | None:
    from email.errors import MessageError
    from email.headerregistry import Address

    sender = _mail_from(text) or None
    try:
        if sender:
            Address(addr_spec=sender)  # what no header can hold cannot be sent
    except (MessageError, ValueError, IndexError):
        raise ValueError from None
    return sender


def _database(text: str) -> str:
    scheme, url, _ = text.partition("://")
    if not text.strip() or "\0" in text or (url and scheme not in ("postgresql", "postgres")):
        raise ValueError
    return text


def host_name() -> str:
    """This host's full name, without asking any resolver: the kernel's, or /etc/hosts'.

    socket.getfqdn() would ask the system's resolver, which may go to the network.
    """
    name = socket.gethostname().strip().rstrip(".")
    if "." not in name:
        name = next(_full_names(name), name)
    try:
        return _helo(name)
    except ValueError:
        return EngineSettings().helo_name


def _full_names(short: str) -> Iterator[str]:
    try:
        lines = HOSTS_FILE.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        names = line.partition("#")[0].split()[1:]
        if short and short in names:
            yield from (name for name in names if name.startswith(f"{short}."))


@dataclass(frozen=True, slots=True)
class Bind:
    """Where a server listens; port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """How this machine reaches it; one that listens everywhere is reached on loopback."""
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return f"http://{Bind(loopback.get(self.host, self.host), self.port)}"


def read_bind(text: str) -> Bind:
    """`127.0.0.1:8080`, `[::1]:8080`, `localhost:0`; raises ValueError."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9A-Za-z.-]+)):([0-9]{1,5})", text.strip())
    if not found or int(found[3]) > 65535:
        raise ValueError
    return Bind(found[1] or found[2], int(found[3]))


def _bind_or_none(text: str) -> Bind | None:
    return read_bind(text) if text.strip() else None


def _public_url(text: str) -> str | None:
    """An address that others follow, without the slash at its end; nothing: made from the binds."""
    text = text.strip().rstrip("/")
    if not text:
        return None
    plain = text.isascii() and text.isprintable() and not set(text) & set(' <>"{}')
    if not (plain and re.fullmatch(r"https?://[^/?#@]+(/[^?#]*)?", text)):
        raise ValueError
    return text


def _secret_key(text: str) -> bytes | None:
    if not text.strip():
        return None
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:  # whose words are no help to an operator
        raise ValueError from None
    if len(key) != SECRET_KEY_OCTETS:
        raise ValueError(f"it holds {len(key)} octets: it takes {SECRET_KEY_OCTETS} in base64")
    return key


TABLE: tuple[Setting, ...] = (
    Setting("DATABASE", lambda: "data/mailprobe.db", _database, "a path or a postgresql:// URL"),
    Setting(
        "DOH_URLS",
        lambda: DOH_URLS,
        _list_of(_doh_url, empty=False),
        "comma-separated https:// addresses of DNS-over-HTTPS endpoints",
    ),
    Setting("DOH_CA_FILE", lambda: None, _authority_file, "the path of a PEM file"),
    Setting("SMTP_PORT", lambda: 25, _whole(1, 65535), "a port, 1 to 65535"),
    Setting("SMTP_HELO", host_name, _helo, "a host name, in ASCII and without spaces"),
    Setting(
        "SMTP_MAIL_FROM",
        lambda: "",
        _mail_from,
        "an address, in ASCII and without spaces, or nothing",
    ),
    Setting(
        "SMTP_PROXIES",
        lambda: (),
        _list_of(_proxy_url, empty=True),
        "comma-separated socks5://[user:pass@]host:port",
    ),
    Setting(
        "HOST_CONNECTIONS",
        lambda: 4,
        _whole(1, HOST_CONNECTIONS_MAX),
        f"a whole number, 1 to {HOST_CONNECTIONS_MAX}",
    ),
    Setting(
        "MAX_PROBES",
        lambda: 2000,
        _whole(1, PROBES_MAX),
        f"a whole number, 1 to {PROBES_MAX}",
    ),
    Setting("ALLOW_PRIVATE", lambda: False, _yes_or_no, "0 or 1"),
    Setting("LOG", lambda: "info", _one_of(*LEVELS), f"one of {', '.join(LEVELS)}"),
    Setting("BIND", lambda: Bind("127.0.0.1", 8080), read_bind, BIND_TAKES),
    Setting(
        "TOOLS_BIND",
        lambda: Bind("127.0.0.1", 8081),
        _bind_or_none,
        f"{BIND_TAKES}, or nothing",
    ),
    Setting("BASE_URL", lambda: None, _public_url, URL_TAKES),
    Setting("TOOLS_URL", lambda: None, _public_url, URL_TAKES),
    Setting("DOCS_URL", lambda: None, _public_url, URL_TAKES),
    Setting("DASHBOARD_URL", lambda: None, _public_url, URL_TAKES),
    Setting(
        "SECRET_KEY",
        lambda: None,
        _secret_key,
        f"{SECRET_KEY_OCTETS} octets in base64",
        secret=True,
    ),
    Setting("PLANS_FILE", lambda: None, lambda text: Path(text) if text else None, "a path"),
    Setting("METRICS_BIND", lambda: None, _bind_or_none, f"{BIND_TAKES}, or nothing"),
    Setting("WEBHOOK_CA_FILE", lambda: None, _authority_file, "the path of a PEM file"),
    Setting(
        "WEBHOOK_RETRY_SECONDS",
        lambda: WEBHOOK_RETRY_S,
        _seconds,
        f"at most {RETRIES_MAX} whole numbers of seconds with commas between, or nothing",
    ),
    Setting("STRIPE_KEY", lambda: None, _word_or_none, "a secret key of Stripe's", secret=True),
    Setting(
        "STRIPE_WEBHOOK_SECRET",
        lambda: None,
        _word_or_none,
        "the signing secret of a Stripe endpoint",
        secret=True,
    ),
    Setting("STRIPE_API_BASE", lambda: None, _public_url, URL_TAKES),
    Setting(
        "ALERT_SMTP_URL",
        lambda: None,
        _mail_url,
        "smtp://[user:pass@]host:port, or smtps://",
        secret=True,
    ),
    Setting("ALERT_FROM", lambda: None, _mail_from_or_none, "an e-mail address"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the operator can say, checked."""

    engine: EngineSettings
    database: str = field(repr=False)  # a URL may hold a password
    log: str
    bind: Bind
    tools_bind: Bind | None  # None: no tool server
    base_url: str | None  # these four: None is made from the binds
    tools_url: str | None
    docs_url: str | None
    dashboard_url: str | None
    secret_key: bytes | None = field(repr=False)  # None: the file beside the database
    plans_file: Path | None  # None: the built-in plans
    metrics_bind: Bind | None
    webhook_ca_file: str | None  # None: the system's
    webhook_retry_s: tuple[int, ...]  # the waits before each retry of a callback
    stripe_key: str | None = field(repr=False)  # None: billing is local
    stripe_webhook_secret: str | None = field(repr=False)
    stripe_api_base: str | None  # None: Stripe's own
    alert_smtp_url: str | None = field(repr=False)  # None: alerts stay in the outbox
    alert_from: str | None

    @classmethod
    def read(cls, environ: Mapping[str, str], directory: Path | None = None) -> "Settings":
        """Read `environ`, and the file that it names or that lies in `directory`.

        Raises WrongSetting. A MAILPROBE_ name in the environment that is none of
        ours is let be (another version's, or another program's); in the file,
        which is ours alone, it is an error.
        """
        said = _read_file(environ.get(f"{PREFIX}CONFIG"), directory or Path())
        value = {row.name: _value(row, environ, said) for row in TABLE}
        return cls(
            engine=EngineSettings(
                doh_urls=value["DOH_URLS"],
                doh_ca_file=value["DOH_CA_FILE"],
                smtp_port=value["SMTP_PORT"],
                helo_name=value["SMTP_HELO"],
                mail_from=value["SMTP_MAIL_FROM"],
                proxies=value["SMTP_PROXIES"],
                host_connections=value["HOST_CONNECTIONS"],
                probes_max=value["MAX_PROBES"],
                allow_private=value["ALLOW_PRIVATE"],
            ),
            database=value["DATABASE"],
            log=value["LOG"],
            bind=value["BIND"],
            tools_bind=value["TOOLS_BIND"],
            base_url=value["BASE_URL"],
            tools_url=value["TOOLS_URL"],
            docs_url=value["DOCS_URL"],
            dashboard_url=value["DASHBOARD_URL"],
            secret_key=value["SECRET_KEY"],
            plans_file=value["PLANS_FILE"],
            metrics_bind=value["METRICS_BIND"],
            webhook_ca_file=value["WEBHOOK_CA_FILE"],
            webhook_retry_s=value["WEBHOOK_RETRY_SECONDS"],
            stripe_key=value["STRIPE_KEY"],
            stripe_webhook_secret=value["STRIPE_WEBHOOK_SECRET"],
            stripe_api_base=value["STRIPE_API_BASE"],
            alert_smtp_url=value["ALERT_SMTP_URL"],
            alert_from=value["ALERT_FROM"],
        )


@dataclass(frozen=True, slots=True)
class _Stated:
    """What the file says: names in lower case, and the path to blame."""

    path: Path
    values: Mapping[str, Any]


def _value(row: Setting, environ: Mapping[str, str], said: _Stated) -> Any:
    if row.variable in environ:
        name, text = row.variable, environ[row.variable]
    elif row.key in said.values:
        name, text = f"{row.key} in {said.path}", _as_text(row, said)
    else:
        return row.default()
    try:
        return row.read(text)
    except ValueError as error:
        shown = SECRET if row.secret else text
        raise _wrong(name, shown, str(error) or f"it takes {row.takes}") from None


def _as_text(row: Setting, said: _Stated) -> str:
    """A value of the file as the environment would have it."""
    value = said.values[row.key]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str | int):
        return str(value)
    shown = SECRET if row.secret else str(value)
    raise _wrong(f"{row.key} in {said.path}", shown, f"it takes {row.takes}")


def _read_file(named: str | None, directory: Path) -> _Stated:
    path = Path(named) if named else directory / FILE
    try:
        values = read_toml(path)
    except Unreadable as error:
        if error.missing and not named:
            return _Stated(path, {})
        whose = f"{PREFIX}CONFIG names {_shown(str(path))}, which" if named else str(path)
        takes = "; it takes the path of a TOML file" if named else ""
        raise WrongSetting(_one_line(f"{whose} {error}{takes}")) from None
    _check_names(path, values)
    return _Stated(path, values)


def _check_names(path: Path, values: Mapping[str, Any]) -> None:
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
    """The complaint about a file that the setting `name` names and that can't be used."""
    takes = "it takes the path of a TOML file"
    return _wrong(f"{PREFIX}{name} (or {name.lower()})", str(path), f"the file {error}; {takes}")


def _wrong(name: str, text: str, why: str) -> WrongSetting:
    return WrongSetting(f"{name} is {_shown(text)}: {_one_line(_covered(why))}")


def _shown(text: str) -> str:
    """The value, quoted, cut, on one line, any password in it covered."""
    text = _covered(text)
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…")


def _covered(text: str) -> str:
    """Hide the password of each `user:password@host`, with a scheme before it or without."""
    return re.sub(r"(://|^|,)([^:@/\s,]*):(?!//)[^\s,]*@", r"\1\2:***@", text)


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
