"""Reads tables with PyIceberg, which shares no code with DuckDB or with this project.

Input: {catalog, token, warehouse, store, table}. Output: {rows: [[text, ...], ...], metadata_location, snapshot_id}, each value
as Python's repr, sorted.
"""

import json
import os
import sys

import pyarrow.fs as pafs
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

ask = json.load(sys.stdin)


class FolderIO(PyArrowFileIO):
    """Finds s3://bucket/key at {store}/bucket/key: the folder that the storage door serves."""

    def fs_by_scheme(self, scheme, netloc):
        return pafs.SubTreeFileSystem(ask["store"], pafs.LocalFileSystem())

    @staticmethod
    def parse_location(location, properties={}):
        return "s3", "", location.removeprefix("s3://")


sys.modules["folder_io"] = sys.modules["__main__"]
catalog = RestCatalog(
    "test",
    uri=ask["catalog"],
    warehouse=ask["warehouse"],
    token=ask["token"],
    **{"py-io-impl": "folder_io.FolderIO"},
)
table = catalog.load_table(ask["table"])
os.environ["TZ"] = "UTC"
rows = table.scan().to_arrow().to_pylist()
snapshot = table.current_snapshot()
print(
    json.dumps(
        {
            "rows": sorted([repr(value) for value in row.values()] for row in rows),
            "metadata_location": table.metadata_location,
            "snapshot_id": snapshot.snapshot_id if snapshot else None,
        }
    )
)
