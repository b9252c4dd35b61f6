"""A world of its own: catalog, store, a server, two organisations, an attacker's listener.

`duck-server dev` gives the embedded catalog. The server under attack is a second one, `duck-server serve`, on the same catalog
and store, so that a tap can stand before each of them. Cells share nothing: what is seen in one was caused by its one statement.
"""

import http.client
import json
import re
import secrets
import subprocess
import tomllib
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import client
import hostile
from processes import Home, Process
from stores import Folder
from taps import CatalogTap, Listener, StoreTap
from weed import KEY_ID, SECRET, Weed

BUCKET = "lakehouse"
LOG_LEVEL = "debug,hyper_util=info"
# The name that a session gives its one secret. The catalog's token stands in ATTACH and has none.
SESSION_SECRET = "storage"


@dataclass(frozen=True)
class Place:
    bucket: str
    prefix: str

    def url(self):
        return f"s3://{self.bucket}/{self.prefix}"


class Cell:
    def __init__(self, number, kind, server, weed):
        self.number, self.kind, self.server = number, kind, Path(server).resolve()
        self.marker = f"mark{secrets.token_hex(8)}b"
        self.home = Home()
        self.stops = []
        self.listener = Listener()
        self.weed = Weed(weed, self.home, BUCKET) if kind == "s3" else None
        if self.weed:
            self.stops.append(self.weed)
        self.front = None
        # The logs of servers that have ended, and where in the first the attacks begin.
        self.ended, self.log_from = [], 0
        try:
            self.begins()
            self.founds()
            self.serves()
        except BaseException:
            self.stop()
            raise

    def begins(self):
        """The embedded catalog and the store, both past every door."""
        environment = {}
        if self.weed:
            environment = {
                "LAKEHOUSE_S3_ENDPOINT": self.weed.store.endpoint,
                "LAKEHOUSE_S3_ACCESS_KEY_ID": KEY_ID,
                "LAKEHOUSE_S3_SECRET_ACCESS_KEY": SECRET,
                "LAKEHOUSE_S3_REGION": self.weed.store.region,
            }
        folder = self.home.folder("dev")
        command = [self.server, "dev", "--json", "--port", "0", "--dir", folder, "--log-level", "warn"]
        dev = Process(command, self.home.path / "dev.log", environment=environment)
        self.stops.append(dev)
        line = json.loads(dev.line())
        self.catalog_url = line["catalog_url"]
        self.settings = tomllib.loads((folder / "duck-server.toml").read_text())
        self.store = self.weed.store if self.weed else Folder(folder / "store")
        self.catalog_token = self.logs_in()
        self.prefix = f"{self.settings['warehouse']['prefix']}-w"
        self.others = list(line["warehouses"].values())

    def logs_in(self):
        catalog = self.settings["catalog"]
        form = {"grant_type": "client_credentials", "client_id": catalog["client_id"], "client_secret": catalog["client_secret"]}
        url = f"{self.catalog_url}/v1/oauth/tokens"
        return json.load(urllib.request.urlopen(url, urllib.parse.urlencode(form).encode()))["access_token"]

    def asks_catalog(self, method, path, body=None):
        """The catalog's own answer, past the door."""
        address = urllib.parse.urlsplit(self.catalog_url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        headers = {"Authorization": f"Bearer {self.catalog_token}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body).encode() if body else None, headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        if response.status >= 300:
            raise OSError(f"{method} {path}: {response.status} {data[:300]!r}")
        return json.loads(data) if data else None

    def founds(self):
        """Two warehouses with tables and files, and A's poisoned tables."""
        self.a, self.b = (Place(BUCKET, f"{self.prefix}_{name}") for name in "ab")
        for place in (self.a, self.b):
            profile = {"type": "s3", "bucket": place.bucket, "key-prefix": place.prefix}
            self.asks_catalog("POST", "/management/v1/warehouse", {"warehouse-name": place.prefix, "storage-profile": profile})
        lake = self.opens(self.b)
        self.foreign = hostile.own_tables(lake, self.marker)
        hostile.named_tables(lake, self.marker)
        self.has_files(self.b, self.marker, self.foreign)
        self.settles()
        outside = self.home.folder("outside", 0o777)
        hostile.database(outside / "tenant_b.duckdb", self.marker)
        self.home.folder("outside/exp", 0o777)
        (outside / "exp/schema.sql").write_text(f"CREATE TABLE {self.marker} (i INTEGER);\n")
        (outside / "exp/load.sql").write_text("")
        self.outside = outside

    def settles(self):
        """A's warehouse as it is at first, whatever was there."""
        for key in self.store.list(self.a.bucket):
            if key.startswith(f"{self.a.prefix}/"):
                self.store.delete(self.a.bucket, key)
        lake = self.opens(self.a)
        for namespace in lake.list_namespaces():
            for name in lake.list_tables(namespace):
                lake.drop_table(name)
            lake.drop_namespace(namespace)
        own = hostile.own_tables(lake, "of A")
        self.has_files(self.a, "of A", own)
        hostile.Poison(lake, self.store, self.a, self.b, self.foreign, self.listener.address).write()

    def opens(self, place):
        return hostile.catalog(self.catalog_url, self.catalog_token, place.prefix, self.store)

    def has_files(self, place, word, table):
        hostile.files(self.store, place, word)
        database = hostile.database(self.home.path / f"{place.prefix}.duckdb", word)
        self.store.put(place.bucket, f"{place.prefix}/files/x.duckdb", database)
        # A manifest is Avro and holds the least and the greatest value of each column.
        manifest = table.current_snapshot().manifests(table.io)[0].manifest_path
        avro = self.store.get(*manifest.removeprefix("s3://").split("/", 1))
        self.store.put(place.bucket, f"{place.prefix}/files/x.avro", avro)

    def serves(self):
        """Starts the server under attack."""
        address = urllib.parse.urlsplit(self.catalog_url)
        if self.front is None:
            self.catalog = CatalogTap((address.hostname, address.port))
            config = {"s3.endpoint": f"http://{self.listener.address}", "s3.access-key-id": "x", "s3.secret-access-key": "y"}
            granted = [{"prefix": self.a.url(), "config": config}]
            self.catalog.added["/tables/p_vend"] = {"config": config, "storage-credentials": granted}
            self.store_tap = StoreTap(self.weed and self.weed.address)
            self.runtime = self.home.folder("runtime", 0o711)
            self.config = self.configured()
        command = [self.server, "serve", "--config", self.config, "--log-level", LOG_LEVEL]
        self.front = Process(command, self.home.path / "front.log")
        self.catalog.watch.front = self.store_tap.watch.front = self.front.pid
        self.url = "http://" + re.search(r"address=(\S+)", self.front.logs(" ready address="))[1]
        self.tokens = {name: self.mints(name) for name in "ab"}

    def configured(self):
        settings = json.loads(json.dumps(self.settings))
        settings["listen"] = "127.0.0.1:0"
        settings["runtime_dir"] = str(self.runtime)
        settings["catalog"]["uri"] = f"http://{self.catalog.address}/catalog"
        settings["catalog"]["oauth2_uri"] = f"http://{self.catalog.address}/catalog/v1/oauth/tokens"
        self.ledger = self.home.path / "deletes.jsonl"
        settings["storage"]["ledger_path"] = str(self.ledger)
        if self.weed:
            settings["storage"] = {
                "kind": "s3", "endpoint": f"http://{self.store_tap.address}", "allow_http": True,
                "region": self.weed.store.region, "access_key_id": KEY_ID, "secret_access_key": SECRET,
                "ledger_path": str(self.ledger),
            }
        top = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if not isinstance(value, dict)]
        for section, values in settings.items():
            if isinstance(values, dict):
                top += [f"\n[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
        file = self.home.path / "front.toml"
        file.write_text("\n".join(top) + "\n")
        return file

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
            found |= {"the bucket's key": SECRET, "the bucket's key id": KEY_ID}
        return found

    def names(self, role):
        """What stands for each placeholder."""
        return {
            "A": self.a.url(),
            "B": self.b.url(),
            "A_NAME": self.a.prefix,
            "B_NAME": self.b.prefix,
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
            "PREFIX": self.prefix,
        }

    def spill(self, role):
        """The directory of A's newest worker of that role."""
        line = re.compile(rf'worker ready worker=(\d+) pid=\d+ warehouse={re.escape(self.a.prefix)} role="{role}"')
        found = line.findall(self.front.logged())
        folders = [path for number in found[-1:] for path in self.runtime.glob(f"*/w{number}")]
        return str(folders[0]) if folders else str(self.runtime / "w0")

    def asks(self, who, sql, writes=False, timeout_ms=10_000, wait_s=15, shape="json", **more):
        body = {"sql": sql, "format": shape, "max_rows": 1000, "allow_writes": writes, "timeout_ms": timeout_ms, **more}
        return client.ask(self.url, self.tokens[who], body, wait_s)

    def catalog_state(self, place):
        """What the catalog says of a warehouse. Where tables are is told by the store, which has all their metadata."""
        prefix = self.asks_catalog("GET", f"/catalog/v1/config?warehouse={place.prefix}")["defaults"]["prefix"]
        base, found = f"/catalog/v1/{prefix}/namespaces", {}
        for levels in self.asks_catalog("GET", base)["namespaces"]:
            name = urllib.parse.quote("\x1f".join(levels))
            namespace = self.asks_catalog("GET", f"{base}/{name}")
            tables = self.asks_catalog("GET", f"{base}/{name}/tables")["identifiers"]
            found[".".join(levels)] = [namespace.get("properties"), sorted(each["name"] for each in tables)]
        return found

    def revives(self):
        """Another server in the place of one that has ended."""
        self.front.stop()
        self.ended.append(self.front.logged())
        self.front.log.unlink()
        self.serves()

    def stop(self):
        for each in (self.front, *reversed(self.stops)):
            if each:
                each.stop()
        self.home.remove()
