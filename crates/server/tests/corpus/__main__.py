"""Sends a corpus of attacks to a server of its own making and says what each came to.

What each entry has to show is written beside the corpus (`cases/README.md`); what is looked at, and how, in `judge.py` and
`attack.py`. Before the first entry every check is shown something that it has to find (`controls.py`).
"""

import argparse
import json
import queue
import random
import sys
import threading
import time
import tomllib
from pathlib import Path

import controls
import entries
import report
from attack import Attacker
from cell import Cell

ROOT = Path(__file__).resolve().parents[4]


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/corpus", description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="entries, of the shape of cases/attacks.json")
    parser.add_argument("--report", type=Path, help="where the report goes (JSON)")
    parser.add_argument("--world", choices=["local", "s3"], default="local", help="a folder as the store, or SeaweedFS")
    parser.add_argument("--class", dest="kinds", type=listed, default=[], help="only these classes")
    parser.add_argument("--id", dest="ids", type=listed, default=[], help="only these entries")
    parser.add_argument("--jobs", type=int, default=3, help="worlds side by side")
    parser.add_argument("--server", type=Path, default=ROOT / "target/debug/duck-server")
    parser.add_argument("--deadline-ms", type=int, default=5_000)
    parser.add_argument("--exceptions", type=Path, help="entries with another outcome than was written for them, and why (TOML)")
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


def exceptions(file):
    """Entry → {outcome, reason}. Only what `must` says can be another thing, never what every entry has to show."""
    found = tomllib.loads(file.read_text()) if file else {}
    for name, each in found.items():
        if set(each) != {"must", "reason"} or each["must"] not in entries.MUSTS or not each["reason"]:
            sys.exit(f"{file}: {name}: `must` and `reason` are needed, and nothing else")
    return found


def run(asked):
    began, all_codes = time.monotonic(), codes()
    todo = chosen(asked)
    accepted = exceptions(asked.exceptions)
    # Those that burn until their deadline are spread over the run.
    order = list(todo)
    random.Random(asked.seed).shuffle(order)
    waiting = queue.SimpleQueue()
    for each in order:
        waiting.put(each)
    progress, found, faults, shown = report.Progress(len(todo)), {}, [], {}

    def works(number):
        cell = None
        try:
            cell = Cell(asked.world, asked.server, ROOT / ".venv/bin/weed")
            attacker = Attacker(cell, all_codes, asked.deadline_ms)
            shown[number] = controls.live(attacker)
            while True:
                try:
                    item = waiting.get_nowait()
                except queue.Empty:
                    return
                exception = accepted.get(item.id)
                runs = attacker.attacks(item, exception and exception["must"])
                found[item.id] = report.entry(item, runs, exception)
                progress.counts(any(each.violations for each in runs))
        except Exception as error:
            faults.append(error)
            raise
        finally:
            if cell:
                faults.extend(controls.at_the_end(cell))
                cell.stop()

    threads = [threading.Thread(target=works, args=(i,)) for i in range(max(1, min(asked.jobs, len(todo))))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    missing = [each.id for each in todo if each.id not in found]
    facts = {
        "corpus": asked.corpus.name,
        "world": asked.world,
        "jobs": asked.jobs,
        "deadline_ms": asked.deadline_ms,
        "seconds": round(time.monotonic() - began),
        "controls": shown.get(0),
        "not_run": missing,
        "faults": [str(each) for each in faults],
    }
    whole = report.whole([found[each.id] for each in todo if each.id in found], facts)
    report.write(asked.report, whole)
    print(report.table(whole))
    for each in facts["faults"]:
        print(f"FAULT {each}")
    return 1 if whole["failed"] or missing or faults else 0


if __name__ == "__main__":
    asked = arguments()
    print(controls.judged(codes()), file=sys.stderr)
    sys.exit(0 if asked.self_test else run(asked))
