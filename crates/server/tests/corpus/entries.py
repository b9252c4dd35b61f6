"""A corpus: statements that somebody could send, and what each must come to."""

import json
from dataclasses import dataclass

MUSTS = ("deny", "error", "isolated", "ok")

@dataclass(frozen=True)
class Entry:
    id: str
    kind: str
    must: str
    why: str
    setup: tuple
    statement: dict

    def statements(self, names, spelled):
        """The statements of the setup, and the one in question, with these names in place of the placeholders, and `spelled` for
        names that are written out."""
        return [spelled(filled(text, names)) for text in self.setup], spelled(filled(self.text(), names))

    def text(self):
        if "sql" in self.statement:
            return self.statement["sql"]
        if "sql_runs" in self.statement:
            return "".join(piece * times for piece, times in self.statement["sql_runs"])
        series = self.statement["sql_series"]
        items = (series["item"].replace("{i}", str(i)) for i in range(series["count"]))
        return series["prefix"] + series["separator"].join(items) + series["suffix"]


def filled(text, names):
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    return text


def read(file):
    """Every entry of a file, or a ValueError that names what is wrong with it."""
    found, faults, seen = [], [], set()
    for raw in json.load(open(file)):
        statement = {key: raw[key] for key in ("sql", "sql_runs", "sql_series") if key in raw}
        name = raw.get("id", "an entry without id")
        if len(statement) != 1 or raw.get("must") not in MUSTS or "class" not in raw or name in seen:
            faults.append(name)
            continue
        seen.add(name)
        found.append(Entry(name, raw["class"], raw["must"], raw.get("why", ""), tuple(raw.get("setup", ())), statement))
    if faults:
        raise ValueError(f"not of the shape that cases/README.md describes: {', '.join(faults)}")
    return found
