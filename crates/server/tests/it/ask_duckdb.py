"""Answers SQL with DuckDB's own Python package, on files and without a server.

Input: {setup: [sql, ...], ask: [sql, ...]}. Output: for each that was asked, its rows.
"""

import json
import sys

import duckdb

ask = json.load(sys.stdin)
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'")
for sql in ask["setup"]:
    connection.execute(sql)
print(json.dumps([connection.execute(sql).fetchall() for sql in ask["ask"]]))
