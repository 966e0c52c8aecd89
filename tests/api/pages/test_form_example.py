"""The script of forms and its live example, as they are served."""

import base64
import gzip
import hashlib
import re

import pytest
from quart_trio import QuartTrio

from mailprobe.api.forms.script import OCTETS_GZIPPED_MAX, integrity, script_text
from mailprobe.api.keys import Prefix, mint
from mailprobe.api.pages.examples import Places
from mailprobe.api.pages.views import FORM_EXAMPLE, SCRIPT, Documentation, pages_blueprint
from tests.docs.pages import ROOT

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
    assert f'<script defer src="{SCRIPT}" data-key="{key}"' in text
    assert PINNED.findall(text)[1:] == [integrity()]  # after the page's own
    assert "https://mailprobe.example.org/form.js" in text
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
