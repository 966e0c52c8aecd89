"""The script of forms and its live example, as they are served."""

import base64
import gzip
import hashlib
import re

import pytest
from quart_trio import QuartTrio

from mailprobe.api.forms.script import (
    KEPT,
    OCTETS_GZIPPED_MAX,
    integrity,
    script_name,
    script_text,
    scripts,
)
from mailprobe.api.keys import Prefix, mint
from mailprobe.api.pages.examples import Places
from mailprobe.api.pages.views import FORM_EXAMPLE, SCRIPT, Documentation, pages_blueprint
from tests.docs.pages import ROOT

NAME = script_name(script_text())
PINNED = re.compile(r'integrity="([^"]*)"')


@pytest.fixture
def get():
    app = QuartTrio("pages", static_folder=None)
    places = Places("https://mailprobe.example.org", "")
    app.register_blueprint(pages_blueprint(Documentation(lambda: b"", lambda: "", places)))
    return app.test_client().get


async def test_the_script_is_small_and_any_page_may_pin_it(get):
    response = await get(SCRIPT)
    octets = await response.get_data()
    assert len(gzip.compress(octets, mtime=0)) <= OCTETS_GZIPPED_MAX
    digest = base64.b64encode(hashlib.sha384(octets).digest()).decode()
    assert integrity() == f"sha384-{digest}"
    assert response.content_type == "text/javascript; charset=utf-8"
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    again = await get(SCRIPT, headers={"If-None-Match": response.headers["ETag"]})
    assert again.status_code == 304


def test_the_page_of_forms_pins_this_script():
    assert PINNED.findall((ROOT / "docs/forms.md").read_text("utf-8")) == [integrity()]


def test_the_script_makes_no_markup_of_a_text():
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval", script_text()
    )


@pytest.mark.parametrize("prefix", ["pk_live_", "pk_test_"])
async def test_the_example_takes_a_publishable_key(get, prefix: Prefix):
    key = mint(prefix)
    response = await get(f"{FORM_EXAMPLE}?key={key}")
    text = await response.get_data(as_text=True)
    assert f'<script defer src="/{NAME}" data-key="{key}"' in text
    assert PINNED.findall(text)[2:] == [integrity()]  # after the style and the script of the page
    assert f"https://mailprobe.example.org/{NAME}" in text
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "pk_live_x",
        mint("sk_live_", lambda below: 7),
        '"><script>alert(1)</script>',
        "pk_live_%22%3E",
    ],
)
async def test_the_example_shows_nothing_else(get, key):
    text = await (await get(FORM_EXAMPLE, query_string={"key": key})).get_data(as_text=True)
    assert "<script>" not in text
    assert "sk_live_" not in text
    assert ('role="alert"' in text) is bool(key)


async def test_each_released_script_stays_under_its_name(get, monkeypatch):
    """A page that pinned it lives through an upgrade, whatever the current script is."""
    kept = sorted(KEPT.glob("*.js"))
    assert kept
    assert {path.name: script_name(path.read_text("utf-8")) for path in kept} == {
        path.name: path.name for path in kept
    }
    monkeypatch.setattr("mailprobe.api.forms.script.script_text", lambda: "another")
    scripts.cache_clear()
    try:
        for path in kept:
            response = await get(f"/{path.name}")
            assert await response.get_data() == path.read_bytes()
            assert response.headers["Access-Control-Allow-Origin"] == "*"
            assert "immutable" in response.headers["Cache-Control"]
        assert (await get(f"/{script_name('another')}")).status_code == 200
        assert (await get("/form.0123456789abcdef.js")).status_code == 404
    finally:
        scripts.cache_clear()


def test_the_pages_name_the_current_script_by_its_hash():
    assert f"/{NAME}" in (ROOT / "docs/forms.md").read_text("utf-8")
