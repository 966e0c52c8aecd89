"""Requests as octets."""

GET = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked"


def post(*fields: str, path: str = "/", body: str = "") -> str:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: a.test", *fields, "", body])
