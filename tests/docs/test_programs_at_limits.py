"""The programs of the pages that call the service end: at its limits, without a key, and without it."""

import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mailprobe.bench.lab import Lab
from mailprobe.bench.load.service_process import ServiceProcess, start_service
from tests.docs.pages import ROOT, blocks_in
from tests.docs.programs import run

OF_THE_MINUTE = "[free]\nrate_limit_per_min = 8\nmonthly_calls = 3\n"
OF_THE_MONTH = "[free]\nrate_limit_per_min = 30\nmonthly_calls = 6\n"
# Waits of minutes take a hundredth of a second: the program runs as it stands on its page.
HURRIED = (
    "import sys, time; real = time.sleep; time.sleep = lambda s: real(min(s, 0.01));"
    " exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'), {'__name__': '__main__'})"
)
WORDS = {"python": (sys.executable, "-c", HURRIED), "js": ("node",)}
ENDS_S = 60.0
ADDRESSES = "".join(f"user{number}@mailinator.com\n" for number in range(9))
PROGRAMS = {
    **{
        str(block): (language, block.text)
        for language in WORDS
        for block in blocks_in(language)
        if "BASE_URL" in block.text and block.page.name != "recipes.md"
    },
    "examples/stream.py": ("python", (ROOT / "examples/stream.py").read_text("utf-8")),
}
NIGHTLY = next(name for name in PROGRAMS if "nightly" in name)


@pytest.fixture(scope="module")
def free(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("free")
    with start_service(lab.env, folder, plans=OF_THE_MONTH, tier="free") as running:
        yield running


def ended(name: str, place: Path, url: str, key: str) -> tuple[int, str]:
    """Run a program with addresses on its standard input; its exit code and its output."""
    language, text = PROGRAMS[name]
    if shutil.which(WORDS[language][0]) is None:
        pytest.skip(f"this machine has no {WORDS[language][0]}")
    (place / "program.cjs").write_text(text, "utf-8")
    (place / "addresses").write_text(ADDRESSES, "utf-8")
    words = ["sh", "-c", 'exec "$@" < addresses', "sh", *WORDS[language], "program.cjs"]
    return run(words, place, {"BASE_URL": url, "KEY": key}, seconds=ENDS_S)


def verifications(free: ServiceProcess) -> httpx.Response:
    return httpx.post(
        f"{free.url}/v1/email/verify",
        json={"email": "ann@mailinator.com"},
        headers={"Authorization": f"Bearer {free.key}"},
        trust_env=False,
    )


def test_the_nightly_program_splits_by_the_limit_and_stops_at_the_quota(
    lab: Lab, tmp_path: Path
) -> None:
    """Nine addresses, with eight a minute and three a month: the first two requests are too large."""
    with start_service(lab.env, tmp_path, plans=OF_THE_MINUTE, tier="free") as free:
        code, output = ended(NIGHTLY, tmp_path, free.url, free.key)
    assert code == 1
    assert output.count('"status"') == 3, output
    assert "monthly_quota_exceeded" in output


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_with_a_free_key_at_its_limit(
    free: ServiceProcess, tmp_path: Path, name: str
) -> None:
    while verifications(free).status_code == 200:
        pass
    ended(name, tmp_path, free.url, free.key)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_with_a_key_that_is_revoked(
    free: ServiceProcess, tmp_path: Path, name: str
) -> None:
    code, output = ended(name, tmp_path, free.url, "sk_live_revoked")
    if name == NIGHTLY:
        assert (code, "invalid_api_key" in output, "Traceback" in output) == (1, True, False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_when_the_service_is_gone(tmp_path: Path, name: str) -> None:
    with socket.socket() as bound:  # a port where nothing listens
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        code, output = ended(name, tmp_path, url, "sk_live_x")
    if name == NIGHTLY:
        assert (code, "Traceback" in output) == (1, False)
        assert "given up after 6 failures" in output
