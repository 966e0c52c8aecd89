"""Reads the values of settings: text in, a typed value out.

Each reader takes a setting's text and raises ValueError for a value it refuses. The types at
the end are a reader each, with the words for what it takes; options and files use them, too.
"""

import base64
import binascii
import os
import re
import socket
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from mailprobe.engine.own_lists import NO_OWN_LISTS, OwnLists
from mailprobe.engine.settings import EngineSettings

from .settings_files import Unreadable, check_authorities, read_text

HOSTS_FILE = Path("/etc/hosts")

HOST_NAME_OCTETS_MAX = 255  # RFC 5321 4.5.3.1.2
REVERSE_PATH_OCTETS_MAX = 254  # RFC 5321 4.5.3.1.3, less the angle brackets
PAGE_CHARACTERS_MAX = 50_000  # as HTML it is made in 50 ms, for which requests wait once
RETRIES_MAX = 50
RETRY_S_MAX = 30 * 86400
SECRET_KEY_OCTETS = 32  # AES-256
PUBLIC_KEY_OCTETS = 32  # Ed25519
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PORT_MAX = 65535
URL_TAKES = "an http:// or https:// address"
T = TypeVar("T", covariant=True)


def read_whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        text = text.strip()
        # int() would take "٢٥", "2_5" and "+25" too.
        if not (text.isascii() and text.isdigit() and low <= int(text[:12]) <= high):
            raise ValueError
        return int(text)

    return read


def read_seconds(time: str) -> float | None:
    """A time such as `30s`, `5m`, `1h` or `2d`, or `0`, in seconds; None if the text is not one."""
    if time == "0":
        return 0.0
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhd])", time)
    return float(found[1]) * SECONDS[found[2]] if found else None


def read_time(seconds_max: float) -> Callable[[str], float]:
    """A time such as 15m, in seconds."""

    def read(text: str) -> float:
        seconds = read_seconds(text.strip())
        if seconds is None or seconds > seconds_max:
            raise ValueError
        return seconds

    return read


