"""What is said of a service that cannot be reached."""

import ssl

import httpx

from mailprobe.api.cli.remote.http_responses import reason_of


def test_an_error_without_words_has_those_of_its_cause() -> None:
    """httpx's error of a failed handshake is empty: its class was all that was said."""
    refused = httpx.ConnectError("")
    refused.__cause__ = ssl.SSLError(1, "wrong version number")
    assert "wrong version number" in reason_of(refused)
    assert reason_of(httpx.ConnectError("Connection refused")) == "Connection refused"
    assert reason_of(httpx.ReadTimeout("")) == "ReadTimeout"
    unknown = httpx.ConnectError("[Errno -2] Name or service not known")
    assert reason_of(unknown) == "Name or service not known"
