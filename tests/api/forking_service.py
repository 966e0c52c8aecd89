"""A process with all modules loaded that forks a new service for each line it reads.

    python -m tests.api.forking_service

It makes tests fast that kill a service often. Settings come from the environment. It
prints its port, and the tool server's if there is one. For each line it forks a service
and prints its pid once it serves. It reaps killed services, and kills the last one at
the end of its input. It owns the listening sockets, so that the ports stay the same.
"""

import os
import signal
import sys

import mailprobe.engine.dns.http2  # loaded here, so that no service has to load it again
import mailprobe.storage.sqlite.store  # noqa: F401
from mailprobe.api.cli.operator_store import read_settings
from mailprobe.api.cli.serve import prepare_store, serve_until_signal
from mailprobe.api.http.listeners import open_sockets
from mailprobe.api.quota.plans import read_plans
from mailprobe.api.serve import Listeners
from mailprobe.engine import load_rules_and_lists


def main(words: list[str]) -> None:
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
    main(sys.argv[1:])
