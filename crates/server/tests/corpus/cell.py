"""A world of its own: catalog, store, a server, two organisations, an attacker's listener.

Cells share nothing: what is seen in one was caused by its one statement. What differs between worlds, catalog and store, is in
`embedded.py` and `seaweed.py`; a tap stands before each of the two, and the server under attack knows them only by these.
"""

import http.client
import json
import re
import secrets
import subprocess
import sys
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import client
import hostile
import processes
from layers import program
from processes import Home, Process
from taps import Listener, StoreTap

LOG_LEVEL = "debug,hyper_util=info"
# The name that a session gives its one secret. The catalog's token stands in ATTACH and has none.
SESSION_SECRET = "storage"
WITHOUT_LANDLOCK = Path(__file__).resolve().parent.parent / "it/without_landlock.py"


@dataclass(frozen=True)
class Place:
    """Where a warehouse is: its name, and what is its own in the store. The prefix is empty where that is the bucket."""

    name: str
    bucket: str
    prefix: str

    def key(self, rest):
        return f"{self.prefix}/{rest}" if self.prefix else rest

    def url(self):
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def root(self):
        return f"{self.bucket}/{self.key('')}"


class Cell:
    """What all worlds have in common. A world's own are `begins`, `founds`, `base`, `opens`, `poisons`, `taps` and `told`."""

    # Files of B's that B may read by path.
    readable = "files/*.parquet"

    def __init__(self, number, server, weed, landlock=True, off=()):
        self.number, self.server, self.weed_program, self.landlock = number, Path(server).resolve(), weed, landlock
        # Layers that are taken off.
        self.off = off
        self.marker = f"mark{secrets.token_hex(8)}b"
        # What the files of this machine hold that no engine has business in.
        self.planted = f"file{secrets.token_hex(8)}m"
        self.home = Home()
        self.stops = []
        self.listener = Listener()
        self.weed = self.front = None
        # The logs of servers that have ended, and where in the first the attacks begin.
        self.ended, self.log_from = [], 0
        try:
            self.begins()
            self.founds()
            self.fills()
            self.catalog = self.taps()
            self.vends()
            self.store_tap = StoreTap(self.weed and self.weed.address)
            self.runtime = self.home.folder("runtime", 0o711)
            self.config = self.configured()
            self.serves()
        except BaseException:
            self.stop()
            raise

    def logs_in(self, url, client_id, client_secret):
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": client_secret}
        return json.load(urllib.request.urlopen(url, urllib.parse.urlencode(form).encode()))["access_token"]

    def asks_catalog(self, method, path, body=None):
        """The catalog's own answer, past the door."""
        connection = http.client.HTTPConnection(*self.catalog_address, timeout=30)
        headers = {"Authorization": f"Bearer {self.catalog_token}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body).encode() if body else None, headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        if response.status >= 300:
            raise OSError(f"{method} {path}: {response.status} {data[:300]!r}")
        return json.loads(data) if data else None

    def fills(self):
        """Both organisations' tables and files, and A's poisoned tables."""
        lake = self.opens(self.b)
        self.foreign = hostile.own_tables(lake, self.marker)
        hostile.named_tables(lake, self.marker)
        self.has_files(self.b, self.marker, self.foreign)
        self.settles()
        self.outside = self.home.folder("outside", 0o777)
        hostile.database(self.outside / "tenant_b.duckdb", self.planted)
        self.home.folder("outside/exp", 0o777)
        (self.outside / "exp/schema.sql").write_text(f"CREATE TABLE {self.planted} (i INTEGER);\n")
        (self.outside / "exp/load.sql").write_text("")

    def settles(self):
        """A's warehouse as it is at first, whatever was there."""
        lake = self.opens(self.a)
        for namespace in lake.list_namespaces():
            for name in lake.list_tables(namespace):
                lake.drop_table(name)
            lake.drop_namespace(namespace)
        for key in self.store.list(self.a.bucket):
            if f"{self.a.bucket}/{key}".startswith(self.a.root()):
                self.store.delete(self.a.bucket, key)
        own = hostile.own_tables(lake, "of A")
        self.has_files(self.a, "of A", own)
        hostile.Poison(lake, self.store, self.a, self.b, self.foreign, self.listener.address, self.poisons).write()

    def has_files(self, place, word, table):
        def put(name, data):
            self.store.put(place.bucket, place.key(f"files/{name}"), data)

        for name, data in hostile.files(word).items():
            put(name, data)
        put("x.duckdb", hostile.database(self.home.path / f"{place.name}.duckdb", word))
        # A manifest is Avro and holds the least and the greatest value of each column.
        manifest = table.current_snapshot().manifests(table.io)[0].manifest_path
        put("x.avro", self.store.get(*manifest.removeprefix("s3://").split("/", 1)))

    def vends(self):
        """Makes the catalog send whoever loads `p_vend` to the listener."""
        config = {"s3.endpoint": f"http://{self.listener.address}", "s3.access-key-id": "x", "s3.secret-access-key": "y"}
        granted = [{"prefix": self.a.url(), "config": config}]
        self.catalog.added["/tables/p_vend"] = {"config": config, "storage-credentials": granted}

    def configured(self):
        """The settings of the server under attack."""
        self.ledger = self.home.path / "deletes.jsonl"
        settings = self.told() | {"listen": "127.0.0.1:0", "runtime_dir": str(self.runtime)}
        settings["storage"]["ledger_path"] = str(self.ledger)
        # Everything that A's token grants: what the policy closes would be refused before it is tried.
        policy = self.home.path / "writes.toml"
        policy.write_text('write_target = "iceberg_native"\n')
        settings["writes"] = {"policy": str(policy)}
        worker = {}
        if not self.landlock or "sandbox" in self.off:
            worker["sandbox"] = "best-effort"
        if self.off:
            worker["program"] = str(program(self.home.path, self.server, self.off))
        settings["worker"] = settings.get("worker", {}) | worker
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if not isinstance(value, dict)]
        for section, values in settings.items():
            if isinstance(values, dict):
                lines += [f"\n[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
        file = self.home.path / "front.toml"
        file.write_text("\n".join(lines) + "\n")
        return file

    def serves(self):
        """Starts the server under attack."""
        command = [self.server, "serve", "--config", self.config, "--log-level", LOG_LEVEL]
        if not self.landlock:
            command = [sys.executable, WITHOUT_LANDLOCK, *command]
        self.front = Process(command, self.home.path / "front.log")
        self.catalog.watch.front = self.store_tap.watch.front = self.front.pid
        self.url = "http://" + re.search(r"address=(\S+)", self.front.logs(" ready address="))[1]
        self.tokens = {name: self.mints(name) for name in "ab"}

    def mints(self, workspace):
        command = [self.server, "token", "--write", "--workspace", workspace, "--config", self.config]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def secrets(self):
        """What must not be seen anywhere: name and text."""
        written = self.settings
        found = {
            "the JWT secret": written["auth"]["jwt_secret"],
            "the service token": written["auth"]["service_token"],
            "the catalog's client secret": written["catalog"]["client_secret"],
            "A's token": self.tokens["a"],
            "B's token": self.tokens["b"],
            "the test's catalog token": self.catalog_token,
        }
        found |= {f"catalog token {i}": token for i, token in enumerate(sorted(self.catalog.tokens))}
        if self.weed:
            found |= {"the bucket's key": self.weed.store.secret, "the bucket's key id": self.weed.store.key_id}
        return found

    def names(self, role):
        """What stands for each placeholder, and for the prefixes that the corpus spells."""
        return {
            "A": self.a.url(),
            "B": self.b.url(),
            "A_NAME": self.a.name,
            "B_NAME": self.b.name,
            "B_TOKEN": self.catalog_token,
            "LISTENER": f"http://{self.listener.address}",
            "LISTENER_ADDR": self.listener.address,
            "CATALOG": f"http://{self.catalog.address}/catalog",
            "CATALOG_ADDR": self.catalog.address,
            "STORE": f"http://{self.store_tap.address}",
            "STORE_ADDR": self.store_tap.address,
            "OUTSIDE": str(self.outside),
            "SPILL": self.spill(role),
            "CATALOG_SECRET": SESSION_SECRET,
            "STORE_SECRET": SESSION_SECRET,
        }

    def spelled(self, text):
        """The corpus's `tenant_a` and `tenant_b`, where the spelling is the attack, as this world's."""
        return text

    def spill(self, role):
        """The directory of A's newest worker of that role."""
        line = re.compile(rf'worker ready worker=(\d+) pid=\d+ warehouse={re.escape(self.a.name)} role="{role}"')
        found = line.findall(self.front.logged())
        folders = [path for number in found[-1:] for path in self.runtime.glob(f"*/w{number}")]
        return str(folders[0]) if folders else str(self.runtime / "w0")

    def forgets(self):
        """Ends A's engines: without all layers one statement's settings are there for the next."""
        line = re.compile(rf"worker ready worker=\d+ pid=(\d+) warehouse={re.escape(self.a.name)} ")
        for pid in line.findall(self.front.logged()):
            processes.kill(int(pid), "layers_off")

    def asks(self, who, sql, writes=False, timeout_ms=10_000, wait_s=15, shape="json"):
        body = {"sql": sql, "format": shape, "max_rows": 1000, "allow_writes": writes, "timeout_ms": timeout_ms}
        return client.ask(self.url, self.tokens[who], body, wait_s)

    def objects(self):
        """Everything in the store, and what changes with it."""
        found = {}
        for bucket in sorted({self.a.bucket, self.b.bucket}):
            found |= {f"{bucket}/{key}": state for key, state in self.store.list(bucket).items()}
        return found

    def catalog_state(self, place):
        """What the catalog says of a warehouse. How tables are is told by the store, which has all their metadata."""
        base, found = f"{self.base(place)}/namespaces", {}
        for levels in self.asks_catalog("GET", base)["namespaces"]:
            name = urllib.parse.quote("\x1f".join(levels))
            namespace = self.asks_catalog("GET", f"{base}/{name}")
            tables = self.asks_catalog("GET", f"{base}/{name}/tables")["identifiers"]
            found[".".join(levels)] = [namespace.get("properties"), sorted(each["name"] for each in tables)]
        return found

    def revives(self):
        """Another server in the place of one that has ended, or does not answer."""
        self.front.stop()
        self.ended.append(self.front.logged())
        self.front.log.unlink()
        self.serves()

    def stop(self):
        for each in (self.front, *reversed(self.stops)):
            if each:
                each.stop()
        self.home.remove()
