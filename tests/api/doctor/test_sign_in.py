"""`mailprobe doctor` asks the OpenID provider that the settings name, if they name one."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from mailprobe.api.settings import Settings
from mailprobe.api.sign_in.check import examine_sign_in


@contextmanager
def provider(**said: Any) -> Iterator[str]:
    """A provider that describes itself, with what it says otherwise."""

    class Described(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            octets = json.dumps(
                {
                    "issuer": issuer, "authorization_endpoint": f"{issuer}/a",
                    "token_endpoint": f"{issuer}/t", "jwks_uri": f"{issuer}/k", **said,
                }
            ).encode()  # fmt: skip
            self.send_response(200 if self.path == "/.well-known/openid-configuration" else 404)
            self.send_header("Content-Length", str(len(octets)))
            self.end_headers()
            self.wfile.write(octets)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Described) as server:
        issuer = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield issuer
        server.shutdown()
        thread.join()


def settings_of(issuer: str) -> Settings:
    names = ("ISSUER", "CLIENT_ID", "CLIENT_SECRET")
    values = (issuer, "mailprobe", "secret")
    return Settings.read({f"MAILPROBE_OIDC_{n}": v for n, v in zip(names, values, strict=True)})


async def test_a_provider_that_describes_itself_is_well() -> None:
    with provider() as issuer:
        check = await examine_sign_in(settings_of(issuer))
        assert (check.check, check.status) == (f"sign-in, {issuer[7:]}", "ok")


@pytest.mark.parametrize("end", ["", "/realm"])
async def test_a_provider_of_another_name_or_none_is_a_failure(end: str) -> None:
    with provider(issuer="https://login.test") as issuer:
        check = await examine_sign_in(settings_of(issuer + end))
        assert check.status == "failed"
        assert "MAILPROBE_OIDC_ISSUER" in (check.advice or "")


async def test_a_provider_that_is_away_is_a_failure() -> None:
    with provider() as issuer:
        settings = settings_of(issuer)
    check = await examine_sign_in(settings)
    assert check.status == "failed"
    assert "it does not answer" in check.found
