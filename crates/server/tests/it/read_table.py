"""Reads tables with PyIceberg, which shares no code with DuckDB or with this project.

Input: {catalog, token, warehouse, table} and either {store}, the folder that the storage door serves, or {s3: {endpoint,
access-key-id, secret-access-key, region}}; {tables: [...]} instead of {table} for several. Output for a table: {rows: [[text, ...],
...], metadata_location, snapshot_id, files, log}, each value as Python's repr, rows sorted; files are all that the current
metadata refers to, over all snapshots; log its earlier metadata files. Output for several: an object of these. With {table, add}: makes a file part of the table
instead, by a commit. With {table, evolve}: makes that table and changes its columns in every way, with a row before and after each.
"""

import json
import os
import sys

os.environ["TZ"] = "UTC"

import pyarrow
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO, PyArrowLocalFileSystem
from pyiceberg.types import LongType, StringType

ask = json.load(sys.stdin)


class FolderIO(PyArrowFileIO):
    """Finds s3://bucket/key at {store}/bucket/key."""

    def __init__(self, properties={}):
        super().__init__(properties)
        self.fs_by_scheme = lambda scheme, netloc: PyArrowLocalFileSystem()

    @staticmethod
    def parse_location(location, properties={}):
        return "file", "", f"{ask['store']}/{location.removeprefix('s3://')}"


def read(catalog, name):
    table = catalog.load_table(name)
    snapshot = table.current_snapshot()
    files = {table.metadata_location}
    for each in table.metadata.snapshots:
        files.add(each.manifest_list)
        for manifest in each.manifests(table.io):
            files.add(manifest.manifest_path)
            files.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True))
    return {
        "rows": sorted([repr(value) for value in row.values()] for row in table.scan().to_arrow().to_pylist()),
        "metadata_location": table.metadata_location,
        "snapshot_id": snapshot.snapshot_id if snapshot else None,
        "files": sorted(files),
        "log": [entry.metadata_file for entry in table.metadata.metadata_log],
    }


def evolve(catalog, name):
    """Each change of the columns, with a row written under each schema."""
    schema = pyarrow.schema([("a", pyarrow.int32()), ("b", pyarrow.string()), ("c", pyarrow.int32())])
    table = catalog.create_table(name, schema)

    def append(**row):
        fields = [field for field in table.schema().as_arrow() if field.name in row]
        table.append(pyarrow.Table.from_pylist([row], schema=pyarrow.schema(fields)))

    append(a=1, b="one", c=10)
    with table.update_schema() as update:
        update.add_column("d", LongType())
    append(a=2, b="two", c=20, d=200)
    with table.update_schema() as update:
        update.rename_column("b", "name")
    append(a=3, name="three", c=30, d=300)
    with table.update_schema() as update:
        update.delete_column("c")
    append(a=4, name="four", d=400)
    # A column of an old name is a new column, and shows nothing of what was there.
    with table.update_schema() as update:
        update.add_column("c", StringType())
        update.move_first("d")
    append(d=500, a=5, name="five", c="fifty")
    with table.update_schema() as update:
        update.update_column("a", LongType())
    append(d=600, a=6_000_000_000, name="six", c="sixty")


sys.modules["read_table"] = sys.modules["__main__"]
if "s3" in ask:
    properties = {f"s3.{name}": value for name, value in ask["s3"].items()}
else:
    properties = {"py-io-impl": "read_table.FolderIO"}
catalog = RestCatalog("test", uri=ask["catalog"], warehouse=ask["warehouse"], token=ask["token"], **properties)
if "add" in ask:
    catalog.load_table(ask["table"]).add_files([ask["add"]])
    print("null")
elif "evolve" in ask:
    evolve(catalog, ask["table"])
    print("null")
elif "tables" in ask:
    print(json.dumps({name: read(catalog, name) for name in ask["tables"]}))
else:
    print(json.dumps(read(catalog, ask["table"])))
