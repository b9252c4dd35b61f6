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
        for _ in range(3):
            # Somebody else may take a port between the look for a free one and its use.
            if self.start(program, home, identities):
                return
            self.stop()
        raise OSError("three times others took one of nine free ports")

    def start(self, program, home, identities):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
        ports = {name: each.getsockname()[1] for name, each in zip(PORTS, sockets)}
        for each in sockets:
            each.close()
        folder = home.folder(f"weed-{ports['master.port']}")
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
        log = Path(folder, "weed.log")
        if not answers(f"{endpoint}/healthz", lambda: "address already in use" in log.read_text()):
            return False
        self.admin = S3(endpoint, ADMIN["accessKey"], ADMIN["secretKey"])
        self.store = S3(endpoint, KEY_ID, SECRET)
        return True

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


def identity(actions):
    """Who the server is."""
    return {"name": "duck-server", "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}], "actions": actions}


def rights(actions, buckets):
    return [f"{action}:{bucket}" for action in actions for bucket in buckets]


def answers(url, lost=lambda: False, wait_s=60):
    """Whether there is an answer before it is lost."""
    ends = time.monotonic() + wait_s
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).read()
            return True
        except OSError:
            if lost():
                return False
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
