"""Stops a process of the bench's own. Imports nothing heavy."""

import signal
import subprocess


def stop_process(
    process: "subprocess.Popen[str] | subprocess.Popen[bytes]",
    patience_s: float,
    by: signal.Signals = signal.SIGTERM,
) -> None:
    """Send the signal, kill what has not ended after `patience_s`, and close the pipes."""
    process.send_signal(by)  # does nothing if it has ended
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
