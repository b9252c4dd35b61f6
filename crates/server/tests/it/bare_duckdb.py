"""Reads a table by bare DuckDB, past the servers: catalog and store by their own keys.

One JSON object on standard input: {catalog, token, warehouse, table, s3: {endpoint, access-key-id, secret-access-key, region},
extensions}; prints the rows, as text and sorted."""

import json
import sys

import duckdb

ask = json.load(sys.stdin)
database = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "httpfs", "iceberg"):
    database.execute(f"LOAD '{ask['extensions']}/{name}.duckdb_extension'")
s3 = ask["s3"]
database.execute(
    f"CREATE SECRET (TYPE s3, KEY_ID '{s3['access-key-id']}', SECRET '{s3['secret-access-key']}', URL_STYLE 'path', "
    f"ENDPOINT '{s3['endpoint'].removeprefix('http://')}', USE_SSL false, REGION '{s3['region']}')"
)
database.execute(
    f"ATTACH '{ask['warehouse']}' AS lake (TYPE iceberg, ENDPOINT '{ask['catalog']}', TOKEN '{ask['token']}', "
    "ACCESS_DELEGATION_MODE 'none', READ_ONLY true)"
)
rows = database.execute(f"SELECT * FROM lake.{ask['table']}").fetchall()
json.dump(sorted([str(value) for value in row] for row in rows), sys.stdout)
