"""Webhook rules: allowed URLs, signed octets and the retry schedule; pure, without I/O."""

import ast
import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from importlib.metadata import version
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailprobe.api.jobs import rules
from mailprobe.api.jobs.rules import (
    NotAWebhook,
    WebhookTarget,
    callback_backoff,
    callback_headers,
    check_webhook,
    read_retry_after,
    verdict_on,
)
from mailprobe.api.settings import WEBHOOK_RETRY_S
from tests.test_layers import IMPURE


def test_nothing_here_knows_a_clock_chance_or_the_network():
    tree = ast.parse(Path(rules.__file__).read_text("utf-8"))
    named = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        + [alias.name for alias in node.names]
    }
    assert not named & IMPURE


# -- the URL ----------------------------------------------------------------------------------

# URL -> host, port, request target
WEBHOOKS = {
    "https://hooks.example.org/mail": ("hooks.example.org", 443, "/mail"),
    "https://hooks.example.org": ("hooks.example.org", 443, "/"),
    "https://hooks.example.org/": ("hooks.example.org", 443, "/"),
    "https://hooks.example.org?a=1": ("hooks.example.org", 443, "/?a=1"),
    "https://hooks.example.org/?a=/b?c": ("hooks.example.org", 443, "/?a=/b?c"),
    "https://hooks.example.org:443/": ("hooks.example.org", 443, "/"),
    "https://hooks.example.org:8443/a/b;c=d?e=f&g[]=h": (
        "hooks.example.org", 8443, "/a/b;c=d?e=f&g[]=h",
    ),
    "https://hooks.example.org:1/": ("hooks.example.org", 1, "/"),
    "https://hooks.example.org:65535/": ("hooks.example.org", 65535, "/"),
    "https://hooks.example.org:00443/": ("hooks.example.org", 443, "/"),
    "https://Hooks.EXAMPLE.org/Path?Q": ("hooks.example.org", 443, "/Path?Q"),
    "https://hooks.example.org./a": ("hooks.example.org", 443, "/a"),
    "https://a.b.c.d.example/": ("a.b.c.d.example", 443, "/"),
    "https://1.2.3.4.example.org/": ("1.2.3.4.example.org", 443, "/"),
    "https://127.0.0.1.example/": ("127.0.0.1.example", 443, "/"),
    "https://0x7f.example/": ("0x7f.example", 443, "/"),
    "https://9292.example/": ("9292.example", 443, "/"),
    "https://localhost.example/": ("localhost.example", 443, "/"),
    "https://local.example/": ("local.example", 443, "/"),
    "https://not.alocal/": ("not.alocal", 443, "/"),
    "https://my_hook.example/": ("my_hook.example", 443, "/"),
    "https://r3---sn-h0j.example/": ("r3---sn-h0j.example", 443, "/"),
    # everything after the authority is the path, sent unchanged
    "https://hooks.example.org/a@b:c//d": ("hooks.example.org", 443, "/a@b:c//d"),
    "https://hooks.example.org/?to=me@there.example": (
        "hooks.example.org", 443, "/?to=me@there.example",
    ),
    "https://hooks.example.org//127.0.0.1/": ("hooks.example.org", 443, "//127.0.0.1/"),
    "https://hooks.example.org/../a/./b": ("hooks.example.org", 443, "/../a/./b"),
    "https://hooks.example.org/%2f%zz%": ("hooks.example.org", 443, "/%2f%zz%"),
    "https://hooks.example.org/ä?ö=ü": ("hooks.example.org", 443, "/%C3%A4?%C3%B6=%C3%BC"),
    'https://hooks.example.org/{a}|"<b>`^': (
        "hooks.example.org", 443, "/%7Ba%7D%7C%22%3Cb%3E%60%5E",
    ),
    # other scripts, as browsers read them
    "https://münchen.example/": ("xn--mnchen-3ya.example", 443, "/"),
    "https://MÜNCHEN.example/": ("xn--mnchen-3ya.example", 443, "/"),
    "https://mu\u0308nchen.example/": ("xn--mnchen-3ya.example", 443, "/"),
    "https://xn--mnchen-3ya.example/": ("xn--mnchen-3ya.example", 443, "/"),
    "https://XN--MNCHEN-3YA.example/": ("xn--mnchen-3ya.example", 443, "/"),
    "https://faß.example/": ("xn--fa-hia.example", 443, "/"),
    "https://例え。テスト/": ("xn--r8jz45g.xn--zckzah", 443, "/"),
    "https://ｈｏｏｋｓ．ｅｘａｍｐｌｅ/": ("hooks.example", 443, "/"),
    "https://hooks｡example/": ("hooks.example", 443, "/"),
    f"https://{'a' * 63}.example/": (f"{'a' * 63}.example", 443, "/"),
    f"https://{'a.' * 123}example/": (f"{'a.' * 123}example", 443, "/"),  # 253 octets
    f"https://{'a.' * 123}example./": (f"{'a.' * 123}example", 443, "/"),
    f"https://hooks.example/{'a' * 2026}": ("hooks.example", 443, f"/{'a' * 2026}"),
}  # fmt: skip


