"""Looks at an S3 store past the server.

Input: {endpoint, key_id, secret, make: bucket} or {..., list: bucket}. Output: null, or {key: bytes, ...}.
"""

import json
import sys

import pyarrow.fs as pafs

ask = json.load(sys.stdin)
store = pafs.S3FileSystem(
    endpoint_override=ask["endpoint"],
    access_key=ask["key_id"],
    secret_key=ask["secret"],
    region="us-east-1",
    allow_bucket_creation=True,
    connect_timeout=5,
    request_timeout=30,
)
if "make" in ask:
    store.create_dir(ask["make"])
    # A store's first writes take seconds: it makes its volumes only then.
    for count in range(8):
        with store.open_output_stream(f"{ask['make']}/warm-up") as file:
            file.write(b"x")
    store.delete_file(f"{ask['make']}/warm-up")
    print("null")
else:
    found = store.get_file_info(pafs.FileSelector(ask["list"], recursive=True))
    cut = len(ask["list"]) + 1
    print(json.dumps({info.path[cut:]: info.size for info in found if info.is_file}))
