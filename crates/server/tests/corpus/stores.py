"""The object store, past the server: what lies in it, and hostile hands on it."""

import hashlib
import hmac
import http.client
import json
import os
import time
import xml.etree.ElementTree as xml
from pathlib import Path
from urllib.parse import quote, urlsplit


class Folder:
    """Buckets as folders, as the storage door serves them in development."""

    def __init__(self, root):
        self.root = Path(root)

    def list(self, bucket):
        """Every key, and what changes when the object does."""
        found, root = {}, self.root / bucket
        for folder, _, files in os.walk(root):
            for name in files:
                path = Path(folder, name)
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                found[str(path.relative_to(root))] = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
        return found

    def get(self, bucket, key):
        return (self.root / bucket / key).read_bytes()

    def put(self, bucket, key, data):
        path = self.root / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def delete(self, bucket, key):
        (self.root / bucket / key).unlink(missing_ok=True)

    def pyiceberg(self):
        return {"py-io-impl": "hostile.FolderIO", "folder": str(self.root)}


class S3:
    """A store that speaks S3, asked with a key for the whole bucket."""

    def __init__(self, endpoint, key_id, secret, region="us-east-1"):
        self.endpoint, self.key_id, self.secret, self.region = endpoint, key_id, secret, region

    def list(self, bucket):
        found, token = {}, None
        while True:
            words = {"list-type": "2", "max-keys": "1000"}
            if token:
                words["continuation-token"] = token
            page = xml.fromstring(self.ask("GET", f"/{bucket}", words))
            space = page.tag[: page.tag.index("}") + 1] if "}" in page.tag else ""
            for each in page.iter(f"{space}Contents"):
                key, *state = (each.findtext(f"{space}{name}", "") for name in ("Key", "Size", "ETag", "LastModified"))
                found[key] = " ".join(state)
            token = page.findtext(f"{space}NextContinuationToken")
            if not token:
                return found

    def get(self, bucket, key):
        return self.ask("GET", f"/{bucket}/{key}")

    def put(self, bucket, key, data):
        self.ask("PUT", f"/{bucket}/{key}", body=data)

    def delete(self, bucket, key):
        self.ask("DELETE", f"/{bucket}/{key}")

    def make(self, bucket):
        """Makes the bucket and waits until it can be written: a store's first writes take seconds, or fail."""
        ends, written = time.monotonic() + 60, 0
        while written < 8:
            try:
                self.ask("PUT", f"/{bucket}")
                self.put(bucket, "warm-up", b"x")
                written += 1
            except OSError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)
        self.delete(bucket, "warm-up")

    def pyiceberg(self):
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.key_id,
            "s3.secret-access-key": self.secret,
            "s3.region": self.region,
        }

    def table_bucket(self, name):
        """Makes a bucket that is a warehouse of the store's own catalog (S3 Tables)."""
        ends = time.monotonic() + 60
        while True:
            try:
                return self.ask("PUT", "/buckets", body=json.dumps({"name": name}).encode(), service="s3tables")
            except OSError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)

    def ask(self, method, path, words=None, body=b"", service="s3", unsigned=None):
        """A signed request (Signature Version 4); OSError where it is not answered with success."""
        host = urlsplit(self.endpoint).netloc
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest = hashlib.sha256(body).hexdigest()
        path = quote(path, safe="/-_.~")
        query = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in sorted((words or {}).items()))
        headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now}
        signed = ";".join(headers)
        lines = [method, path, query, *(f"{k}:{v}" for k, v in headers.items()), "", signed, digest]
        scope = f"{now[:8]}/{self.region}/{service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n" + hashlib.sha256("\n".join(lines).encode()).hexdigest()
        key = f"AWS4{self.secret}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.key_id}/{scope}, SignedHeaders={signed}, Signature={key.hex()}"
        )
        connection = http.client.HTTPConnection(host, timeout=30)
        try:
            connection.request(method, f"{path}?{query}" if query else path, body, headers | (unsigned or {}))
            response = connection.getresponse()
            data = response.read()
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {error}") from error
        finally:
            connection.close()
        if response.status >= 300 and not (method == "PUT" and response.status == 409):
            raise OSError(f"{method} {path}: {response.status} {data[:200]!r}")
        return data