@pytest.mark.parametrize("url", WEBHOOKS)
def test_a_webhook(url):
    assert check_webhook(url) == WebhookTarget(url, *WEBHOOKS[url])


AN_ADDRESS = "it names an IP address"
NO_NAME = "its host is not a domain name"
NOT_PUBLIC = "its host is not on the public Internet"
NO_DOT = "its host name has no dot"
CHARACTER = "it holds a space, a backslash or a control character"
SCHEME = "it must begin with https://"
USER = "it names a user"
PORT = "its port is not a number from 1 to 65535"

NOT_WEBHOOKS = {
    SCHEME: [
        "", "https:", "https:/", "https:/hooks.example/", "http://hooks.example/",
        "//hooks.example/", "hooks.example", "ftp://hooks.example/", "httpsx://hooks.example/",
        "HTTPS://hooks.example/", "Https://hooks.example/", " https://hooks.example/",
        "\thttps://hooks.example/", "ｈttps://hooks.example/", "https:\\\\hooks.example/",
        "file:///etc/passwd", "javascript:alert(1)",
    ],
    AN_ADDRESS: [
        "https://127.0.0.1/", "https://8.8.8.8/", "https://8.8.8.8:443/", "https://127.0.0.1./",
        "https://2130706433/", "https://2130706433./", "https://0x7f000001/", "https://0x7f.1/",
        "https://0X7F.0.0.0x1/", "https://127.0.0.0x1/", "https://127.1/", "https://127.0.1/",
        "https://0177.0.0.1/", "https://017700000001/", "https://0/", "https://0x/",
        "https://hooks.0x/", "https://127.0.0.0xg/", "https://1.2.3.4.5/", "https://256.256.256.256/",
        "https://hooks.example.1/", "https://hooks.09/", "https://169.254.169.254/latest/meta-data/",
        "https://１２７.0.0.1/", "https://１２７．０．０．１/", "https://127。0。0。1/",
        "https://127｡0｡0｡1/", "https://127．0｡0。1。/", "https://①②⑦.⓪.⓪.①/", "https://⑩.0.0.1/",
        "https://127.0.0.¹/", "https://127.0.0.𝟏/", "https://127.0.0.1\u00ad/",
        "https://127.0.0.\u200b1/", "https://0ｘ7f.0.0.1/", "https://127.0.0.0ｘ1/", "https://２１３０７０６４３３/",
        "https://१२७.०.०.१/", "https://hooks.xn--e4b/",
        "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://[fe80::1%25eth0]/",
        "https://[fe80::1%eth0]:443/", "https://[2620:fe::fe]:443/", "https://[v1.x]/",
        "https://[hooks.example]/", "https://hooks.example]/", "https://[hooks.example/",
    ],
    NO_NAME: [
        "https://", "https:///", "https:///hooks.example/", "https://?a", "https://.", "https://./",
        "https://../", "https://.hooks.example/", "https://hooks..example/", "https://hooks.example../",
        "https://127.0.0.1../", "https://-hooks.example/", "https://hooks-.example/",
        "https://ho*ks.example/", "https://*.example/", "https://ho!oks.example/", "https://a,b.example/",
        "https://hooks%2eexample/", "https://%31%32%37.0.0.1/", "https://127%2e0%2e0%2e1/",
        "https://hooks.example%00/", "https://hooks.example%2f.other.example/", "https://％31.0.0.1/",
        "https://a／b.example/", "https://a＠b.example/", "https://a：1.example/", "https://a＃b.example/",
        "https://a？b.example/", "https://℀.example/", "https://hooks．．example/", "https://＼.example/",
        "https://⒈0.0.1/", "https://\u202ehooks.example/", "https://xn--.example/",
        "https://xn--a.example/", "https://xn--0.example/", "https://xn--hooks-.example/",
        "https://xn--ls8h.example/", "https://💩.example/", "https://a<b>.example/", "https://\ue000.example/",
        f"https://{'a' * 64}.example/", f"https://{'ü' * 60}.example/", "https://:443/",
        "https://::1/", "https://١٢٧.٠.٠.١/",
    ],
    NOT_PUBLIC: [
        "https://localhost/", "https://localhost:8443/", "https://LocalHost/", "https://localhost./",
        "https://hooks.localhost/", "https://hooks.LOCALHOST./", "https://ｌｏｃａｌｈｏｓｔ/",
        "https://hooks。localhost。/", "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", "https://local\u00adhost/", "https://ſ.localhoſt/",
        "https://printer.local/", "https://printer.LOCAL./", "https://printer．ｌocal/", "https://local/",
        "https://a.b.c.local/",
    ],
    NO_DOT: ["https://hooks/", "https://example./", "https://intranet:8443/", "https://münchen/"],
    USER: [
        "https://me@hooks.example/", "https://me:secret@hooks.example/", "https://@hooks.example/",
        "https://:@hooks.example/", "https://hooks.example@127.0.0.1/", "https://a@b@hooks.example/",
        "https://hooks.example:443@127.0.0.1/", "https://[::1]@hooks.example/",
    ],
    PORT: [
        "https://hooks.example:/", "https://hooks.example:0/", "https://hooks.example:65536/",
        "https://hooks.example:99999/", "https://hooks.example:443443443/", "https://hooks.example:-1/",
        "https://hooks.example:+443/", "https://hooks.example:4_4_3/", "https://hooks.example:https/",
        "https://hooks.example:４４３/", "https://hooks.example:443:443/", "https://hooks.example:0x1bb/",
        "https://hooks.example:443.0/", "https://hooks.example:000443/",
    ],
    CHARACTER: [
        "https://hooks.example/a b", "https://hooks.example/ ", "https://hooks .example/",
        "https://hooks.example/\n", "https://hooks.example/\r\nHost: other", "https://hooks.ex\tample/",
        "https://hooks.example/\0", "https://hooks.example/\x7f", "https://hooks.example/\x85",
        "https://hooks.example\\@other.example/", "https://hooks.example/a\\b", "https://\\hooks.example/",
        "https://hooks.example/\u00a0", "https://hooks.example/\u3000", "https://hooks.example/\u2028",
        "https://hooks.example/\ud800", "https://127.0.0.1 /", "https://hooks.example/\x1b[2J",
    ],
    "it has a fragment": ["https://hooks.example/#", "https://hooks.example/a#b", "https://hooks.example#@o"],
    "it is longer than 2048 characters": [f"https://hooks.example/{'a' * 2027}"],
    "its host name is too long": [
        f"https://{'a.' * 123}examples/", f"https://{'.'.join(['a' * 50] * 6)}.example/",
        f"https://{'ü.' * 100}example/", f"https://{'a' * 2000}/", f"https://{'ﷺ' * 250}.example/",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("url", "why"), [(url, why) for why, urls in NOT_WEBHOOKS.items() for url in urls]
)
def test_an_invalid_webhook_is_refused(url, why):
    with pytest.raises(NotAWebhook) as refused:
        check_webhook(url)
    assert str(refused.value).startswith(why)


SPELLINGS: dict[str, Callable[[int], str]] = {
    "decimal": str,
    "octal": oct,
    "hexadecimal": hex,
    "old octal": lambda number: f"0{number:o}",
    "full width": lambda number: "".join(chr(0xFF10 + int(digit)) for digit in str(number)),
    "circled": lambda number: "".join(
        "⓪" if digit == "0" else chr(0x2460 + int(digit) - 1) for digit in str(number)
    ),
}
DOTS = [".", "。", "．", "｡"]


@given(
    address=st.integers(0, 2**32 - 1),
    parts=st.integers(1, 4),
    spell=st.lists(st.sampled_from(sorted(set(SPELLINGS) - {"octal"})), min_size=4, max_size=4),
    dots=st.lists(st.sampled_from(DOTS), min_size=4, max_size=4),
    dot_at_the_end=st.booleans(),
)
def test_no_spelling_of_an_ipv4_address_gets_through(address, parts, spell, dots, dot_at_the_end):
    octets = IPv4Address(address).packed
    numbers = [*octets[: parts - 1], int.from_bytes(octets[parts - 1 :], "big")]
    host = ""
    for number, kind, dot in zip(numbers, spell, dots, strict=False):
        host += (dot if host else "") + SPELLINGS[kind](number)
    with pytest.raises(NotAWebhook, match="IP address"):
        check_webhook(f"https://{host}{dots[3] if dot_at_the_end else ''}/")


AWKWARD = "/\\@:?#[]%. \t\r\n\0.。．｡１①x0af-_~\u00ad\u200d\u202e\ud800ßſKİ℀⒈☃𝟏é٣"


@given(
    st.text(st.one_of(st.sampled_from(AWKWARD), st.characters()), max_size=30).map(
        lambda text: f"https://{text}"
    )
)
@example("https://a.b:65536")
@example("https://" + "ab." * 700)
def test_any_url_is_one_public_name_or_refused(url):
    """The host and the target sent for it are visible ASCII on one line."""
    try:
        target = check_webhook(url)
    except NotAWebhook:
        return
    labels = target.host.split(".")
    assert len(labels) > 1
    assert all(0 < len(label) < 64 for label in labels)
    assert target.host.isascii()
    assert target.host == target.host.lower()
    assert set(target.host) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
    assert labels[-1] not in ("localhost", "local")
    assert not labels[-1].isdigit()
    assert not labels[-1].startswith("0x")
    assert 0 < target.port < 65536
    assert target.request_target.startswith("/")
    assert all("!" <= each <= "~" for each in target.request_target)
    assert check_webhook(f"https://{target.authority}{target.request_target}") == WebhookTarget(
        f"https://{target.authority}{target.request_target}",
        target.host,
        target.port,
        target.request_target,
    )


def test_the_authority_names_the_port_where_it_is_not_https_own():
    assert check_webhook("https://Hooks.example:443/").authority == "hooks.example"
    assert check_webhook("https://Hooks.example:8443/").authority == "hooks.example:8443"


def test_a_printed_webhook_has_no_path():
    """The path is often the only secret that a receiver has."""
    target = check_webhook("https://hooks.example/s3cret?token=s3cret")
    assert "s3cret" not in repr(target)
    assert "hooks.example" in repr(target)


@pytest.mark.parametrize("url", ["https://s3cret", "https://s3cret@hooks.example/", "s3cret://x"])
def test_a_refusal_quotes_nothing(url):
    with pytest.raises(NotAWebhook) as refused:
        check_webhook(url)
    assert "s3cret" not in str(refused.value)


# -- signing ----------------------------------------------------------------------------------

JOB = "0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60"
PAYLOAD = f'{{"job_id":"{JOB}","email":"ann@exämple.org"}}'.encode()
AT = datetime(2025, 7, 1, 10, tzinfo=UTC)

# Made with `openssl dgst -sha256 -hmac`; the last two with the secret's own octets as the key.
SIGNATURES = {
    "correct horse": (
        "edf8a99b937c9c9b23173ae64e202e908015411fa0bb872e3522035ee8ac968f",
        "OsyJdCcG3GFCP1m6lPWZnMwjSSK0WYGOMuYxvWIwroQ=",
    ),
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw": (
        "81cfb879b305755ecc47d12d05b6163306ccaf4c420088cb4998b731a064d921",
        "DtJaYImXJ7MxzuoRQdIU+fhm+YG82GEKXCvIr70EQ1E=",
    ),
    "whsec_no base64!": (
        None,
        "pV0K2Nh+zYPSl9KThm4JAXDNsdMUY23lbiji2AQfe9Q=",
    ),
    "Schlüssel": (
        "6b35e76e5537830f83fb34697a1265a099bbb6420456d235982466200459e946",
        "qeAUIYpV8hDrdnTMtwpAyBbbeBmej0m+7B7KHXlOTB4=",
    ),
}


