"""How many of the engine's functions and files a reply takes on its way to its answer.

`python -m tests.reply_way -v` prints them. The figures may only shrink.
"""

import pytest

from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.bench.world.mail_host import EHLO_LINES
from tests.reply_way import reply_way

FILES = 28  # one more than before: a probe settles itself, and nobody else writes it


@pytest.mark.parametrize(
    ("ehlo_lines", "calls"), [(NO_PIPELINING, 96), (EHLO_LINES, 96)], ids=["in step", "pipelined"]
)
def test_a_reply_takes_no_longer_way_than_before(ehlo_lines, calls):
    way = reply_way(ehlo_lines)
    assert len(way.files) <= FILES
    assert len(way.calls) <= calls
