"""The service that a command uses: the options' one, else the settings', else none."""

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import Misuse

if TYPE_CHECKING:
    from ...settings import Settings


NO_BOUNCES = "--bounces is for this machine's own engine; a service is fed by 'mailprobe bounces' and POST /v1/bounces"


def named_service(
    server: str | None, key: str | None, settings: "Settings", bounces: Path | None
) -> tuple[str, str] | None:
    """The service's address and the key; None where this machine verifies. Raises Misuse.

    A key in the settings is no reason to use a service. `bounces` are for this machine alone.
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
    from .service import check_server

    check_server(server, key)
    if bounces is not None:
        raise Misuse(NO_BOUNCES)
    return server, key
