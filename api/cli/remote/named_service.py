"""Which service a command uses: the options' one, else the settings', else none."""

from typing import TYPE_CHECKING

from mailprobe.api.errors import Misuse

if TYPE_CHECKING:
    from mailprobe.api.settings import Settings


def named_service(
    server: str | None, key: str | None, settings: "Settings"
) -> tuple[str, str] | None:
    """The service's address and the key; None where this machine verifies. Raises Misuse.

    A key in the settings is no reason to use a service.
    """
    server = settings.server if server is None else server
    if server is None and key is None:
        return None
    if server is None:
        raise Misuse(
            "--key needs the service's address too: give --server, or set MAILPROBE_SERVER"
        )
    key = settings.key if key is None else key
    if key is None:
        raise Misuse("the service needs an API key: set MAILPROBE_KEY, or give --key")
    from mailprobe.api.cli.remote.http_source import check_server

    check_server(server, key)
    return server, key