def read_yes_or_no(text: str) -> bool:
    answers = {"0": False, "1": True, "false": False, "true": True}
    try:
        return answers[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def read_one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError
        return text.strip().lower()

    return read


def read_list_of(
    read_item: Callable[[str], str], *, empty: bool
) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items and not empty:
            raise ValueError
        return tuple(map(read_item, items))

    return read


def optional(read_filled: Callable[[str], T], *, trims: bool = False) -> Callable[[str], T | None]:
    """Read a text, or None of an empty one. `trims`: white space around it does not count."""

    def read(text: str) -> T | None:
        text = text.strip() if trims else text
        return read_filled(text) if text else None

    return read


def read_doh_url(url: str) -> str:
    from mailprobe.engine.dns.doh import check_doh_url  # imports a DNS and an HTTP library

    return check_doh_url(url)


def read_proxy_url(url: str) -> str:
    from mailprobe.engine.net.socks5 import check_proxy_url

    check_proxy_url(url)
    return url


def read_lists_dir(text: str) -> OwnLists:
    """The own lists of the folder that is named."""
    if not text:
        return NO_OWN_LISTS
    from mailprobe.engine.lists.own_list_files import WrongList, read_own_lists

    try:
        return read_own_lists(text)
    except WrongList as error:
        raise ValueError(str(error)) from None


def read_folder(text: str) -> Path:
    """Return a folder in which files can be made."""
    folder = Path(text)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError
    return folder


def read_package_source(text: str) -> str | None:
    """Return the URL or the file of a data package. It is signed, so plain http will do."""
    from urllib.parse import urlsplit

    source = text.strip()
    if "://" in source:
        url = urlsplit(source)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError
    return source or None


def read_public_keys(text: str) -> tuple[bytes, ...] | None:
    """Return Ed25519 public keys, each 32 octets in base64."""
    try:
        keys = tuple(
            base64.b64decode(each, validate=True) for each in text.replace(",", " ").split()
        )
    except binascii.Error:
        raise ValueError from None
    if any(len(key) != PUBLIC_KEY_OCTETS for key in keys):
        raise ValueError
    return keys or None


def read_list_url(text: str) -> str:
    """Return a URL whose content cannot be changed on the way: https, or of this machine."""
    from urllib.parse import urlsplit

    url = urlsplit(text)
    is_here = url.hostname in ("127.0.0.1", "::1", "localhost")
    if not (url.scheme == "https" or (url.scheme == "http" and is_here)) or not url.hostname:
        raise ValueError
    if url.username is not None or not _fits_smtp_line(text):
        raise ValueError
    return text


def read_authority_file(text: str) -> str:
    try:
        check_authorities(Path(text))
    except Unreadable as error:
        raise ValueError(f"the file {error}; it takes the path of a PEM file") from None
    return text


def read_page_file(text: str) -> str | None:
    """Return the Markdown of the file that is named; None without a word in it."""
    try:
        markdown = read_text(Path(text))
    except Unreadable as error:
        raise ValueError(f"the file {error}; it takes the path of a Markdown file") from None
    if len(markdown) > PAGE_CHARACTERS_MAX:
        raise ValueError(f"the file has more than {PAGE_CHARACTERS_MAX:,} characters")
    return markdown if markdown.strip() else None


def _fits_smtp_line(text: str) -> bool:
    """Whether the text may appear in a line to a mail server."""
    return text.isascii() and text.isprintable() and not set(text) & set(" <>")


def read_helo(text: str) -> str:
    if not text or len(text) > HOST_NAME_OCTETS_MAX or not _fits_smtp_line(text):
        raise ValueError
    return text


def read_mail_from(text: str) -> str:
    if text in ("", "<>"):
        return ""
    local, at, domain = text.rpartition("@")
    if not (
        local and at and domain and _fits_smtp_line(text) and len(text) <= REVERSE_PATH_OCTETS_MAX
    ):
        raise ValueError
    return text


def read_retry_waits(text: str) -> tuple[int, ...]:
    waits = tuple(read_whole(0, RETRY_S_MAX)(each) for each in text.split(",") if each.strip())
    if len(waits) > RETRIES_MAX:
        raise ValueError
    return waits


def read_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Addresses and networks, separated by commas."""
    networks = [each.strip() for each in text.split(",") if each.strip()]
    try:
        return tuple(ip_network(each, strict=False) for each in networks)
    except ValueError:  # its message does not name what a setting takes
        raise ValueError from None


def read_accounts(text: str) -> tuple[str, ...]:
    """Ids or e-mail addresses, separated by commas -> in lower case."""
    return tuple(each.strip().lower() for each in text.split(",") if each.strip())


def read_word_or_none(text: str) -> str | None:
    if text and not _fits_smtp_line(text):
        raise ValueError
    return text or None


def read_webhook_secret(text: str) -> str | None:
    if text and not 8 <= len(text) <= 256:  # as a request's webhook_secret
        raise ValueError
    return text or None


def read_mail_url(text: str) -> str:
    from urllib.parse import urlsplit

    url = urlsplit(text)
    if url.scheme not in ("smtp", "smtps") or not url.hostname or url.path.strip("/"):
        raise ValueError
    if url.query or url.fragment or url.port == 0:
        raise ValueError
    return text


def read_sender_or_none(text: str) -> str | None:
    from email.errors import MessageError
    from email.headerregistry import Address

    sender = read_mail_from(text) or None
    try:
        if sender:
            Address(addr_spec=sender)  # raises for what a header cannot hold
    except (MessageError, ValueError, IndexError):
        raise ValueError from None
    return sender


def read_database(text: str) -> str:
    scheme, url, _ = text.partition("://")
    if not text.strip() or "\0" in text or (url and scheme not in ("postgresql", "postgres")):
        raise ValueError
    return text


def host_name() -> str:
    """This host's full name, from the kernel or /etc/hosts.

    socket.getfqdn() would query the system's resolver, which may use the network.
    """
    name = socket.gethostname().strip().rstrip(".")
    if "." not in name:
        name = next(_full_names(name), name)
    try:
        return read_helo(name)
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


class Bind(Struct, frozen=True):
    """The address and port of a listener; port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> "Bind":
        """Where this machine reaches it; a wildcard address becomes loopback."""
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return Bind(loopback.get(self.host, self.host), self.port)

    @property
    def url(self) -> str:
        """Its URL from this machine; a wildcard address becomes loopback."""
        return f"http://{self.loopback}"


def read_bind(text: str) -> Bind:
    """Parse `127.0.0.1:8080`, `[::1]:8080` or `localhost:0`. Raises ValueError."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9A-Za-z.-]+)):([0-9]{1,5})", text.strip())
    if not found or int(found[3]) > PORT_MAX:
        raise ValueError
    return Bind(found[1] or found[2], int(found[3]))


def read_public_url(text: str) -> str | None:
    """A public URL without a trailing slash; None, if empty, derives it from the binds."""
    text = text.strip().rstrip("/")
    if not text:
        return None
    plain = text.isascii() and text.isprintable() and not set(text) & set(' <>"{}')
    if not (plain and re.fullmatch(r"https?://[^/?#@]+(/[^?#]*)?", text)):
        raise ValueError
    return text


def read_issuer(text: str) -> str:
    """An issuer, exactly as its provider writes it; plain http on this machine alone."""
    from urllib.parse import urlsplit

    url = urlsplit(text)
    is_here = url.hostname in ("localhost", "127.0.0.1", "::1")
    if url.scheme not in (("https", "http") if is_here else ("https",)) or not url.hostname:
        raise ValueError
    if url.username or url.query or url.fragment or not (text.isascii() and text.isprintable()):
        raise ValueError
    return text


def read_secret_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:  # its message does not help an operator
        raise ValueError from None
    if len(key) != SECRET_KEY_OCTETS:
        raise ValueError(f"it holds {len(key)} octets: it takes {SECRET_KEY_OCTETS} in base64")
    return key


# -- the types --------------------------------------------------------------------------------


class ValueType(Struct, Generic[T], frozen=True):
    """What texts stand for a value: `takes` says it after "it takes".

    `read` raises ValueError for another text. A message of that error replaces `takes`.
    """

    read: Callable[[str], T]
    takes: str


def whole(least: int, most: int, what: str = "a whole number") -> ValueType[int]:
    return ValueType(read_whole(least, most), f"{what}, {least} to {most}")


def one_of(*words: str) -> ValueType[str]:
    takes = " or ".join(words) if len(words) == 2 else f"one of {', '.join(words)}"
    return ValueType(read_one_of(*words), takes)


def words_with_commas(
    read_item: Callable[[str], str], items: str, *, empty: bool
) -> ValueType[tuple[str, ...]]:
    return ValueType(read_list_of(read_item, empty=empty), f"comma-separated {items}")


YES_OR_NO = ValueType(read_yes_or_no, "0 or 1")
BIND = ValueType(read_bind, "an address and a port, such as 127.0.0.1:8080 or [::1]:8080")
BIND_OR_NONE = ValueType(optional(read_bind, trims=True), f"{BIND.takes}, or nothing")
PORT = whole(1, PORT_MAX, "a port")
PORT_OR_ANY = ValueType(
    read_whole(0, PORT_MAX), f"a port, 0 to {PORT_MAX}, such as 8080; 0 takes a free one"
)
PUBLIC_URL = ValueType(read_public_url, URL_TAKES)
ISSUER = ValueType(
    optional(read_issuer), "the https:// address that an OpenID provider calls its issuer"
)
PACKAGE_SOURCE = ValueType(read_package_source, "an http:// or https:// address, or a path")
PUBLIC_KEYS = ValueType(
    read_public_keys,
    f"Ed25519 public keys, each {PUBLIC_KEY_OCTETS} octets in base64, with commas",
)
LIST_URL = ValueType(optional(read_list_url, trims=True), "an https:// address")
PEM_FILE = ValueType(optional(read_authority_file), "the path of a PEM file")
PAGE_FILE = ValueType(optional(read_page_file), "the path of a Markdown file")
PATH = ValueType(optional(Path), "a path")
LISTS_DIR = ValueType(read_lists_dir, "the path of a folder")
WRITABLE_DIR = ValueType(optional(read_folder, trims=True), "the path of a folder to write into")
DATABASE = ValueType(read_database, "a path or a postgresql:// URL")
DOH_URLS = words_with_commas(
    read_doh_url, "https:// addresses of DNS-over-HTTPS endpoints", empty=False
)
PROXIES = words_with_commas(
    read_proxy_url, "socks5://host:port, with user:pass@ before the host if needed", empty=True
)
HELO = ValueType(read_helo, "a host name, in ASCII and without spaces")
MAIL_FROM = ValueType(read_mail_from, "an address, in ASCII and without spaces, or nothing")
SENDER = ValueType(read_sender_or_none, "an e-mail address")
MAIL_URL = ValueType(
    optional(read_mail_url),
    "smtp://host:port or smtps://host:port, with user:pass@ before the host if needed",
)
ACCOUNTS = ValueType(read_accounts, "ids or e-mail addresses of accounts, with commas")
NETWORKS = ValueType(
    read_networks, "addresses or networks, such as 10.0.0.1 or 10.0.0.0/24, with commas"
)
RETRY_WAITS = ValueType(
    read_retry_waits,
    f"at most {RETRIES_MAX} whole numbers of seconds with commas between, or nothing",
)
SECRET_KEY = ValueType(
    optional(read_secret_key, trims=True), f"{SECRET_KEY_OCTETS} octets in base64"
)
WEBHOOK_SECRET = ValueType(read_webhook_secret, "the secret of callbacks, 8 to 256 characters")


def word(takes: str) -> ValueType[str | None]:
    """A key or a secret of somebody else's form."""
    return ValueType(read_word_or_none, takes)
