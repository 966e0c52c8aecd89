"""A scripted world: mail hosts and DNS without sockets, for tests, the lab and the bench.

`mail_host` serves SMTP over any stream, as `host_description` says; `faults` are the
ways in which a reply can go wrong; `host_profiles` are typical hosts by name; `zone` is
the DNS; `fake_network` puts them behind the two interfaces through which the engine
reaches the network.
"""
