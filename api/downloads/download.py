"""Downloads one file over HTTP, with bounds on its octets and its time."""

import httpx
import trio


class DownloadRefused(Exception):
    """A download is not used; the message says why, in one line."""


async def download(
    url: str, *, octets_max: int, within_s: float, redirects: bool = False, by_proxy: bool = False
) -> bytes:
    """Return what the URL has. Raises DownloadRefused.

    `by_proxy` uses the proxy and the certificates that the environment names (HTTPS_PROXY,
    SSL_CERT_FILE).
    """
    octets = bytearray()
    try:
        with trio.move_on_after(within_s) as reading:
            async with (
                httpx.AsyncClient(
                    trust_env=by_proxy, timeout=within_s, follow_redirects=redirects
                ) as client,
                client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response,
            ):
                if response.status_code != 200:
                    raise DownloadRefused(f"the server answers {response.status_code}")
                async for part in response.aiter_raw():  # a .gz file stays one
                    octets += part
                    if len(octets) > octets_max:
                        reading.cancel()  # ends httpx's generators, which `raise` would leave
        if len(octets) > octets_max:
            raise DownloadRefused(f"it has more than {size_of(octets_max)}")
        if reading.cancelled_caught:
            raise DownloadRefused(f"it took more than {within_s:g} s")
    # ImportError and ValueError: a proxy that the environment names and httpx cannot use. OSError:
    # a file of certificates. A name that no resolver takes is a UnicodeError.
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, OSError, ValueError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise DownloadRefused(f"it cannot be downloaded: {words}") from None
    return bytes(octets)


def size_of(octets: int) -> str:
    """The limit in KiB or MiB."""
    return f"{octets >> 20} MiB" if octets >= 1 << 20 else f"{octets >> 10} KiB"
