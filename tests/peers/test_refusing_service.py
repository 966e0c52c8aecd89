"""A service that refuses every request with 503 behind a real nginx, beside one that serves."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from mailprobe.bench.lab import Lab
from tests.api.quota.test_killed import WIDE
from tests.api.service_fixture import VERIFY
from tests.api.service_process import free_bind, make_place, running
from tests.peers.programs.nginx import open_nginx
from tests.peers.programs.shipped_proxy import NAME


class _Refusing(BaseHTTPRequestHandler):
    """What a service without its database answers, at once."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.refused += 1  # type: ignore[attr-defined]  # of this test's server
        self.send_response(503)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_service_that_lost_its_database_costs_no_request(lab: Lab, tmp_path: Path) -> None:
    """It is the quickest, so it gets requests; nginx repeats what it refuses at the other one."""
    place = make_place(tmp_path / "place", lab, WIDE)
    key = place.make_account("free").key
    with (
        running(place, bind=free_bind()) as service,
        ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as refusing,
    ):
        refusing.refused = 0  # type: ignore[attr-defined]  # of this test's server
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        with (
            open_nginx(service.port, refusing.server_port) as proxy,
            httpx.Client(
                verify=ssl.create_default_context(cafile=str(proxy.authority)), trust_env=False
            ) as http,
        ):
            for _ in range(40):
                response = http.post(
                    f"https://127.0.0.1:{proxy.port}{VERIFY}",
                    headers={"host": NAME, "authorization": f"Bearer {key}"},
                    json={"email": "ann@mailinator.com"},
                    extensions={"sni_hostname": NAME},
                )
                assert response.status_code == 200, response.text
        assert refusing.refused > 0  # type: ignore[attr-defined]  # of this test's server
        refusing.shutdown()
