"""What a start need not wait for."""

import subprocess
import sys


def test_only_the_kind_of_store_that_is_opened_is_imported() -> None:
    script = (
        "import sys, trio\nfrom mailprobe import storage\n"
        "assert not {'mailprobe.storage.sqlite.memory', 'mailprobe.storage.sqlite.store', 'mailprobe.storage.postgres.store'} & set(sys.modules)\n"
        "async def main():\n"
        "    async with storage.open_store('memory:', secret_key=None): pass\n"
        "trio.run(main)\n"
        "assert 'mailprobe.storage.sqlite.memory' in sys.modules and 'mailprobe.storage.sqlite.store' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
