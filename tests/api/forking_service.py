"""A service that is killed often: a process that has everything loaded forks one at each word.

    python -m tests.api.forking_service

Settings come from the environment. It says its port, and the tool server's where it
has one, then for each line that it reads it forks a service and says its pid once that
serves; it reaps what was killed, and kills the last one when there are no more lines.
The listening sockets are its own, so the ports stay when a service dies.
"""

import os
import signal
import sys

import mailprobe.engine.dns.http2  # each service would load it anew, as the next
import mailprobe.storage.sqlite.store  # noqa: F401
from mailprobe.api.cli.account import read_settings
from mailprobe.api.cli.serve import prepare_store, serve_until_signal
from mailprobe.api.http.listeners import open_sockets
from mailprobe.api.quota.plans import read_plans
from mailprobe.api.serve import Listeners
from mailprobe.engine import load_rules_and_lists


def main() -> None:
    load_rules_and_lists()
    settings = read_settings()
    if settings.stripe_key is not None:
        from mailprobe.api.billing.client import Stripe

        Stripe(settings.stripe_key, settings.stripe_api_base)  # the SDK loads its parts when used
    plans = read_plans(settings.plans_file)
    listeners = Listeners(
        *(
            open_sockets(bind.host, bind.port)
            for bind in (settings.bind, settings.tools_bind)
            if bind
        )
    )
    prepare_store(settings, apart=True)
    print(*(sock.getsockname()[1] for sock in listeners.all()), flush=True)
    service = 0
    for _ in sys.stdin:
        if service:
            os.waitpid(service, 0)  # it was killed
        service = os.fork()
        if service == 0:
            try:
                serve_until_signal(
                    settings, plans, listeners, lambda: print(os.getpid(), flush=True)
                )
            finally:
                os._exit(1)
    if service:
        os.kill(service, signal.SIGKILL)


if __name__ == "__main__":
    main()
