"""Callbacks as receivers get them, over real TLS on loopback: request, response, certificates."""

import hashlib
import hmac
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
import trustme

from mailprobe.api.jobs import delivery
from mailprobe.api.jobs.delivery import (
    ANSWER_OCTETS_MAX,
    INTERIM_MAX,
    Delivered,
    WebhookSender,
    open_webhook_sender,
)
from mailprobe.api.jobs.rules import USER_AGENT
from mailprobe.engine.dns.doh import tls_context
from mailprobe.engine.dns.messages import AddressAnswer, Addresses
from tests.api.jobs.delivery_fixture import (
    ANSWERS,
    AT,
    BODY,
    HEADERS,
    HOST,
    JOB,
    LONG,
    NO_ANSWER,
    NO_CONTENT,
    NOT_HTTP,
    SECRET,
    Receiver,
    context_of,
    deliver,
    finds,
    open_listener,
    open_local,
    open_receiver,
    resets,
    says,
    says_for_ever,
)

pytestmark = pytest.mark.usefixtures("names_are_never_resolved")

# -- what goes out ----------------------------------------------------------------------------


async def test_the_received_body_is_exactly_the_signed_one(authority, ca_file):
    async with open_receiver(authority) as receiver, open_local(ca_file) as webhook_sender:
        delivered = await deliver(webhook_sender, receiver.port, "/mail?a=ä")
        assert (delivered.status, delivered.error, delivered.retry_after_s) == (204, None, None)
        assert delivered.took_ms >= 0
        (request,) = receiver.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert body == BODY
    line, *fields = head.decode("ascii").split("\r\n")
    assert line == "POST /mail?a=%C3%A4 HTTP/1.1"
    assert fields == [
        f"Host: {HOST}:{receiver.port}",
        "Content-Type: application/json",
        f"User-Agent: {USER_AGENT}",
        f"webhook-id: {JOB}",
        "webhook-timestamp: 1751364000",
        f"X-Service-Signature: sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}",
        "webhook-signature: " + HEADERS["webhook-signature"],
        f"Content-Length: {len(BODY)}",
        "Connection: close",
    ]


async def test_a_body_of_any_length_arrives_whole(authority, ca_file):
    async with open_receiver(authority) as receiver, open_local(ca_file) as webhook_sender:
        for body in (b"", b"\0", bytes(300_000)):
            assert (await deliver(webhook_sender, receiver.port, body=body)).status == 204
            assert receiver.requests.pop().partition(b"\r\n\r\n")[2] == body


async def test_each_delivery_has_its_own_connection_and_look_up(authority, ca_file):
    looked_up = []

    async def find(name: str) -> AddressAnswer:
        looked_up.append(name)
        return Addresses(("127.0.0.1",), 86_400)

    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"
    async with (
        open_receiver(authority, says(answer)) as receiver,
        open_webhook_sender(find, allow_private=True, ca_file=ca_file) as webhook_sender,
    ):
        for _ in range(3):
            assert (await deliver(webhook_sender, receiver.port)).status == 200
        assert receiver.connections == 3
    assert looked_up == [HOST] * 3


async def test_a_host_is_never_given_another_ones_connection(authority, ca_file):
    """Both hosts have the same address and port; the certificate is the first one's."""
    async with open_receiver(authority) as receiver, open_local(ca_file) as webhook_sender:
        assert (await deliver(webhook_sender, receiver.port)).status == 204
        other = await deliver(webhook_sender, receiver.port, host="other.shop.test")
        assert other.status is None
        assert other.error is not None
        assert "certificate not accepted" in other.error
        assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("Hooks.SHOP.test", "hooks.shop.test"),
        ("hooks.shop.test.", "hooks.shop.test"),
        ("münchen.test", "xn--mnchen-3ya.test"),
        ("MÜNCHEN。test", "xn--mnchen-3ya.test"),
    ],
)
async def test_tls_and_the_receiver_get_the_hosts_name(authority, ca_file, host, name):
    reported = []
    tls = context_of(authority, name)
    tls.sni_callback = lambda socket, server_name, context: reported.append(server_name)
    async with open_receiver(authority, tls=tls) as receiver, open_local(ca_file) as webhook_sender:
        assert (await deliver(webhook_sender, receiver.port, host=host)).status == 204
        assert f"Host: {name}:{receiver.port}\r\n".encode() in receiver.requests[0]
    assert reported == [name]


