"""Reports what goes wrong in a reader process to its starter."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from mailprobe.api.errors import CommandError, Misuse
from mailprobe.api.reader.bounds import NO_MEMORY
from mailprobe.api.reader.frames import (
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
        message = error.message[:MESSAGE_CHARACTERS_MAX]
        fix = error.fix if isinstance(error, TooManyRows) else None
        channel.send(Refused(message, isinstance(error, Misuse), fix))
    except OSError as error:
        channel.send(Failed(error.errno or 0))
    except MemoryError:
        channel.send(Refused(f"{name} {NO_MEMORY}"))
    except Exception:
        channel.send(Broken(traceback.format_exc()[-TRACEBACK_CHARACTERS_MAX:]))
