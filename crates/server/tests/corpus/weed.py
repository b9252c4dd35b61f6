"""SeaweedFS: a store that checks signatures, with a catalog of its own."""

import json
import socket
import time
import urllib.request
from pathlib import Path

from processes import Process
from stores import S3

KEY_ID = "bucketwidekeyid0001"
SECRET = "bucketwidesecret-7c1f0d5be2"
ADMIN = {"accessKey": "admin", "secretKey": "admin-secret"}
PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "s3.port.iceberg",
)


class Weed:
    def __init__(self, program, home, identities):
        # It keeps its ports: a socket that is bound and never listens lets in who listens with SO_REUSEADDR, as SeaweedFS does,
        # and nobody who lets the system pick.
        self.kept = [kept_port() for _ in PORTS]
        ports = {name: each.getsockname()[1] for name, each in zip(PORTS, self.kept)}
        folder = home.folder("weed")
        admin = {"name": "admin", "credentials": [ADMIN], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        Path(folder, "identities.json").write_text(json.dumps({"identities": [admin, *identities]}))
        self.process = Process(
            [
                program, f"-logdir={folder}", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false",
                "-filer", "-s3", "-volume.max=20", "-master.volumeSizeLimitMB=64", "-s3.port.lance=0", f"-dir={folder}",
                f"-s3.config={folder}/identities.json", *(f"-{name}={port}" for name, port in ports.items()),
            ],
            folder / "weed.log",
            signal="KILL",
        )
        self.address = ("127.0.0.1", ports["s3.port"])
        self.catalog = ("127.0.0.1", ports["s3.port.iceberg"])
        endpoint = "http://%s:%d" % self.address
        try:
            answers(f"{endpoint}/healthz")
        except OSError as cause:
            raise OSError("SeaweedFS does not answer:\n" + Path(folder, "weed.log").read_text()[-2_000:]) from cause
        self.admin = S3(endpoint, ADMIN["accessKey"], ADMIN["secretKey"])
        self.store = S3(endpoint, KEY_ID, SECRET)

    def storage(self, address):
        """What a server is told of the store, which is known to it by this address."""
        return {
            "kind": "s3",
            "endpoint": f"http://{address}",
            "allow_http": True,
            "region": self.store.region,
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
        }

    def stop(self):
        self.process.stop()
        for each in self.kept:
            each.close()


def kept_port():
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    return kept


def identity(actions):
    """Who the server is."""
    return {"name": "duck-server", "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}], "actions": actions}


def rights(actions, buckets):
    return [f"{action}:{bucket}" for action in actions for bucket in buckets]


def answers(url, wait_s=60):
    ends = time.monotonic() + wait_s
    while True:
        try:
            return urllib.request.urlopen(url, timeout=2).read()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
