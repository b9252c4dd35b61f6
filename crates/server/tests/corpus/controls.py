"""Every check is shown something that it has to find: a check that cannot fail shows nothing."""

import base64
import json
import os
import signal
import socket
from dataclasses import replace

import judge
import taps
from attack import Neighbour
from client import Answer
from judge import Knowledge, Shown


def judged(codes):
    """The judge, on made-up runs: a clean one breaks nothing, and each fault is found by its own promise."""
    marker, planted, secret = "mark0123456789abcdefb", "file0123456789abcdefm", "a-secret-of-the-service-0001"
    known = Knowledge(marker, planted, {"the key": secret}, ["w_b"], {"a folder": "/srv/home"}, codes, 5_000)

    def rows(value, **more):
        return Answer(200, {"content-type": "application/json"}, json.dumps({"columns": [], "rows": [[value]]}).encode(), 5, **more)

    def problem(code, detail="no", status=None, kind="application/problem+json", request="r1"):
        status = status or codes.get(code, 500)
        body = {"code": code, "status": status, "detail": detail, "request_id": "r1"}
        return Answer(status, {"content-type": kind, "x-request-id": request}, json.dumps(body).encode(), 5)

    clean = Shown("SELECT 1", problem("statement_refused"), "deny", neighbour=[None])
    fine = replace(clean, must="error", answer=rows(1))
    raw = marker.encode()
    cases = [
        *(("marker", replace(fine, answer=rows(text))) for text in (
            marker, f"x{marker.upper()}y", raw.hex(), marker[::-1], f"{marker[:9]}\n│ {marker[9:]}",
            *(base64.b64encode(b"p" * n + raw + b"s" * n).decode() for n in range(3)),
        )),
        ("marker", replace(clean, answer=problem("sql_type", f"cannot cast {marker}"))),
        ("marker", replace(clean, answer=replace(clean.answer, headers={**clean.answer.headers, "x-note": marker}))),
        ("marker", replace(clean, log=f"read {marker}")),
        ("marker", replace(clean, setup=[rows(marker)])),
        ("marker", replace(fine, answer=rows(marker, fault="cut"))),
        ("file", replace(fine, answer=rows(planted))),
        ("secret", replace(fine, answer=rows(secret))),
        ("secret", replace(clean, log=f"Bearer {secret}")),
        ("name", replace(fine, answer=rows("w_b"))),
        ("place", replace(clean, answer=problem("sql_runtime", "cannot open /srv/home/x"))),
        ("foreign", replace(clean, foreign=({}, {"w_b/new": "1"}))),
        ("foreign", replace(clean, foreign=({"w_b/x": "1"}, {"w_b/x": "2"}))),
        ("foreign", replace(clean, foreign=({"w_b/x": "1"}, {}))),
        ("foreign", replace(clean, ledger=["w_b/x"])),
        ("outside", replace(clean, outside=({}, {"evil.csv": "1"}))),
        ("listener", replace(clean, listener=["connection from 1"])),
        ("bypass", replace(clean, strangers=["connection from 1"])),
        ("neighbour", replace(clean, neighbour=[None, "another answer"])),
        ("neighbour", replace(clean, neighbour=[])),
        ("after", replace(clean, after_ms=None)),
        ("after", replace(clean, after_ms=2_001)),
        ("front", replace(clean, front_alive=False)),
        ("typed", replace(fine, answer=Answer(500, {"content-type": "text/plain"}, b"oops", 5))),
        ("typed", replace(fine, answer=problem("no_such_code"))),
        ("typed", replace(fine, answer=problem("timeout", status=500))),
        ("typed", replace(fine, answer=problem("timeout", kind="application/json"))),
        ("typed", replace(fine, answer=problem("timeout", request="r2"))),
        ("typed", replace(fine, answer=problem("timeout", detail=""))),
        *(("typed", replace(fine, answer=Answer(fault=fault))) for fault in ("silent", "cut", "unreachable")),
        ("deadline", replace(fine, answer=replace(rows(1), ms=7_001))),
        ("must", replace(clean, answer=rows(1))),
        *(("must", replace(clean, answer=problem(code))) for code in ("engine_lost", "timeout", "out_of_memory", "tenant_busy")),
        ("must", replace(clean, must="ok")),
        ("must", replace(clean, must="isolated", answer=rows(1, fault="cut"))),
        ("effect", replace(clean, own=({}, {"w_a/x": "1"}))),
        ("state", replace(fine, must="isolated", answer=rows(1), without_setup=rows(2))),
        ("state", replace(clean, must="isolated", without_setup=rows(2))),
    ]
    for allowed in (clean, fine, replace(fine, answer=rows(1, fault="cut")), replace(fine, own=({}, {"x": "1"}), may_change=True)):
        assert not judge.broken(allowed, known), judge.broken(allowed, known)
    for promise, shown in cases:
        found = judge.broken(shown, known)
        assert any(each.startswith(f"{promise}: ") for each in found), f"{promise} was not found in {shown}: {found}"
    found = {promise for promise, _ in cases}
    return f"controls: {len(cases)} faults of {len(found)} kinds are found by the judge"


