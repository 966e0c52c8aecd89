"""The database before it is opened: is it named with all that it needs, and does it answer?"""

import logging
import time
from typing import TYPE_CHECKING

from ..errors import CommandError, Misuse

if TYPE_CHECKING:
    from ..settings import Settings

log = logging.getLogger("mailprobe.serve")

DATABASE_WAIT_S = 60.0  # a server starts within it, and a promotion ends
DATABASE_TRY_S = 1.0


def check_database(settings: "Settings") -> None:
    """Raise Misuse for PostgreSQL without a secret key: it has no key file beside it."""
    from mailprobe.storage import is_postgres

    if is_postgres(settings.database) and settings.secret_key is None:
        raise Misuse(
            "MAILPROBE_DATABASE is a postgresql:// URL: it needs MAILPROBE_SECRET_KEY too, the same"
            " on every machine; create one with `openssl rand -base64 32`"
        )


def await_database(database: str) -> None:
    """Wait until PostgreSQL answers, which may start with us or be changing its primary.

    Raises CommandError after DATABASE_WAIT_S. What a wait does not mend is left to the start.
    """
    from mailprobe.storage import is_postgres, schema_state
    from mailprobe.storage.contract import StoreBroken, StoreUnavailable

    if not is_postgres(database):
        return
    until, is_waiting = time.monotonic() + DATABASE_WAIT_S, False
    while True:
        try:
            schema_state(database)
        except StoreBroken:
            return
        except StoreUnavailable as error:
            if time.monotonic() >= until:
                raise CommandError(str(error)) from error
            if not is_waiting:
                log.warning("waiting for the database: max_s=%d error=%s", DATABASE_WAIT_S, error)
            is_waiting = True
            time.sleep(DATABASE_TRY_S)
        else:
            return
