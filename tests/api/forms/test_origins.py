"""Origins: brought into the browser's form, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.forms.origins import ORIGINS_MAX, read_origin, read_origins


@pytest.mark.parametrize(
    ("written", "origin"),
    [
        ("https://shop.test", "https://shop.test"),
        (" HTTPS://Shop.Test/ ", "https://shop.test"),
        ("https://shop.test:443", "https://shop.test"),
        ("http://shop.test:80/", "http://shop.test"),
        ("https://shop.test:8443", "https://shop.test:8443"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("https://xn--bcher-kva.test", "https://xn--bcher-kva.test"),
    ],
)
def test_an_origin_is_read_as_browsers_write_it(written: str, origin: str) -> None:
    assert read_origin(written) == origin
    assert read_origin(origin) == origin


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "*", "https://*", "https://*.shop.test", "shop.test", "//shop.test", "https://",
        "https://shop.test/path", "https://shop.test?q", "https://shop.test#f", "https://a@shop.test",
        "https://shop.test:", "https://shop.test:99999", "https://shop test", "file:///etc",
        "https://shop.test,https://other.test", "https://shop.test https://other.test",
        "https://shop.test\r\nSet-Cookie: a=b", "https://shop.test\n", "https://shop\x00.test",
        "https://bücher.test", "https://shop.test\u2028", "javascript:alert(1)", "https://-shop.test",
        "https://[", "https://[::1", "https://" + "a" * 300,
    ],
)  # fmt: skip
def test_a_text_that_is_no_origin_is_refused(text: str) -> None:
    if text.strip() != text:  # a line end that a paste brings is not part of it
        assert read_origin(text) == text.strip()
        return
    with pytest.raises(ValueError, match="is not an origin"):
        read_origin(text)


@given(st.text(max_size=60) | st.builds("https://{}".format, st.text(max_size=40)))
def test_every_origin_that_is_read_can_stand_in_a_header(text: str) -> None:
    try:
        origin = read_origin(text)
    except ValueError:
        return
    assert origin.isascii()
    assert origin.isprintable()
    assert not set(origin) & set(' ,;*"')


def test_a_key_has_one_to_ten_origins_each_once() -> None:
    assert read_origins(["https://a.test", "https://A.test/"]) == ("https://a.test",)
    for texts in ([], [f"https://{n}.test" for n in range(ORIGINS_MAX + 1)]):
        with pytest.raises(ValueError, match="has 1 to 10 origins"):
            read_origins(texts)
