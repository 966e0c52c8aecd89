"""Which URLs name an endpoint."""

from random import Random

import pytest

from mailprobe.engine.dns.doh import check_doh_url
from mailprobe.engine.dns.routes import open_routes
from mailprobe.engine.settings import EngineSettings


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://9.9.9.9/dns-query", "https://9.9.9.9/dns-query"),
        ("https://9.9.9.9:8443/q?x=1", "https://9.9.9.9:8443/q?x=1"),
        ("HTTPS://9.9.9.9/Q", "https://9.9.9.9/Q"),
        ("https://[2620:fe::fe]/dns-query", "https://[2620:fe::fe]/dns-query"),
        ("https://[2620:FE:0::FE]:444/", "https://[2620:fe::fe]:444/"),
        ("http://127.0.0.1:8053/q", "http://127.0.0.1:8053/q"),
        ("http://127.9.9.9/q", "http://127.9.9.9/q"),
        ("http://[::1]:8053/q", "http://[::1]:8053/q"),
        ("http://localhost:8053/q", "http://127.0.0.1:8053/q"),
        ("https://LOCALHOST/q", "https://127.0.0.1/q"),
    ],
)
def test_an_endpoint_named_by_address(url, asked):
    assert check_doh_url(url) == asked


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "https://address/path"),
        ("9.9.9.9", "https://address/path"),
        ("ftp://9.9.9.9/", "https://address/path"),
        ("https:///dns-query", "https://address/path"),
        ("https://dns.quad9.net/dns-query", "not as dns.quad9.net"),
        ("https://localhost.example/q", "not as localhost.example"),
        ("https://2130706433/q", "by its address"),
        ("https://0x7f.1/q", "by its address"),
        ("https://127.1/q", "by its address"),
        ("https://127.0.0.1./q", "by its address"),
        ("https://９.９.９.９/q", "beyond ASCII"),
        ("http://9.9.9.9/q", "loopback addresses alone"),
        ("http://10.0.0.1/q", "loopback addresses alone"),
        ("http://[::ffff:127.0.0.1]/q", "loopback addresses alone"),
        ("https://me:secret@9.9.9.9/q", "neither a user"),
        ("https://9.9.9.9/q#there", "neither a user"),
        ("https://9.9.9.9:99999/q", "it takes https"),
        ("https://[::1/q", "it takes https"),
        ("https://[fe80::1%25eth0]/q", "by its address"),
        ("https://9.9.9.9/a b", "no spaces"),
        ("https://9.9.9.9/\nq", "no spaces"),
    ],
)
def test_an_endpoint_url_that_is_rejected(url, words):
    with pytest.raises(ValueError, match=words):
        check_doh_url(url)


async def test_routes_do_not_open_on_a_named_endpoint():
    with pytest.raises(ValueError, match="by its address"):
        async with open_routes(EngineSettings(doh_urls=("https://dns.test/q",)), rng=Random(1)):
            pass
