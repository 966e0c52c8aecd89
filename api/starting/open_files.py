"""The limit of open files: each probe and each client is a socket."""

import contextlib


def raise_open_files() -> None:
    """Raise the limit of open files to the hard limit: each probe is a socket."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems refuse their own limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
