"""The reader process. It reads lists, or makes one workbook, and ends.

It is started by `starting.spawn` or forked by `fork_server`, gets open files and a socket, and
imports nothing that opens connections.
"""

import gc
import os
import socket
import sys

from .bounds import (
    allow_cpu,
    end_with,
    leave_network,
    limit_process,
)
from .frames import (
    COMMAND_OCTETS_MAX,
    ORDER,
    BadFrame,
    Channel,
    MakeWorkbook,
    ReadAddresses,
    ReadRows,
    ReadUpload,
    decode_command,
)
from .reporting import reporting


def main() -> None:
    """The process of `clean`: its arguments are its time, who started it, and its file."""
    cpu_s, parent, file = map(int, sys.argv[1:4])
    end_with(parent)
    leave_network()
    limit_process()
    allow_cpu(cpu_s)
    gc.disable()  # reading makes no cycles that grow
    serve(0, file)
    os._exit(0)  # nothing is left to do, and the starter waits


def serve_orders(connection: socket.socket) -> None:
    """Serve one file after the other, until the last one or until the starter is gone."""
    while True:
        octets, files, _, _ = socket.recv_fds(connection, ORDER.size, 1)
        if not octets:
            return
        (file,) = files
        cpu_s, is_last = ORDER.unpack(octets)
        allow_cpu(cpu_s)
        serve(connection.fileno(), file)
        os.close(file)
        if is_last:
            return


def serve(descriptor: int, file: int) -> None:
    """Do with the file what the starter asks at the other end of this socket."""
    channel = Channel(descriptor, COMMAND_OCTETS_MAX)
    try:
        with reporting(channel, "it"):
            _serve(channel, file)
    except (ConnectionError, BadFrame):
        return  # the starter is gone, or not ours


def _serve(channel: Channel, file: int) -> None:
    body = channel.receive()
    if body is None:
        return
    match decode_command(body):
        case ReadUpload() as order:
            from .chunks import send_chunks

            with reporting(channel, order.name):
                send_chunks(channel, file, order)
        case ReadAddresses() as order:
            from .cleaning import serve_cleaning

            with reporting(channel, order.name):
                serve_cleaning(channel, file, order)
        case ReadRows() as order:
            from .rows import send_rows

            with reporting(channel, order.name):
                send_rows(channel, file, order)
        case MakeWorkbook() as order:
            from .workbook import make_workbook

            with reporting(channel, "the workbook"):
                make_workbook(channel, file, order)
