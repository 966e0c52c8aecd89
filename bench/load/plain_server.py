"""A bare Quart application on hypercorn's own trio worker: what our server is measured against.

python -m mailprobe.bench.load.plain_server PORT
"""

import sys
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response
from quart_trio import QuartTrio


def main() -> None:
    app = QuartTrio("plain")
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]

    @app.get("/")
    async def nothing() -> Response:
        return Response(b"{}", content_type="application/json")

    trio.run(partial(serve, app, config, mode="asgi"))


if __name__ == "__main__":
    main()
