"""The standard streams, whatever they are.

A stream may be closed, full, or in an encoding that lacks a character. None of these is a
traceback: characters are escaped, and errors are told in one line.
"""

import errno
import os
import sys
from contextlib import suppress

from mailprobe.api.cli.errors import print_error

# Errors of a stream, which name no file. A pipe that was closed is none: its reader has enough.
STREAM_ERRORS = frozenset(
    {errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENXIO, errno.EINVAL}
)
DESCRIPTORS = (
    (0, "stdin", os.O_WRONLY),  # closed: each use fails, and no file that is opened gets its number
    (1, "stdout", os.O_RDONLY),
    (2, "stderr", os.O_WRONLY),  # nobody is there to be told
)


def open_standard_streams() -> None:
    """Make of each standard stream one that can be used, or says that it cannot."""
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
        if stream.errors == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def is_of_stream(error: OSError) -> bool:
    """Is it standard output that failed, as far as the error tells?"""
    return error.filename is None and error.errno in STREAM_ERRORS


def cannot_write(error: OSError) -> int:
    """Say that standard output failed, and let go of it; gives the exit code."""
    print_error(f"standard output cannot be written: {os.strerror(error.errno or 0)}")
    release_output()
    return 1


def release_output() -> None:
    """What Python still holds for standard output goes nowhere, and fails no more at its end."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        if nothing != 1:
            os.dup2(nothing, 1)
            os.close(nothing)