@pytest.mark.parametrize("secret", SIGNATURES)
def test_signatures_are_those_that_openssl_makes(secret):
    headers = callback_headers(JOB, PAYLOAD, secret, AT)
    literal, standard = SIGNATURES[secret]
    assert literal is None or headers["X-Service-Signature"] == f"sha256={literal}"
    assert headers["webhook-signature"] == f"v1,{standard}"


def test_the_example_of_standard_webhooks():
    """The example comes from the reference libraries' tests."""
    headers = callback_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        b'{"test": 2432232314}',
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        datetime.fromtimestamp(1614265330, UTC),
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_example_that_github_publishes_for_the_same_scheme():
    headers = callback_headers(JOB, b"Hello, World!", "It's a Secret to Everybody", AT)
    assert headers["X-Service-Signature"] == (
        "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    )


def test_the_headers_of_a_try():
    assert callback_headers(JOB, PAYLOAD, None, AT) == {
        "Content-Type": "application/json",
        "User-Agent": f"mailprobe/{version('mailprobe')}",
        "webhook-id": JOB,
        "webhook-timestamp": "1751364000",
    }
    signed = callback_headers(JOB, PAYLOAD, "at least 8", AT)
    assert set(signed) - set(callback_headers(JOB, PAYLOAD, None, AT)) == {
        "X-Service-Signature",
        "webhook-signature",
    }


def test_an_empty_secret_is_none():
    """HMAC accepts an empty key, and an attacker could sign with it."""
    assert callback_headers(JOB, PAYLOAD, "", AT) == callback_headers(JOB, PAYLOAD, None, AT)


def test_the_time_is_in_whole_seconds_whatever_the_zone():
    at = (AT + timedelta(microseconds=999_999)).astimezone(timezone(timedelta(hours=-7)))
    assert callback_headers(JOB, PAYLOAD, None, at)["webhook-timestamp"] == "1751364000"


def test_a_later_try_is_signed_anew_and_its_payloads_signature_stays():
    one = callback_headers(JOB, PAYLOAD, "at least 8", AT)
    two = callback_headers(JOB, PAYLOAD, "at least 8", AT + timedelta(seconds=1))
    assert one["X-Service-Signature"] == two["X-Service-Signature"]
    assert one["webhook-signature"] != two["webhook-signature"]


@pytest.mark.parametrize(
    "secret",
    [
        "whsec_",
        "whsec_=",
        "whsec_ab",  # the padding is missing
        "whsec_-_-_",  # the alphabet of URLs
        "whsec_YWJj\n",
        "whsec_schlüssel",
        "WHSEC_YWJj",
        " whsec_YWJj",
    ],
)
def test_a_whsec_secret_that_is_no_base64_is_used_as_it_is(secret):
    key = hmac.new(secret.encode(), f"{JOB}.1751364000.".encode() + PAYLOAD, hashlib.sha256)
    assert callback_headers(JOB, PAYLOAD, secret, AT)["webhook-signature"] == (
        f"v1,{b64encode(key.digest()).decode()}"
    )


@given(payload=st.binary(max_size=200), secret=st.text(min_size=8, max_size=256))
def test_any_secret_signs_any_octets_in_one_line(payload, secret):
    for value in callback_headers(JOB, payload, secret, AT).values():
        assert value.isascii()
        assert value.isprintable()


# -- retries ----------------------------------------------------------------------------------

PLAN = callback_backoff((5, 300, 1800))


@pytest.mark.parametrize(
    ("tries", "wait_s"), [(1, 5), (2, 300), (3, 1800), (4, None), (5, None), (100, None)]
)
def test_the_plan_is_followed_to_its_end(tries, wait_s):
    assert PLAN.pause_s(tries, chance=0.5) == wait_s


@pytest.mark.parametrize(("chance", "wait_s"), [(0, 240), (0.25, 270), (0.5, 300), (1, 360)])
def test_chance_is_a_fifth_of_a_wait(chance, wait_s):
    assert PLAN.pause_s(2, chance=chance) == pytest.approx(wait_s)


def test_without_a_plan_there_is_one_try():
    assert callback_backoff(()).pause_s(1, chance=0.5, retry_after_s=60.0) is None


@pytest.mark.parametrize(
    ("asked_s", "wait_s"), [(0, 300), (299, 300), (301, 301), (86_400, 86_400), (10**9, 86_400)]
)
def test_a_receiver_may_ask_for_a_longer_wait_of_a_day_at_most(asked_s, wait_s):
    assert PLAN.pause_s(2, chance=0.5, retry_after_s=asked_s) == wait_s


def test_asking_for_a_wait_gives_no_more_tries():
    assert PLAN.pause_s(4, chance=0.5, retry_after_s=60.0) is None


def test_the_plan_takes_three_days():
    assert len(WEBHOOK_RETRY_S) == 9
    plan = callback_backoff(WEBHOOK_RETRY_S)
    waits = [plan.pause_s(tries, chance=0.0) for tries in range(1, 11)]
    assert waits[-1] is None
    assert sum(wait for wait in waits if wait) > 2.5 * 86_400 * 0.8


@pytest.mark.parametrize("status", [200, 201, 202, 204, 226, 299])
def test_any_2xx_is_done(status):
    assert verdict_on(status, tries=1, backoff=PLAN, chance=0.5) == ("done", None)


def test_gone_is_failed_at_once():
    assert verdict_on(410, tries=1, backoff=PLAN, chance=0.5) == ("failed", None)


@pytest.mark.parametrize(
    "status", [None, 300, 301, 302, 307, 308, 400, 401, 404, 409, 429, 500, 503]
)
def test_all_else_is_tried_again_until_the_plan_ends(status):
    assert verdict_on(status, tries=1, backoff=PLAN, chance=0.5) == ("delivering", 5)
    assert verdict_on(status, tries=3, backoff=PLAN, chance=0.5) == ("delivering", 1800)
    assert verdict_on(status, tries=4, backoff=PLAN, chance=0.5) == ("failed", None)


@pytest.mark.parametrize(
    ("status", "wait_s"), [(429, 60), (503, 60), (500, 5), (301, 5), (404, 5), (None, 5)]
)
def test_only_429_and_503_ask_for_a_wait(status, wait_s):
    reported = verdict_on(status, tries=1, backoff=PLAN, chance=0.5, retry_after_s=60.0)
    assert reported == ("delivering", wait_s)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        ("0120", 120),
        ("9" * 40, float("9" * 40)),
        ("Tue, 01 Jul 2025 10:01:00 GMT", 60),
        ("Tuesday, 01-Jul-25 10:01:00 GMT", 60),
        ("Tue Jul  1 10:01:00 2025", 60),
        ("Tue, 01 Jul 2025 09:00:00 GMT", 0),
    ],
)
def test_a_retry_after_is_seconds_or_a_date(text, seconds):
    assert read_retry_after(text, AT) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "", "-1", "+1", "1.5", "1e3", "soon", "0x10", "１２０", "٣", "120 seconds", "9" * 41, "9" * 60_000,
        "Tue, 01 Jul", "Tue, 45 Jul 2025 10:01:00 GMT", "Tue, 01 Jul 2025 25:01:00 GMT", "nan", "inf",
        "Tue, 01 Jul 99999 10:01:00 GMT", "Tue, 01 Jul 2025 10:01:00 +9999", "1 " * 30_000,
    ],
)  # fmt: skip
def test_a_retry_after_that_says_nothing_is_ignored(text):
    assert read_retry_after(text, AT) is None


@given(
    st.one_of(
        st.text(max_size=45),
        st.lists(
            st.sampled_from(
                [
                    *["0", "1", "9", ",", "-", ":", "/", "+", ";", ".", "(", ")"],
                    "Tue",
                    "Jul",
                    "GMT",
                    "2025",
                    "  ",
                    "UTC",
                    "10:01:00",
                ]
            )
        ).map(" ".join),
    )
)
def test_no_retry_after_is_more_than_ignored(text):
    reported = read_retry_after(text, AT)
    assert reported is None or reported >= 0


@given(st.datetimes(datetime(2025, 7, 1, 10), datetime(9999, 1, 1), timezones=st.just(UTC)))
def test_any_date_is_read_back(at):
    at = at.replace(microsecond=0)
    assert read_retry_after(format_datetime(at, usegmt=True), AT) == (at - AT).total_seconds()
