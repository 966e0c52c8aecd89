"""`python -m mailprobe.bench.lab SCENARIO SEED`: the lab as a child that ends with its parent."""

import sys

from .run import run

sys.exit(run(sys.argv[1], int(sys.argv[2]), until_eof=True))
