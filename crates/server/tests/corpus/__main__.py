"""Sends a corpus of attacks to a server of its own making and says what each came to.

What each entry has to show is written beside the corpus (`cases/README.md`); what is looked at, and how, in `judge.py` and
`attack.py`. Before the first entry every check is shown something that it has to find (`controls.py`).
"""

import argparse
import json
import multiprocessing
import os
import queue
import random
import sys
import time
import tomllib
from pathlib import Path

import controls
import entries
import layers
import report
from attack import Attacker
from embedded import S3, Local
from seaweed import Seaweed

ROOT = Path(__file__).resolve().parents[4]
WORLDS = {"local": Local, "s3": S3, "weed": Seaweed}


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/corpus", description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="entries, of the shape of cases/attacks.json")
    parser.add_argument("--report", type=Path, help="where the report goes (JSON)")
    parser.add_argument("--world", choices=WORLDS, default="local", help="a folder as the store; SeaweedFS; its catalog, too")
    parser.add_argument("--class", dest="kinds", type=listed, action="extend", default=[], help="only these classes")
    parser.add_argument("--id", dest="ids", type=listed, default=[], help="only these entries")
    parser.add_argument("--jobs", type=int, default=3, help="worlds side by side")
    parser.add_argument("--server", type=Path, default=ROOT / "target/debug/duck-server")
    parser.add_argument("--deadline-ms", type=int, default=5_000)
    parser.add_argument("--exceptions", type=Path, help="entries with another outcome than was written for them, and why (TOML)")
    parser.add_argument("--without-landlock", action="store_true", help="take that layer away: the others must hold")
    parser.add_argument("--off", type=layers.named, default=(), help="layers to take off: policy, lockdown, sandbox")
    parser.add_argument("--logs", type=Path, help="a folder for the logs of the servers")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the entries")
    parser.add_argument("--self-test", action="store_true", help="only show that the judge finds what it has to")
    asked = parser.parse_args()
    if not asked.self_test and not (asked.corpus and asked.report):
        parser.error("--corpus and --report are needed")
    return asked


def listed(text):
    return [each for each in text.split(",") if each]


def codes():
    """The closed list of codes, each with its status: from the contract's schema and its source."""
    schema = json.loads((ROOT / "crates/contract/schema.json").read_text())
    names = [each["const"] for each in schema["$defs"]["Code"]["oneOf"]]
    source = (ROOT / "crates/contract/src/code.rs").read_text()
    return {name: int(source.partition(f'= "{name}", ')[2].partition(";")[0]) for name in names}


def chosen(asked):
    found = entries.read(asked.corpus)
    unknown = set(asked.ids) - {each.id for each in found} | set(asked.kinds) - {each.kind for each in found}
    if unknown:
        sys.exit(f"not in the corpus: {', '.join(sorted(unknown))}")
    found = [each for each in found if not asked.ids or each.id in asked.ids]
    return [each for each in found if not asked.kinds or each.kind in asked.kinds]


def exceptions(file, world):
    """Entry → {outcome, reason}. Only what `must` says can be another thing, never what every entry has to show."""
    found = tomllib.loads(file.read_text()) if file else {}
    for name, each in found.items():
        if set(each) - {"world"} != {"must", "reason"} or each["must"] not in entries.MUSTS or not each["reason"]:
            sys.exit(f"{file}: {name}: `must` and `reason` are needed, and nothing else but `world`")
    return {name: each for name, each in found.items() if each.get("world", world) == world}


def works(number, asked, order, turn, told):
    """One world, in a process of its own: takes entries until none is left, and tells what came of each."""
    parent, cell = os.getppid(), None
    accepted = exceptions(asked.exceptions, asked.world)
    try:
        cell = WORLDS[asked.world](number, asked.server, ROOT / ".venv/bin/weed", not asked.without_landlock, asked.off)
        attacker = Attacker(cell, codes(), asked.deadline_ms)
        told.put(("controls", controls.live(attacker)))
        while os.getppid() == parent:
            with turn.get_lock():
                at, turn.value = turn.value, turn.value + 1
            if at >= len(order):
                break
            exception = accepted.get(order[at].id)
            runs = attacker.attacks(order[at], exception and exception["must"])
            told.put(("entry", report.entry(order[at], runs, exception)))
        for each in controls.at_the_end(cell):
            told.put(("fault", each))
    except BaseException as error:
        told.put(("fault", f"world {number}: {type(error).__name__}: {error}"))
        raise
    finally:
        if cell:
            if asked.logs:
                asked.logs.mkdir(parents=True, exist_ok=True)
                (asked.logs / f"world-{number}.log").write_text("".join([*cell.ended, cell.front.logged()]))
            cell.stop()


def run(asked):
    began, todo = time.monotonic(), chosen(asked)
    # Those that burn until their deadline are spread over the run.
    order = list(todo)
    random.Random(asked.seed).shuffle(order)
    forked = multiprocessing.get_context("fork")
    turn, told = forked.Value("i", 0), forked.Queue()
    worlds = [
        forked.Process(target=works, args=(number, asked, order, turn, told))
        for number in range(max(1, min(asked.jobs, len(todo))))
    ]
    progress, heard = report.Progress(len(todo)), {"entry": [], "controls": [], "fault": []}
    for each in worlds:
        each.start()
    while True:
        alive = any(each.is_alive() for each in worlds)
        try:
            kind, what = told.get(timeout=0.2)
        except queue.Empty:
            if not alive:
                break
            continue
        heard[kind].append(what)
        if kind == "entry":
            progress.counts(what["verdict"] == "fail")
    found = {each["id"]: each for each in heard["entry"]}
    faults = heard["fault"] + [f"world {i} ended with {each.exitcode}" for i, each in enumerate(worlds) if each.exitcode]
    missing = [each.id for each in todo if each.id not in found]
    facts = {
        "corpus": asked.corpus.name,
        "world": asked.world,
        "landlock": not asked.without_landlock,
        "off": asked.off,
        "jobs": asked.jobs,
        "deadline_ms": asked.deadline_ms,
        "seconds": round(time.monotonic() - began),
        "controls": heard["controls"][:1],
        "not_run": missing,
        "faults": faults,
    }
    whole = report.whole([found[each.id] for each in todo if each.id in found], facts)
    report.write(asked.report, whole)
    print(report.table(whole))
    for each in faults:
        print(f"FAULT {each}")
    return 1 if whole["failed"] or missing or faults else 0


if __name__ == "__main__":
    asked = arguments()
    print(controls.judged(codes()), file=sys.stderr)
    sys.exit(0 if asked.self_test else run(asked))
