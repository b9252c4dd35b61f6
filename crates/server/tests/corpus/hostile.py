"""What a client of catalog and store can do who knows no manners: both organisations' tables and files, and the tables of A's
whose metadata names what is B's.

Everything is written past the server, with PyIceberg and with the store's own key.
"""

import copy
import io
import json
import logging
import uuid
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import write_manifest, write_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

logging.getLogger("pyiceberg").setLevel(logging.ERROR)

ROWS = 5


class FolderIO(PyArrowFileIO):
    """Finds s3://bucket/key at {folder}/bucket/key."""

    def __init__(self, properties={}):
        super().__init__(properties)
        tree = pyarrow.fs.SubTreeFileSystem(properties["folder"], pyarrow.fs.LocalFileSystem())
        self.fs_by_scheme = lambda scheme, netloc: tree

    @staticmethod
    def parse_location(location, properties={}):
        return "s3", "", location.removeprefix("s3://")

    def new_output(self, location):
        path = Path(self.properties["folder"], location.removeprefix("s3://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        return super().new_output(location)


def catalog(url, token, warehouse, store):
    return RestCatalog("corpus", uri=url, warehouse=warehouse, token=token, **store.pyiceberg())


def values(word):
    """What every value of an organisation's looks like."""
    return pa.table({"id": pa.array(range(ROWS), pa.int32()), "secret": [f"{word} {i}" for i in range(ROWS)]})


def schema(word, second="secret"):
    return Schema(
        NestedField(1, "id", IntegerType(), required=False, doc=f"number, {word}"),
        NestedField(2, second, StringType(), required=False, doc=f"text, {word}"),
    )


def table(lake, name, word):
    made = lake.create_table(name, schema(word), properties={"comment": f"a table, {word}"})
    made.append(values(word))
    return made


def files(word):
    """x.*, and where the word may be a name, files that are called by it."""
    data = values(word)
    parquet, csv = io.BytesIO(), io.BytesIO()
    pyarrow.parquet.write_table(data.replace_schema_metadata({"note": word}), parquet)
    pyarrow.csv.write_csv(data, csv)
    found = {
        "x.parquet": parquet.getvalue(),
        "x.csv": csv.getvalue(),
        "x.json": "\n".join(json.dumps(row) for row in data.to_pylist()).encode(),
        "x.txt": f"{word}, a text\n".encode(),
    }
    if word.isalnum():
        found |= {f"{word}.parquet": parquet.getvalue(), f"{word}.txt": found["x.txt"]}
    return found


def database(path, word):
    """A DuckDB database."""
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as made:
        made.execute("CREATE TABLE t (id INTEGER, secret VARCHAR)")
        made.execute(f"INSERT INTO t SELECT i, '{word} ' || i FROM range({ROWS}) r(i)")
    return path.read_bytes()


def own_tables(lake, word):
    """`ns.t`, and the schema that needs no name, as every organisation has it."""
    lake.create_namespace("datasets")
    lake.create_namespace("ns")
    return table(lake, "ns.t", word)


def named_tables(lake, marker):
    """Tables whose names and columns are the marker."""
    lake.create_namespace(f"ns_{marker}")
    for name in (f"ns_{marker}.t", f"ns.u_{marker}"):
        lake.create_table(name, schema(marker, second=f"c_{marker}"), properties={"comment": marker})


class Poison:
    """Tables of A's, each with metadata of its own making. `a` and `b` are the places of the two warehouses; `poisons` makes
    given metadata that of a table."""

    def __init__(self, lake, store, a, b, foreign, listener, poisons):
        self.lake, self.store, self.a, self.b, self.listener, self.poisons = lake, store, a, b, listener, poisons
        self.foreign = json.loads(foreign.metadata.model_dump_json())
        self.foreign_table = foreign

    def get(self, url):
        return self.store.get(*url.removeprefix("s3://").split("/", 1))

    def put(self, url, data):
        self.store.put(*url.removeprefix("s3://").split("/", 1), data)

    def write(self):
        foreign = self.foreign["snapshots"][-1]["manifest-list"]
        table(self.lake, "ns.p_vend", "of A, redirected")
        self.points("p_loc", lambda made: foreign, location=self.foreign["location"])
        self.points("p_manifest", lambda made: self.copied(made, foreign))
        self.points("p_trav", lambda made: self.detour(foreign))
        self.points("p_http", lambda made: f"http://{self.listener}/list.avro")
        self.points("p_data", lambda made: self.forged(made, lambda path: path))
        self.points("p_datatrav", lambda made: self.forged(made, self.detour))
        self.spoilt("p_missing", None)
        self.spoilt("p_corrupt", 0.5)

    def own(self, made, name):
        return f"{made.location()}/metadata/{uuid.uuid4()}-{name}"

    def copied(self, made, url):
        own = self.own(made, "list.avro")
        self.put(own, self.get(url))
        return own

    def detour(self, url):
        """B's by the way of A's: up from A's place, and down again."""
        above, _, last = self.b.url().rpartition("/")
        assert self.a.url().rpartition("/")[0] == above
        return url.replace(self.b.url(), f"{self.a.url()}/../{last}", 1)

    def points(self, name, manifest_list, location=None):
        """A table with B's snapshots, the last of which has this manifest list."""
        made = self.lake.create_table(f"ns.{name}", schema("of A, poisoned"))
        forged = copy.deepcopy(self.foreign)
        forged["table-uuid"] = str(made.metadata.table_uuid)
        forged["location"] = location or made.location()
        forged["metadata-log"] = []
        forged["properties"] = {}
        forged["snapshots"][-1]["manifest-list"] = manifest_list(made)
        for each in forged["schemas"]:
            for field in each["fields"]:
                field.pop("doc", None)
        self.poisons(made, forged)

    def forged(self, made, path):
        """A manifest list of A's, whose manifest, A's too, has B's data files at what `path` makes of their paths."""
        table, snapshot = self.foreign_table, self.foreign_table.current_snapshot()
        manifest, list = self.own(made, "manifest.avro"), self.own(made, "list.avro")
        output = table.io.new_output
        entries = [entry for each in snapshot.manifests(table.io) for entry in each.fetch_manifest_entry(table.io)]
        with write_manifest(2, table.spec(), table.schema(), output(manifest), snapshot.snapshot_id, "null") as writer:
            for entry in entries:
                entry.data_file[1] = path(entry.data_file.file_path)
                writer.add_entry(entry)
        with write_manifest_list(2, output(list), snapshot.snapshot_id, None, snapshot.sequence_number, "null") as lists:
            lists.add_manifests([writer.to_manifest_file()])
        return list

    def spoilt(self, name, part):
        """A table whose manifest is cut to a part, or gone."""
        made = table(self.lake, f"ns.{name}", "of A, spoilt")
        for each in made.current_snapshot().manifests(made.io):
            data = self.get(each.manifest_path)
            if part is None:
                self.store.delete(*each.manifest_path.removeprefix("s3://").split("/", 1))
            else:
                self.put(each.manifest_path, data[: int(len(data) * part)])
