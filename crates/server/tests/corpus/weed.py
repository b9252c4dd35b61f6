"""SeaweedFS as the store: one bucket, one key for all of it."""

import json
import socket
import time
import urllib.request
from contextlib import closing
from pathlib import Path

from processes import Process
from stores import S3

KEY_ID = "bucketwidekeyid0001"
SECRET = "bucketwidesecret-7c1f0d5be2"
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
    def __init__(self, program, home, bucket):
        sockets = [closing(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        ports = dict(zip(PORTS, (each.thing.getsockname()[1] for each in sockets)))
        for each in sockets:
            each.thing.close()
        folder = home.folder("weed")
        identities = {"identities": [
            identity("admin", "admin", "admin-secret", ["Admin", "Read", "Write", "List"]),
            identity("duck-server", KEY_ID, SECRET, [f"{right}:{bucket}" for right in ("Read", "Write", "List")]),
        ]}
        Path(folder, "identities.json").write_text(json.dumps(identities))
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
        endpoint = "http://%s:%d" % self.address
        answers(f"{endpoint}/healthz")
        S3(endpoint, "admin", "admin-secret").make(bucket)
        self.store = S3(endpoint, KEY_ID, SECRET)

    def stop(self):
        self.process.stop()


def identity(name, key_id, secret, actions):
    return {"name": name, "credentials": [{"accessKey": key_id, "secretKey": secret}], "actions": actions}


def answers(url, wait_s=60):
    ends = time.monotonic() + wait_s
    while True:
        try:
            return urllib.request.urlopen(url, timeout=2).read()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
