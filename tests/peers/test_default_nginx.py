"""The service behind nginx with its default proxying: HTTP/1.0, a connection for each request."""

import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.api.service_fixture import VERIFY
from tests.api.service_process import free_bind, make_place, running
from tests.peers.programs.nginx import open_default_nginx

WIDE = "[free]\nrate_limit_per_min = 1_000_000\nmonthly_calls = 1_000_000\n"
REQUESTS = 2_000  # the burst that is promised
TIMEOUT_S = 60.0


@pytest.fixture
def proxy(lab, tmp_path) -> Iterator[tuple[int, str]]:
    """The proxy's port, and a key of the service behind it."""
    place = make_place(tmp_path / "place", lab, WIDE)
    credentials = place.make_account("free")
    with running(place, bind=free_bind()) as service, open_default_nginx(service.port) as port:
        yield port, credentials.key


def test_a_burst_through_one_proxy_is_served(proxy):
    """All come from one address; each counted as a slow body once, and 1,900 got a 503."""
    port, key = proxy
    body = json.dumps({"email": "ann@mailinator.com"})
    lines = [
        f"POST {VERIFY} HTTP/1.1",
        "Host: a.test",
        "Connection: close",
        f"Authorization: Bearer {key}",
        f"Content-Length: {len(body)}",
    ]
    request = "\r\n".join([*lines, "", body]).encode()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
            for _ in range(REQUESTS)
        ]
        for client in clients:
            client.sendall(request)
        statuses = Counter(client.recv(65536).split()[1] for client in clients)
    assert statuses == {b"200": REQUESTS}
