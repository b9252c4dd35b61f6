"""Runs statements on a server and on bare DuckDB, over the same data, and says where they differ.

Input: {url, token, sql, files: [name in SQL, folder on disk]}. Output: {run, compared, faults: [text, …]}.
"""

import json
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow.ipc

ask = json.load(sys.stdin)
files, folder = ask["files"]


def served(sql, writes=False, **more):
    body = json.dumps({"sql": sql, "allow_writes": writes, **more}).encode()
    request = urllib.request.Request(f"{ask['url']}/query", body, {"Authorization": f"Bearer {ask['token']}"})
    try:
        with urllib.request.urlopen(request) as answer:
            return pyarrow.ipc.open_stream(answer).read_all()
    except urllib.error.HTTPError as e:
        raise RuntimeError(e.read().decode()) from None


def plain(value):
    """The same text for the same value, whatever carries it; sums of doubles may differ in their last digits."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def rows(table):
    """Names, and how often each row is there."""
    columns = [[str(plain(value)) for value in column.to_pylist()] for column in table.columns]
    return table.column_names, Counter(zip(*columns)) if columns else Counter()


bare = duckdb.connect()
bare.execute("SET TimeZone = 'UTC'; ATTACH ':memory:' AS lake; CREATE SCHEMA lake.datasets; USE lake.datasets")
Path(folder).mkdir(parents=True, exist_ok=True)
sales = "SELECT i AS id, ['asia', 'europe'][1 + i % 2] AS region, i * 1.5::DOUBLE AS amount FROM range({}) t(i)"
bare.execute(f"COPY ({sales.format(500)}) TO '{folder}/sales.parquet'")
bare.execute(f"COPY ({sales.format(20)}) TO '{folder}/more.parquet'")
bare.execute(f"COPY ({sales.format(200)}) TO '{folder}/sales.csv' (HEADER)")
bare.execute(f"COPY ({sales.format(200)}) TO '{folder}/sales.json' (FORMAT json)")

count, compared, faults = 0, 0, []
for paragraph in ask["sql"].split("\n\n")[1:]:
    paragraph = paragraph.strip()
    mark = paragraph.split("\n", 1)[0]
    try:
        if mark == "-- setup":
            served(paragraph, writes=True)
            bare.execute(paragraph)
            continue
        count += 1
        version = "{VERSION}"
        if version in paragraph:
            snapshots = served("SELECT snapshot_id FROM iceberg_snapshots('lake.shop.region')")
            paragraph = paragraph.replace(version, str(snapshots.column(0)[0]))
        answer = served(paragraph.replace("{FILES}", files))
        if mark == "-- runs":
            continue
        compared += 1
        names, expected = rows(bare.execute(paragraph.replace("{FILES}", folder)).to_arrow_table())
        given_names, given = rows(answer)
        if (names, expected) != (given_names, given):
            faults.append(f"{paragraph}\n  {given_names}\n  {names}\n  {list((given - expected).items())[:3]}\n  {list((expected - given).items())[:3]}")
    except Exception as e:  # one that does not run is a fault like one that differs
        faults.append(f"{paragraph}\n  {e}")
print(json.dumps({"run": count, "compared": compared, "faults": faults}))
