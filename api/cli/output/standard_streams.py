"""The standard streams, in whatever state the process gets them.

A stream may be closed, full, or in an encoding that lacks a character. None of these
shows a traceback: characters are escaped, and errors are printed in one line.
"""

import errno
import os
import sys
from contextlib import suppress

from ...errors import print_error

# Errors of a stream, without a file name. A closed pipe is not among them: `| head` is normal.
STREAM_ERRORS = frozenset(
    {errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENXIO, errno.EINVAL}
)
DESCRIPTORS = (
    (0, "stdin", os.O_WRONLY),  # if closed: each use fails, and no opened file gets its number
    (1, "stdout", os.O_RDONLY),
    (2, "stderr", os.O_WRONLY),  # its output is lost
)


def open_standard_streams() -> None:
    """Replace closed standard streams, and escape characters that their encoding lacks."""
    for descriptor, name, flags in DESCRIPTORS:
        try:
            os.fstat(descriptor)
        except OSError:
            nothing = os.open(os.devnull, flags)
            if nothing != descriptor:
                os.dup2(nothing, descriptor)
                os.close(nothing)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            stream = os.fdopen(descriptor, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        # In the locale C without UTF-8 it is surrogateescape, which escapes nothing that is written.
        if stream.errors in ("strict", "surrogateescape") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def is_of_stream(error: OSError) -> bool:
    """Whether the error looks like one of standard output."""
    return error.filename is None and error.errno in STREAM_ERRORS


def cannot_write(error: OSError) -> int:
    """Report that standard output failed, and release it. Returns the exit code."""
    print_error(f"standard output cannot be written: {os.strerror(error.errno or 0)}")
    release_output()
    return 1


def release_output() -> None:
    """Discard what Python has buffered for standard output, so that its flush cannot fail."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        if nothing != 1:
            os.dup2(nothing, 1)
            os.close(nothing)
