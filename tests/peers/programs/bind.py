"""BIND as a DNS-over-HTTPS resolver, authoritative for every zone that it knows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import Program, make_folder, open_program

# No query leaves this machine: BIND serves the root zone too, with nothing but the given zones.
CONFIGURATION = """
tls peer {{ key-file "/peers/{name}/key"; cert-file "/peers/{name}/chain"; }};
http peer {{ endpoints {{ "/dns-query"; }}; listener-clients 300; streams-per-connection 100; }};
options {{
  directory "/peers/{name}";
  pid-file "/peers/{name}/pid";
  session-keyfile "/peers/{name}/session";
  managed-keys-directory "/peers/{name}";
  listen-on port {port} tls peer http peer {{ 127.0.0.1; }};
  listen-on-v6 {{ none; }};
  recursion yes;
  allow-recursion {{ any; }};
  dnssec-validation no;
  empty-zones-enable no;
  notify no;
  max-cache-size 64M;
  max-records-per-type 0;
}};
controls {{ }};
logging {{ category lame-servers {{ null; }}; }};
zone "." {{ type primary; file "root.zone"; }};
zone "broken.test" {{ type primary; file "missing.zone"; }};
zone "lame.test" {{ type forward; forward only; forwarders {{ 127.0.0.250 port {port}; }}; }};
"""
ZONE = 'zone "{name}" {{ type primary; file "{name}.zone"; }};\n'
HEAD = """$TTL 300
@ SOA ns.servers. hostmaster.servers. 1 7200 3600 86400 300
@ NS ns.servers.
"""
ROOT_RECORDS = "broken.test. NS ns.servers.\nlame.test. NS ns.servers.\nns.servers. A 127.0.0.1\n"


@dataclass(frozen=True)
class Bind:
    """A configured BIND. `running` starts it; it can be started again."""

    name: str
    url: str
    authority: Path
    port: int
    zones: tuple[str, ...]

    @contextmanager
    def running(self) -> Iterator[Program]:
        command = ["/usr/sbin/named", "-c", f"/peers/{self.name}/named.conf", "-g", "-n", "2"]
        with open_program(self.name, command) as program:
            program.wait_for_port(self.port)
            for name in self.zones:
                program.wait_for_log(f"zone {name}/IN: loaded")
            yield program


def prepare_bind(zones: Mapping[str, str], name: str = "bind") -> Bind:
    """Write the configuration and the zones: by name, the records as in a zone file."""
    folder = make_folder(name)
    port = free_port()
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "authority"))
    issued.private_key_pem.write_to_path(str(folder / "key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "chain"))
    (folder / "root.zone").write_text(HEAD + ROOT_RECORDS)
    configuration = CONFIGURATION.format(name=name, port=port)
    for zone, records in zones.items():
        (folder / f"{zone}.zone").write_text(HEAD + records)
        configuration += ZONE.format(name=zone)
    (folder / "named.conf").write_text(configuration)
    url = f"https://127.0.0.1:{port}/dns-query"
    return Bind(name, url, folder / "authority", port, tuple(zones))
