"""The reader process. It reads one list, or makes one workbook, and ends.

It is started by `client` or forked by `fork_server`, gets an open file and a socket, and
imports nothing that opens connections.
"""

import gc
import os
import sys

from mailprobe.api.reader.bounds import Bounds, bound_process, end_with, leave_network
from mailprobe.api.reader.frames import (
    COMMAND_OCTETS_MAX,
    BadFrame,
    Channel,
    MakeWorkbook,
    ReadAddresses,
    ReadUpload,
    decode_command,
)
from mailprobe.api.reader.reporting import reporting


def main() -> None:
    """The process: its arguments are its time, and who started it."""
    cpu_s, wall_s, parent = map(int, sys.argv[1:4])
    end_with(parent)
    leave_network()
    bound_process(Bounds(cpu_s, wall_s or None))
    gc.disable()  # reading makes no cycles that grow
    serve(0)
    os._exit(0)  # nothing is left to do, and the starter waits


def serve(descriptor: int) -> None:
    """Do what the starter asks at the other end of this socket, until it is gone."""
    channel = Channel(descriptor, COMMAND_OCTETS_MAX)
    try:
        with reporting(channel, "it"):
            _serve(channel)
    except (ConnectionError, BadFrame):
        return  # the starter is gone, or not ours


def _serve(channel: Channel) -> None:
    body = channel.receive()
    if body is None:
        return
    match decode_command(body):
        case ReadUpload() as order:
            from mailprobe.api.reader.chunks import send_chunks

            with reporting(channel, order.name):
                send_chunks(channel, order)
        case ReadAddresses() as order:
            from mailprobe.api.reader.cleaning import serve_cleaning

            with reporting(channel, order.name):
                serve_cleaning(channel, order)
        case MakeWorkbook() as order:
            from mailprobe.api.reader.workbook import make_workbook

            with reporting(channel, "the workbook"):
                make_workbook(channel, order)
