"""The world as scripts: mail hosts and DNS without sockets, for tests, the lab and the bench.

`hosts` is a mail host that talks over any stream, `troubles` how it can go
wrong, `personalities` the well-known characters, `names` the DNS, `world` all
of them behind the two interfaces through which the engine sees the world.
"""
