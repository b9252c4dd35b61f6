"""What came of it all: a file for machines, a table for people, a bar for those who wait."""

import json
import sys
import time
from collections import Counter
from dataclasses import asdict


class Progress:
    def __init__(self, count):
        self.count, self.done, self.failed = count, 0, 0
        self.shown = sys.stderr.isatty()
        self.began = time.monotonic()
        self.draws()

    def counts(self, failed):
        self.done += 1
        self.failed += failed
        self.draws()

    def draws(self):
        if self.shown:
            full = 40 * self.done // max(self.count, 1)
            bar = "#" * full + "." * (40 - full)
            took = time.monotonic() - self.began
            end = "\n" if self.done == self.count else ""
            print(f"\r{bar} {self.done}/{self.count}, {self.failed} failed, {took:.0f} s ", end=end, file=sys.stderr, flush=True)


def entry(item, runs, accepted):
    """What the report says of one entry."""
    failed = any(run.violations for run in runs)
    found = {"id": item.id, "class": item.kind, "must": item.must, "why": item.why, "verdict": "fail" if failed else "pass"}
    if accepted:
        found["accepted"] = accepted
    return found | {"ms": sum(run.ms for run in runs), "runs": [asdict(run) for run in runs]}


def whole(entries, facts):
    matrix = {}
    for each in entries:
        counts = matrix.setdefault(each["class"], {})
        for run in each["runs"]:
            name = f"{run['outcome']} (writer)" if run["writes"] else run["outcome"]
            counts[name] = counts.get(name, 0) + 1
    broken = Counter(v.partition(":")[0] for each in entries for run in each["runs"] for v in run["violations"])
    lapsed = Counter(v.partition(":")[0] for each in entries for run in each["runs"] for v in run["lapsed"])
    failed = [each["id"] for each in entries if each["verdict"] == "fail"]
    return facts | {"failed": failed, "violations": dict(broken), "lapsed": dict(lapsed), "matrix": matrix, "entries": entries}


def write(file, report):
    with open(file, "w") as out:
        json.dump(report, out, indent=1, ensure_ascii=False)
        out.write("\n")


def table(report):
    """The matrix of classes, and every failure in a line or two."""
    lines = [f"{'class':16} {'entries':>7} {'failed':>6}  outcomes"]
    for kind, counts in sorted(report["matrix"].items()):
        of = [each for each in report["entries"] if each["class"] == kind]
        failed = sum(each["verdict"] == "fail" for each in of)
        readers = {name: n for name, n in counts.items() if not name.endswith("(writer)")}
        outcomes = ", ".join(f"{name} {n}" for name, n in sorted(readers.items(), key=lambda each: -each[1]))
        lines.append(f"{kind:16} {len(of):7} {failed:6}  {outcomes}")
    for each in report["entries"]:
        for run in each["runs"]:
            role = "writer" if run["writes"] else "reader"
            lines += [f"FAIL {each['id']} ({role}): {violation[:300]}" for violation in run["violations"]]
    if report["off"]:
        lapsed = ", ".join(f"{name} {n}" for name, n in sorted(report["lapsed"].items())) or "nothing"
        lines.append(f"without {', '.join(report['off'])}; broken of what need not hold then: {lapsed}")
    passed = len(report["entries"]) - len(report["failed"])
    lines.append(f"{passed} of {len(report['entries'])} entries pass, in {report['seconds']} s; world: {report['world']}{'' if report['landlock'] else ', without Landlock'}")
    return "\n".join(lines)