def live(attacker):
    """The same for what watches a running world. Returns what was found, by name."""
    cell, found = attacker.cell, {}
    clean = Shown("SELECT 1", Answer(), "error", neighbour=[None])

    def marked(answer):
        return bool([each for each in judge.broken(replace(clean, answer=answer), attacker.knows()) if each.startswith("marker")])

    # What B may see is what A's answers are searched for.
    for name, sql in (
        ("rows", "SELECT secret FROM lake.ns.t"),
        ("a BLOB", "SELECT encode(secret) FROM lake.ns.t"),
        ("names", "SHOW ALL TABLES"),
        ("columns", f"DESCRIBE lake.ns_{cell.marker}.t"),
        ("a file", f"SELECT secret FROM read_parquet('{cell.b.url()}/{cell.readable}')"),
        ("an error", "SELECT CAST(secret AS INTEGER) FROM lake.ns.t"),
    ):
        for shape in ("json", "arrow") if name != "a file" or cell.readable else ():
            found[f"marker in {name}, {shape}"] = marked(cell.asks("b", sql, shape=shape))

    # Whoever reads the poisoned tables without a door gets what is B's.
    lake = cell.opens(cell.a)
    for name in ("p_loc", "p_manifest", "p_data"):
        rows = lake.load_table(f"ns.{name}").scan().to_arrow().to_pylist()
        found[f"{name} leads to B"] = cell.marker in str(rows)

    heard = len(cell.listener.seen)
    for address in (cell.listener.address, cell.catalog.address, cell.store_tap.address):
        host, port = address.split(":")
        socket.create_connection((host, int(port))).close()
    found["a connection to the listener"] = taps.settled(heard + 1, lambda: len(cell.listener.seen))
    found["a connection past the catalog door"] = taps.settled(1, lambda: len(cell.catalog.watch.strangers))
    found["a connection past the storage door"] = taps.settled(1, lambda: len(cell.store_tap.watch.strangers))
    found["the front uses the tap"] = cell.catalog.watch.accepted > 1 and (not cell.weed or cell.store_tap.watch.accepted > 1)

    def differs(of, change):
        before = attacker.looks()[of]
        change()
        return bool(judge.changes(before, attacker.looks()[of]))

    key = cell.b.key("ns/t/metadata/planted.avro")
    found["an object of B's created"] = differs("foreign", lambda: cell.store.put(cell.b.bucket, key, b"1"))
    found["an object of B's changed"] = differs("foreign", lambda: cell.store.put(cell.b.bucket, key, b"2"))
    found["an object of B's deleted"] = differs("foreign", lambda: cell.store.delete(cell.b.bucket, key))
    key = cell.a.key("ns/t/metadata/planted.avro")
    found["an object of A's created"] = differs("own", lambda: cell.store.put(cell.a.bucket, key, b"1"))
    cell.store.delete(cell.a.bucket, key)
    found["a schema of B's created"] = differs("foreign", lambda: cell.opens(cell.b).create_namespace("planted"))
    cell.opens(cell.b).drop_namespace("planted")
    planted = cell.outside / "planted"
    found["a file outside"] = differs("outside", lambda: planted.write_text("x"))
    planted.unlink()

    neighbour = Neighbour(cell)
    neighbour.expected = [[0]]
    found["another answer to B"] = bool(neighbour.stop()[0])
    os.kill(cell.front.pid, signal.SIGSTOP)
    found["a front that stands still"] = attacker.recovers(writes=False)[0] is None
    os.kill(cell.front.pid, signal.SIGCONT)
    attacker.recovers(writes=False)

    cell.log_from = len(cell.front.logged())
    attacker.state = attacker.looks()
    missed = [name for name, seen in found.items() if not seen]
    assert not missed, f"not found: {', '.join(missed)}"
    return sorted(found)


def at_the_end(cell):
    """What the logs of a cell's servers hold that they must not. B's own failures, above, stand before `log_from`."""
    if not cell.front:
        return []
    logs = [*cell.ended, cell.front.logged()]
    assert "request_id=" in logs[0], "the log is there"
    found = [f"the log holds {name}" for name, secret in cell.secrets().items() if secret in "".join(logs)]
    logs[0] = logs[0][cell.log_from :]
    return found + ["the log holds B's marker"] * (cell.marker in "".join(logs))
