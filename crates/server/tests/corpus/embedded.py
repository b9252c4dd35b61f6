"""Worlds with the embedded catalog, and a folder or SeaweedFS as the store: one bucket, one key, a prefix for each warehouse.

`duck-server dev` gives the catalog. The server under attack is a second one, `duck-server serve`, on the same catalog and store.
"""

import json
import re
import tomllib
import urllib.parse

import hostile
from cell import Cell, Place
from processes import Process
from stores import Folder
from taps import CatalogTap
from weed import Weed, identity, rights

BUCKET = "lakehouse"
# `tenant_b`, `tenant',chr(95),'b`, `tenant\x5Fb`
SPELLED = re.compile(r"\btenant(?=_[ab]\b|',chr\(95\)|\\x5F)")


class Local(Cell):
    def begins(self):
        """The embedded catalog and the store, both past every door."""
        folder = self.home.folder("dev")
        command = [self.server, "dev", "--json", "--port", "0", "--dir", folder, "--log-level", "warn"]
        dev = Process(command, self.home.path / "dev.log", environment=self.environment())
        self.stops.append(dev)
        line = json.loads(dev.line())
        self.catalog_url = line["catalog_url"]
        address = urllib.parse.urlsplit(self.catalog_url)
        self.catalog_address = (address.hostname, address.port)
        self.settings = tomllib.loads((folder / "duck-server.toml").read_text())
        self.store = self.weed.store if self.weed else Folder(folder / "store")
        login = self.settings["catalog"]
        self.catalog_token = self.logs_in(login["oauth2_uri"], login["client_id"], login["client_secret"])
        self.prefix = f"{self.settings['warehouse']['prefix']}-w"
        self.others = list(line["warehouses"].values())

    def environment(self):
        return {}

    def founds(self):
        names = [f"{self.prefix}_{name}" for name in "ab"]
        self.a, self.b = (Place(name, BUCKET, name) for name in names)
        for place in (self.a, self.b):
            profile = {"type": "s3", "bucket": place.bucket, "key-prefix": place.prefix}
            self.asks_catalog("POST", "/management/v1/warehouse", {"warehouse-name": place.name, "storage-profile": profile})

    def base(self, place):
        config = self.asks_catalog("GET", f"/catalog/v1/config?warehouse={place.name}")
        return f"/catalog/v1/{config['defaults']['prefix']}"

    def opens(self, place):
        return hostile.catalog(self.catalog_url, self.catalog_token, place.name, self.store)

    def poisons(self, made, metadata):
        """The catalog answers with a table's metadata as it lies in the store, so that is where it is written."""
        self.store.put(*made.metadata_location.removeprefix("s3://").split("/", 1), json.dumps(metadata).encode())

    def taps(self):
        return CatalogTap(self.catalog_address)

    def told(self):
        settings = json.loads(json.dumps(self.settings))
        settings["catalog"]["uri"] = f"http://{self.catalog.address}/catalog"
        settings["catalog"]["oauth2_uri"] = f"http://{self.catalog.address}/catalog/v1/oauth/tokens"
        return settings

    def spelled(self, text):
        return SPELLED.sub(self.prefix, text)


class S3(Local):
    """The shape of production."""

    def begins(self):
        identities = [identity(rights(["Read", "Write", "List"], [BUCKET]))]
        self.weed = Weed(self.weed_program, self.home, identities)
        self.stops.append(self.weed)
        self.weed.admin.make(BUCKET)
        super().begins()

    def environment(self):
        store = self.weed.store
        return {
            "LAKEHOUSE_S3_ENDPOINT": store.endpoint,
            "LAKEHOUSE_S3_ACCESS_KEY_ID": store.key_id,
            "LAKEHOUSE_S3_SECRET_ACCESS_KEY": store.secret,
            "LAKEHOUSE_S3_REGION": store.region,
        }

    def told(self):
        return super().told() | {"storage": self.weed.storage(self.store_tap.address)}
