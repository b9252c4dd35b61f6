"""What each layer catches first, by class: from reports of one world with more and more layers off.

    python crates/server/tests/corpus/first.py DIR WORLD

DIR has a report for each list of layers, as `just layers` writes them: WORLD-all-on.json, WORLD-policy.json,
WORLD-policy,lockdown.json, WORLD-policy,lockdown,sandbox.json. A run is caught by the layer without which its refusal is another
one, or none; what is the same without any layer is the doors' doing, where one of them said so, or the engine's own.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path

# In the order in which a statement meets them; the reports without the first so many.
LAYERS = ("policy", "lockdown", "sandbox")
OFF = ("all-on", "policy", "policy,lockdown", "policy,lockdown,sandbox")
COLUMNS = (*LAYERS, "storage door", "catalog door", "engine", "answered")
# Which of these comes first depends on the machine's load.
SPENT = {"timeout", "out_of_memory", "engine_lost", "spill_exhausted", "cancelled", "cut"}
# Ids, numbers and places differ from world to world.
VOLATILE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|/tmp/\S+|\d+")


def told(run):
    """What was said of a run, in the same words wherever it ran."""
    if run["outcome"] in SPENT:
        return "spent"
    if run["outcome"] == "answered":
        return "answered"
    return run["outcome"], VOLATILE.sub("#", run["detail"]), tuple(run["doors"])


def caught(layers, runs):
    """Which of these layers caught it first; `runs` with more and more of them off."""
    for layer, whole, without in zip(layers, runs, runs[1:]):
        if told(whole) not in (told(without), "answered"):
            return layer
    return last(runs[-1])


def last(run):
    """What there is to say of a run that no layer but the doors touched."""
    if run["doors"]:
        return run["doors"][0]
    return "answered" if run["outcome"] == "answered" else "engine"


def reports(folder, world):
    found = []
    for off in OFF:
        report = json.loads(Path(folder, f"{world}-{off}.json").read_text())
        if report["faults"] or report["not_run"]:
            sys.exit(f"{world}-{off}: {report['faults']} {report['not_run']}")
        found.append({each["id"]: each for each in report["entries"]})
    return found


def tables(folder, world):
    with_less = reports(folder, world)
    titles = ("all layers", "without policy", "without policy and lockdown", "without any")
    for gone, title in enumerate(titles):
        counts = {}
        for name, entry in with_less[0].items():
            of = [{run["writes"]: run for run in each[name]["runs"]} for each in with_less[gone:]]
            for writes in of[0]:
                catcher = caught(LAYERS[gone:], [each.get(writes) or each[False] for each in of])
                counts.setdefault(entry["class"], Counter())[catcher] += 1
        yield title, COLUMNS[gone:], counts


def written(title, columns, counts):
    lines = [f"| {title} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    whole = sum(counts.values(), Counter())
    for kind, of in [*sorted(counts.items()), ("**all**", whole)]:
        lines.append(f"| {kind} | {' | '.join(str(of[each] or '') for each in columns)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n\n".join(written(*table) for table in tables(*sys.argv[1:])))