async def test_only_http_1_1_is_offered(authority, ca_file):
    tls = context_of(authority, HOST)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    chosen = []

    async def act(stream: trio.abc.Stream) -> None:
        assert isinstance(stream, trio.SSLStream)
        chosen.append(stream.selected_alpn_protocol())
        await stream.send_all(NO_CONTENT)

    async with (
        open_receiver(authority, act, tls=tls) as receiver,
        open_local(ca_file) as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).status == 204
    assert chosen == ["http/1.1"]


async def test_a_wildcard_certificate_is_good(authority, ca_file):
    async with (
        open_receiver(authority, names=["*.shop.test"]) as receiver,
        open_local(ca_file) as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).status == 204


async def test_six_is_called_like_four(authority, ca_file):
    async with (
        open_receiver(authority, host="::1") as receiver,
        open_local(ca_file, "::1") as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).status == 204


async def test_no_proxy_of_the_environment_is_used(authority, ca_file, monkeypatch):
    async with open_receiver(authority) as proxy, open_receiver(authority) as receiver:
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with open_local(ca_file) as webhook_sender:
            assert (await deliver(webhook_sender, receiver.port)).status == 204
        assert (proxy.connections, receiver.connections) == (0, 1)


# -- what comes back --------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_status_of_the_answer_is_returned(authority, ca_file, answer):
    octets, status, retry_after_s = ANSWERS[answer]
    async with (
        open_receiver(authority, says(octets)) as receiver,
        open_webhook_sender(
            finds("127.0.0.1"), allow_private=True, ca_file=ca_file, now=lambda: AT
        ) as webhook_sender,
    ):
        delivered = await deliver(webhook_sender, receiver.port)
        await receiver.gone.wait()
        assert receiver.connections == 1  # no redirect is followed, no request repeated
    assert delivered == Delivered(status, None, retry_after_s, delivered.took_ms)


LONG_HEAD = "the answer's head is too long"
NO_ANSWERS = {
    "hangs up": (says(), NO_ANSWER),
    "resets": (resets, "the connection broke"),
    "dies in the head": (says(b"HTTP/1.1 200 OK\r\nContent-"), NO_ANSWER),
    "dies after 100": (says(b"HTTP/1.1 100 Continue\r\n\r\n"), NO_ANSWER),
    "HTTP/0.9": (says(b"<html>\r\n\r\nok"), NOT_HTTP),
    "another protocol": (says(b"220 mx.shop.test ESMTP\r\n\r\n"), NOT_HTTP),
    "HTTP/2": (says(b"HTTP/2 200 OK\r\n\r\n"), NOT_HTTP),
    "a status of two digits": (says(b"HTTP/1.1 20 OK\r\n\r\n"), NOT_HTTP),
    "a status below 100": (says(b"HTTP/1.1 099 OK\r\n\r\n"), NOT_HTTP),
    "switches": (says(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"), NOT_HTTP),
    "NUL": (says(bytes(9) + b"\r\n\r\n"), NOT_HTTP),
    "a NUL in a header": (says(b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n"), NOT_HTTP),
    "two lengths": (
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), NOT_HTTP),
    "garbage without an end": (says_for_ever(b"", b"x" * 10_000), LONG_HEAD),
    "lines without an end": (says_for_ever(b"", b"what?\r\n" * 1000), LONG_HEAD),
    "a header without an end": (says_for_ever(b"HTTP/1.1 200 OK\r\nA: ", b"x" * 1000), LONG_HEAD),
    "headers without an end": (says_for_ever(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 100), LONG_HEAD),
    "a head of 64 KiB": (
        says(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 11_000 + b"\r\n"), LONG_HEAD),
    "100 for ever": (
        says_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), f"more than {INTERIM_MAX} interim answers"),
    "long 100s for ever": (
        says_for_ever(b"", b"HTTP/1.1 100 Continue\r\nA: " + b"x" * 10_000 + b"\r\n\r\n"),
        f"an answer of more than {ANSWER_OCTETS_MAX} octets"),
}  # fmt: skip


@pytest.mark.parametrize("fault", NO_ANSWERS)
async def test_an_invalid_answer_is_a_short_error(authority, ca_file, fault):
    act, error = NO_ANSWERS[fault]
    async with open_receiver(authority, act) as receiver, open_local(ca_file) as webhook_sender:
        delivered = await deliver(webhook_sender, receiver.port)
        await receiver.gone.wait()  # the sender leaves an endless answer
        assert delivered == Delivered(None, error, None, delivered.took_ms)
        receiver.act = says(NO_CONTENT)
        assert (await deliver(webhook_sender, receiver.port)).status == 204


@pytest.mark.parametrize("body", [LONG * 3, b"x" * (ANSWER_OCTETS_MAX + 1)])
async def test_no_more_than_64_kib_of_an_answer_is_read(authority, ca_file, body, monkeypatch):
    read = 0
    receive_some = trio.SSLStream.receive_some

    async def counting(stream, max_bytes=None):
        nonlocal read
        octets = await receive_some(stream, max_bytes)
        read += len(octets) * (not stream.server_side)
        return octets

    monkeypatch.setattr(trio.SSLStream, "receive_some", counting)
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + body
    async with (
        open_receiver(authority, says(answer)) as receiver,
        open_local(ca_file) as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).status == 200
    assert read == ANSWER_OCTETS_MAX


# -- TLS --------------------------------------------------------------------------------------

YESTERDAY = datetime.now(UTC) - timedelta(days=1)
CERTIFICATES: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"names": ["other.test"]}, "Hostname mismatch"),
    "a name below": ({"names": [f"a.{HOST}"]}, "Hostname mismatch"),
    "a wildcard too high": ({"names": ["*.test"]}, "Hostname mismatch"),
    "its address alone": ({"names": ["127.0.0.1"]}, "Hostname mismatch"),
    "the common name alone": (
        {"names": ["other.test"], "common_name": HOST}, "Hostname mismatch"),
    "expired": ({"not_after": YESTERDAY}, "certificate has expired"),
    "of tomorrow": ({"not_before": datetime.now(UTC) + timedelta(days=1)}, "not yet valid"),
}  # fmt: skip


