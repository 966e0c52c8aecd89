"""Other verifiers beside ours: the same addresses, the same mail hosts, the same resolver.

    python -m mailprobe.bench.peers install

puts them into environments of their own, at the versions pinned here. README.md says how
each is used and what is counted; bench/suites/peers.py makes figures of it.
"""
