"""Messages for a list or a workbook that cannot be read or made: one line, and what to do."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC

from ..errors import CommandError
from ..listfile.survey import BadList
from ..reader.client import ReaderFault
from ..reader.frames import TooManyRows
from ..refusals import InvalidRequest, Overloaded, Refusal, StorageFull

log = logging.getLogger("mailprobe.lists")


@contextmanager
def refusing_trouble(begin: str, fix: str = InvalidRequest.fix) -> Iterator[None]:
    """Raise InvalidRequest, which begins so, for the list's fault.

    Raise Overloaded for ours, and StorageFull for a full disk.
    """
    try:
        yield
    except TooManyRows as error:
        raise InvalidRequest(f"{error.message}.", "lists", fix=error.fix) from None
    except CommandError as error:
        if isinstance(error, ReaderFault):
            log.error("reader failed: %s", error.traceback)
        what, parameter = error.message, ""
        if isinstance(error, BadList):
            what, parameter = error.what, error.parameter
        raise InvalidRequest(f"{begin}: {what}.", "lists", fix=fix, parameter=parameter) from None
    except OSError as error:
        log.error("reader failed: error=%s", error)
        raise refusal_of(error) from None


def refusal_of(error: OSError) -> Refusal:
    """What an error of this machine's files and processes is to a client."""
    return StorageFull() if error.errno in (ENOSPC, EDQUOT) else Overloaded()