@pytest.mark.parametrize("certificate", CERTIFICATES)
async def test_a_certificate_that_is_not_good_for_the_host(authority, ca_file, certificate):
    more, words = CERTIFICATES[certificate]
    async with open_receiver(authority, **more) as receiver, open_local(ca_file) as webhook_sender:
        await expect_refused_certificate(webhook_sender, receiver, words)


async def expect_refused_certificate(
    webhook_sender: WebhookSender, receiver: Receiver, words: str
) -> None:
    delivered = await deliver(webhook_sender, receiver.port)
    assert delivered.status is None
    assert delivered.error is not None
    assert delivered.error.startswith("certificate not accepted: ")
    assert words in delivered.error
    assert receiver.requests == []


async def test_an_authority_that_is_not_ours(authority, tmp_path):
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    async with open_receiver(authority) as receiver, open_local(str(other)) as webhook_sender:
        await expect_refused_certificate(webhook_sender, receiver, "local issuer")


async def test_the_systems_authorities_do_not_know_ours(authority):
    async with open_receiver(authority) as receiver, open_local(None) as webhook_sender:
        await expect_refused_certificate(webhook_sender, receiver, "issuer")


async def test_the_systems_authorities_are_read_once_and_not_before_a_receiver_is_called(
    authority, ca_file, monkeypatch
):
    """Reading them takes 60 ms, which must delay neither the start nor the event loop."""
    read_in: list[int] = []

    def read(named: str | None) -> ssl.SSLContext:
        assert named is None
        read_in.append(threading.get_ident())
        return tls_context(ca_file)

    monkeypatch.setattr(delivery, "tls_context", read)
    async with open_receiver(authority) as receiver, open_local(None) as webhook_sender:
        assert read_in == []
        statuses: list[int | None] = []

        async def deliver_one() -> None:
            statuses.append((await deliver(webhook_sender, receiver.port)).status)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(deliver_one)
        assert statuses == [204] * 3
    assert len(read_in) == 1
    assert read_in[0] != threading.get_ident()


async def test_an_authority_file_that_is_not_there_is_the_operators_mistake(tmp_path):
    with pytest.raises(FileNotFoundError):
        async with open_local(str(tmp_path / "nowhere.pem")):
            pass


PLAIN = {
    "plain HTTP": says(NO_CONTENT),
    "nothing": says(),
    "a mail host": says(b"220 mx.shop.test ESMTP\r\n"),
    "a record that is cut": says(b"\x16\x03\x03\x00\x7a\x02"),
}


@pytest.mark.parametrize("what", PLAIN)
async def test_a_port_without_tls(ca_file, what):
    async def serve(stream: trio.abc.Stream) -> None:
        async with stream:
            with suppress(trio.BrokenResourceError):
                await stream.receive_some()  # the handshake's beginning
                await PLAIN[what](stream)

    async with open_listener(serve, None) as port, open_local(ca_file) as webhook_sender:
        delivered = await deliver(webhook_sender, port)
        assert delivered.status is None
        assert delivered.error is not None
        assert delivered.error.startswith("TLS failed: ")
