"""As much of HTTP as asking a DNS resolver takes: small POSTs, small answers, no sockets.

`one` is HTTP/1.1 (RFC 9112), `two` is HTTP/2 (RFC 9113). Both are told octets and say
what came of them; whoever holds the connection has the clocks. Whatever a server may
send, they either understand it or raise NotHttp, and then the connection is of no more use.
"""
