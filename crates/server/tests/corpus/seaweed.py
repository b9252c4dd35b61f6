"""The world with SeaweedFS's own catalog: OAuth2, and a bucket for each warehouse.

Its warehouses are buckets, whose names have no underscore, and ours are called `{prefix}-w_{workspace}`. So the tap before the
catalog is a gateway, too: it gives each warehouse a name and an id as Lakekeeper does, and says where it lies.
"""

import json
import secrets
import time
import uuid

import hostile
from cell import Cell, Place
from taps import CatalogTap, Passing
from weed import KEY_ID, SECRET, Weed, identity

PREFIX = "corpus"


class Seaweed(Cell):
    def begins(self):
        self.weed = Weed(self.weed_program, self.home, [identity(["Admin", "Read", "Write", "List", "Tagging"])])
        self.stops.append(self.weed)
        self.store, self.catalog_address = self.weed.store, self.weed.catalog
        self.catalog_url = "http://%s:%d" % self.catalog_address
        self.settings = {
            "auth": {"jwt_secret": secrets.token_hex(32), "service_token": secrets.token_hex(32)},
            "warehouse": {"prefix": PREFIX, "place": "catalog"},
            "catalog": {"client_id": KEY_ID, "client_secret": SECRET},
        }
        self.others = []

    def founds(self):
        self.a, self.b = (Place(f"{PREFIX}-w_{name}", f"tenant-{name}", "") for name in "ab")
        for place in (self.a, self.b):
            self.weed.store.table_bucket(place.bucket)
        self.catalog_token = self.logs_in(f"{self.catalog_url}/v1/oauth/tokens", KEY_ID, SECRET)
        self.ids = {str(uuid.uuid4()): place for place in (self.a, self.b)}
        # Its catalog answers before its filer does.
        ends = time.monotonic() + 60
        while True:
            try:
                return [self.asks_catalog("GET", f"{self.base(place)}/namespaces") for place in (self.a, self.b)]
            except OSError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)

    def base(self, place):
        return f"/v1/{place.bucket}"

    def opens(self, place):
        return hostile.catalog(self.catalog_url, self.catalog_token, place.bucket, self.store)

    # There are none but its tables', and those are read by the table's name only.
    readable = None

    def has_files(self, place, word, table):
        """A bucket of its takes nothing but a table's own files."""

    def poisons(self, made, metadata):
        """It keeps metadata to itself, so what is hostile is committed: the last snapshot, and where it takes that, the place."""
        path = f"{self.base(self.a)}/namespaces/ns/tables/{made.name()[-1]}"
        snapshot = {key: value for key, value in metadata["snapshots"][-1].items() if key != "parent-snapshot-id"}
        snapshot["timestamp-ms"] = int(time.time() * 1000)
        points = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
        updates = [{"action": "add-snapshot", "snapshot": snapshot}, points]
        self.asks_catalog("POST", path, {"requirements": [], "updates": updates})
        if metadata["location"] != made.location():
            move = [{"action": "set-location", "location": metadata["location"]}]
            try:
                self.asks_catalog("POST", path, {"requirements": [], "updates": move})
            except OSError:
                pass  # it refuses that itself

    def taps(self):
        return Gateway(self.catalog_address, self.ids)

    def told(self):
        uri = f"http://{self.catalog.address}/catalog"
        catalog = self.settings["catalog"] | {"uri": uri, "oauth2_uri": f"{uri}/v1/oauth/tokens"}
        return self.settings | {"catalog": catalog, "storage": self.weed.storage(self.store_tap.address)}

    def spelled(self, text):
        return text.replace("lakehouse/tenant", "tenant").replace("tenant_", "tenant-")


class Gateway(CatalogTap):
    def __init__(self, upstream, ids):
        super().__init__(upstream, Renaming)
        self.ids = ids


class Renaming(Passing):
    def onward(self):
        path = self.path.removeprefix("/catalog")
        for id, place in self.server.ids.items():
            path = path.replace(f"/v1/{id}", f"/v1/{place.bucket}").replace(f"warehouse={place.name}", f"warehouse={place.bucket}")
        return path

    def passes(self):
        place = self.server.ids.get(self.path.removeprefix("/management/v1/warehouse/"))
        if place:
            profile = {"type": "s3", "bucket": place.bucket, "key-prefix": None}
            self.answers(200, [("content-type", "application/json")], json.dumps({"storage-profile": profile}).encode())
        else:
            super().passes()

    do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = passes

    def looked_at(self, status, data):
        if status == 200 and "/v1/config?" in self.path:
            config = json.loads(data)
            bucket = config["overrides"]["prefix"]
            config["overrides"]["prefix"] = next(id for id, place in self.server.ids.items() if place.bucket == bucket)
            return json.dumps(config).encode()
        return super().looked_at(status, data)
