"""The OpenID provider of github.com/zitadel/oidc, a certified library: its example server, built by Go."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.peers.programs.process import PEERS, UNTIL_THE_PARENT_ENDS, WAIT_S_MAX, accepts

MODULE = "github.com/zitadel/oidc/v3/example/server@v3.52.0"
CLIENT_ID, CLIENT_SECRET = "web", "secret"  # as the server has them
PASSWORD = "a password"
BUILD_S = 900


def built() -> Path | None:
    """The program, built if that was not done before; None without Go or the module."""
    folder = PEERS / "bin" / MODULE.rpartition("@")[2]
    if not (folder / "server").exists() and shutil.which("go") is not None:
        env = {**os.environ, "GOBIN": str(folder)}
        subprocess.run(["go", "install", MODULE], env=env, timeout=BUILD_S)
    return folder / "server" if (folder / "server").exists() else None


def user(email: str, *, verified: bool) -> dict[str, object]:
    """A user, whose name is the address."""
    return {
        "ID": email, "Username": email, "Password": PASSWORD, "Email": email,
        "EmailVerified": verified,
    }  # fmt: skip


@contextmanager
def oidc_provider(
    program: Path, folder: Path, port: int, redirect_url: str, users: list[dict[str, object]]
) -> Iterator[str]:
    """Run it for the block; the value is its issuer."""
    (folder / "users.json").write_text(json.dumps({str(each["ID"]): each for each in users}))
    env = {
        "PATH": os.environ["PATH"], "PORT": str(port), "REDIRECT_URI": redirect_url,
        "USERS_FILE": str(folder / "users.json"),
    }  # fmt: skip
    with (
        (folder / "provider.log").open("wb") as log,
        subprocess.Popen(
            [*UNTIL_THE_PARENT_ENDS, program], env=env, stderr=log, cwd=folder
        ) as running,
    ):
        try:
            deadline = time.monotonic() + WAIT_S_MAX
            while not accepts("127.0.0.1", port):
                assert running.poll() is None, (folder / "provider.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield f"http://localhost:{port}/"
        finally:
            running.terminate()


def sign_in(url: str, email: str) -> str:
    """Sign in where the browser was sent, as this user; return where it is sent next."""
    with httpx.Client(follow_redirects=False, trust_env=False) as browser:
        got = browser.get(url)
        page = browser.get(str(httpx.URL(url).join(got.headers["location"])))
        form = {"username": email, "password": PASSWORD}
        form["id"] = page.text.partition('name="id" value="')[2].partition('"')[0]
        got = browser.post(page.url, data=form)
        while got.is_redirect and "/dashboard/" not in got.headers["location"]:
            got = browser.get(str(got.url.join(got.headers["location"])))
        assert got.is_redirect, got.text
        return str(got.headers["location"])
