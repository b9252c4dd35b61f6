"""Looks at an S3 store past the server.

Input: {endpoint, key_id, secret, make: bucket}, which also waits until it can be written, {..., put: [path, ...]}, which makes
small objects, {..., warehouse: bucket}, which makes a bucket that is a warehouse of the store's own catalog, {..., list: bucket},
or {..., create: path, text}, which makes an object that must not be there, as the storage door does. Output: null, {key: bytes, ...}, or
for `create` true, or the status of the refusal.
"""

import concurrent.futures
import json
import re
import sys
import time
from pathlib import Path

import pyarrow.fs as pafs

sys.path.append(str(Path(__file__).parent.with_name("corpus")))
from stores import S3

ask = json.load(sys.stdin)
signed = S3(ask["endpoint"], ask["key_id"], ask["secret"])
store = pafs.S3FileSystem(
    endpoint_override=ask["endpoint"],
    access_key=ask["key_id"],
    secret_key=ask["secret"],
    region="us-east-1",
    allow_bucket_creation=True,
    connect_timeout=5,
    request_timeout=30,
)
if "warehouse" in ask:
    signed.table_bucket(ask["warehouse"])
    print("null")
elif "create" in ask:
    try:
        signed.ask("PUT", f"/{ask['create']}", body=ask["text"].encode(), unsigned={"if-none-match": "*"})
        print("true")
    except OSError as refusal:
        print(re.search(r": (\d{3}) ", str(refusal)).group(1))
elif "make" in ask:
    # A store's first writes take seconds, or fail: it makes or finds its volumes only then.
    deadline, written = time.monotonic() + 30, 0
    while written < 8:
        try:
            store.create_dir(ask["make"])
            with store.open_output_stream(f"{ask['make']}/warm-up") as file:
                file.write(b"x")
            written += 1
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    store.delete_file(f"{ask['make']}/warm-up")
    print("null")
elif "put" in ask:

    def put(path):
        with store.open_output_stream(path) as file:
            file.write(b"x")

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(put, ask["put"]))
    print("null")
else:
    found = store.get_file_info(pafs.FileSelector(ask["list"], recursive=True))
    cut = len(ask["list"]) + 1
    print(json.dumps({info.path[cut:]: info.size for info in found if info.is_file}))
