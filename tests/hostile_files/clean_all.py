"""Cleans every hostile file in this process, and writes a line of JSON about each.

    python -m tests.hostile_files.clean_all FOLDER

The process has 512 MiB of addresses, so that a file that takes more ends it. Each file has a
reader process with its own limits, which is forked from this process: to start Python for each
would be four fifths of the time.
"""

import json
import resource
import sys
import time
from pathlib import Path
from unittest.mock import patch

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.opening import ReadOptions
from mailprobe.api.reader import starting
from mailprobe.bench.lab.hostile_files import HostileFile, files
from tests.api.cli.test_clean import clean
from tests.api.reader.forked_reader import fork_reader

MEMORY_OCTETS_MAX = 512 << 20
UNPACKED_OCTETS_MAX = 16 << 20  # in the place of 1 GiB, which takes long to write


def cleaned(hostile: HostileFile, folder: Path) -> dict[str, object]:
    path, output = folder / hostile.file, folder / "output"
    path.write_bytes(hostile.make())
    order = Order(
        path,
        output.with_suffix(".xlsx" if path.suffix == ".xlsx" else ".csv"),
        ReadOptions(unpacked_octets_max=UNPACKED_OCTETS_MAX),
        force=True,
    )
    began_s = time.process_time()
    exit_code, message = 0, ""
    try:
        clean(order)
    except CommandError as error:
        exit_code, message = error.exit_code, error.message
    took_s = time.process_time() - began_s
    return {"name": hostile.name, "exit_code": exit_code, "message": message, "took_s": took_s}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_OCTETS_MAX, MEMORY_OCTETS_MAX))
    # fsync is the slowest part, and nothing is killed here
    with patch("os.fsync"), patch.object(starting, "spawn", fork_reader):
        for hostile in files():
            print(json.dumps(cleaned(hostile, Path(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()
