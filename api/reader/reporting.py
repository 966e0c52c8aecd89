"""Reports what goes wrong in a reader process to its starter."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import CommandError, Misuse
from ..listfile.survey import BadList
from .bounds import NO_MEMORY
from .frames import (
    HINT_CHARACTERS_MAX,
    MESSAGE_CHARACTERS_MAX,
    TRACEBACK_CHARACTERS_MAX,
    Broken,
    Channel,
    Failed,
    Refused,
    TooManyRows,
)


@contextmanager
def reporting(channel: Channel, name: str) -> Iterator[None]:
    """Report what goes wrong in the block to the starter."""
    try:
        yield
    except ConnectionError:
        raise
    except CommandError as error:
        fix = error.fix if isinstance(error, TooManyRows) else None
        message, hint, parameter = error.message, "", ""
        if isinstance(error, BadList):
            message, hint, parameter = error.what, error.hint[:HINT_CHARACTERS_MAX], error.parameter
        message = message[:MESSAGE_CHARACTERS_MAX]
        channel.send(Refused(message, isinstance(error, Misuse), fix, hint, parameter))
    except OSError as error:
        channel.send(Failed(error.errno or 0))
    except MemoryError:
        channel.send(Refused(f"{name} {NO_MEMORY}"))
    except Exception:
        channel.send(Broken(traceback.format_exc()[-TRACEBACK_CHARACTERS_MAX:]))
