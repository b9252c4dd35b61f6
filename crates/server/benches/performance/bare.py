"""Bare DuckDB beside the server: one warm process with the extensions loaded, attached straight to catalog and store.

One JSON request a line: {"statements": [...]}; answers {"wall": s, "cpu": s, "rows": [...]} of all of them together."""

import json
import sys
import time

import duckdb

extensions, threads = sys.argv[1:3]
database = duckdb.connect(config={"allow_unsigned_extensions": "true", "threads": threads})
for name in ("avro", "httpfs", "iceberg"):
    database.execute(f"LOAD '{extensions}/{name}.duckdb_extension'")
database.execute("SET httpfs_connection_caching = true")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    statements = json.loads(line)["statements"]
    wall, cpu = time.perf_counter(), time.process_time()
    for statement in statements:
        rows = database.execute(statement).fetchall()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"wall": wall, "cpu": cpu, "rows": rows}, default=str), flush=True)
