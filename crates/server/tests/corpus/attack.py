"""One entry in one cell: sends it, watches everything else, and hands what was seen to the judge."""

import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import client
import judge
import layers
from hostile import ROWS

# These statements fail before anything is read, or read nothing: a writer is no other engine for them.
SAME_FOR_WRITERS = ("resource", "parser-crash", "planner-bomb", "native-crash", "errors")
NEIGHBOUR_SQL = "SELECT count(*), sum(id), count(DISTINCT secret), min(length(secret)) FROM lake.ns.t"
NEIGHBOUR_PAUSE_S = 0.3
# Longer than the deadline and what is allowed after it, so that a late answer is told from none.
WAIT_MORE_MS = 20_000
# A statement that does not stop is ended with its engine, a second after its deadline: the next entry is not to be there then.
CALM_S = 1.2


@dataclass
class Run:
    writes: bool
    must: str
    outcome: str
    status: int | None
    ms: int
    detail: str
    # Under which the log of this world's server has the rest.
    request_id: str | None
    world: int
    violations: list
    notes: list
    # What is broken that does not have to hold with these layers off.
    lapsed: list = field(default_factory=list)
    # Which doors refused something meanwhile.
    doors: list = field(default_factory=list)
    setup: list = field(default_factory=list)
    neighbour_ms: int = 0
    after_ms: int | None = None


class Neighbour(threading.Thread):
    """B, who asks again and again until told to stop, and once in any case."""

    def __init__(self, cell):
        super().__init__(daemon=True)
        self.cell, self.ends = cell, threading.Event()
        self.faults, self.ms = [], 0
        self.expected = [[ROWS, sum(range(ROWS)), ROWS, len(f"{cell.marker} 0")]]
        self.start()

    def run(self):
        while True:
            answer = self.cell.asks("b", NEIGHBOUR_SQL)
            self.ms = max(self.ms, answer.ms)
            self.faults.append(self.wrong(answer))
            if self.ends.wait(NEIGHBOUR_PAUSE_S):
                return

    def wrong(self, answer):
        if answer.status != 200 or answer.fault:
            return f"{answer.status} {answer.fault or ''} {answer.text()[:200]}"
        if f'"rows":{str(self.expected).replace(" ", "")},' not in answer.text():
            return f"another answer: {answer.text()[:200]}"
        return None

    def stop(self):
        self.ends.set()
        self.join(30)
        return self.faults


class Attacker:
    """Sends entries in one cell, one after the other."""

    def __init__(self, cell, codes, deadline_ms):
        self.cell, self.codes, self.deadline_ms = cell, codes, deadline_ms
        self.warmed()
        self.state = self.looks()
        self.ledger_at = 0

    def warmed(self):
        """Both organisations have asked once, so that nobody's first time falls into a run."""
        for who, writes in (("a", False), ("a", True), ("b", False)):
            answer = self.cell.asks(who, "SELECT count(*) FROM lake.ns.t", writes)
            if answer.status != 200:
                raise RuntimeError(f"{who}'s first query: {answer.status} {answer.fault or ''} {answer.text()[:300]}")

    def attacks(self, entry, must=None):
        """The runs of an entry: as a reader, and where it makes a difference as a writer."""
        must = must or entry.must
        runs = [self.sends(entry, writes=False, must=must)]
        if entry.kind not in SAME_FOR_WRITERS:
            # What only the right to write was missing for, a writer may do, in its own warehouse.
            may = runs[0].outcome == "read_only"
            runs.append(self.sends(entry, writes=True, must="isolated" if may else must))
        return runs

    def sends(self, entry, writes, must):
        cell = self.cell
        role = "writer" if writes else "reader"
        setup, sql = entry.statements(cell.names(role), cell.spelled)
        without = self.asks(sql, writes) if setup and must == "isolated" else None
        before, log_at = self.state, cell.front.log_bytes()
        heard, strangers = len(cell.listener.seen), self.strangers()
        neighbour = Neighbour(cell)
        prepared = [self.asks(each, writes) for each in setup]
        if prepared:
            # A setup can cost the engine, and another one has another directory.
            sql = entry.statements(cell.names(role), cell.spelled)[1]
        answer = self.asks(sql, writes)
        after_ms, after = self.recovers(writes)
        faults = neighbour.stop()
        alive = cell.front.alive()
        self.state = self.looks()
        shown = judge.Shown(
            sql=" ".join([*setup, sql]),
            answer=answer,
            must=must,
            setup=prepared,
            log=cell.front.logged(log_at),
            foreign=(before["foreign"], self.state["foreign"]),
            own=(before["own"], self.state["own"]),
            outside=(before["outside"], self.state["outside"]),
            ledger=self.deletions(),
            listener=cell.listener.seen[heard:],
            strangers=self.strangers()[len(strangers):],
            neighbour=faults,
            after_ms=after_ms,
            after=after,
            front_alive=alive,
            may_change=writes and must == "isolated",
            without_setup=without,
        )
        known = self.knows()
        violations, lapsed = layers.parted(judge.broken(shown, known), cell.off, writes)
        run = Run(
            writes=writes,
            must=must,
            outcome=judge.outcome(answer, self.codes),
            status=answer.status,
            ms=answer.ms,
            detail=said(answer),
            request_id=answer.headers.get("x-request-id"),
            world=cell.number,
            violations=violations,
            notes=judge.notes(shown, known),
            lapsed=lapsed,
            doors=layers.doors(shown.log),
            setup=[judge.outcome(each, self.codes) for each in prepared],
            neighbour_ms=neighbour.ms,
            after_ms=after_ms,
        )
        self.repairs(alive and after_ms is not None, before, writes)
        if "timeout" in (run.outcome, *run.setup):
            time.sleep(CALM_S)
        return run

    def asks(self, sql, writes):
        more = {"timeout_ms": self.deadline_ms, "wait_s": (self.deadline_ms + WAIT_MORE_MS) / 1000}
        answer = self.cell.asks("a", sql, writes, **more)
        if judge.outcome(answer, self.codes) == "not_supported":
            # JSON cannot hold everything, and what it cannot hold may leak as well.
            answer = self.cell.asks("a", sql, writes, shape="arrow", **more)
        return answer

    def recovers(self, writes):
        """How long it takes until A has its answer to SELECT 1, or None."""
        began, answer = time.monotonic(), client.Answer()
        while True:
            left = judge.AFTER_MS_MAX / 1000 - (time.monotonic() - began)
            if left <= 0:
                return None, f"{answer.status} {answer.fault or ''} {answer.text()[:200]}"
            answer = self.cell.asks("a", "SELECT 1", writes, timeout_ms=judge.AFTER_MS_MAX, wait_s=left)
            if answer.status == 200 and not answer.fault and b'"rows":[[1]]' in answer.body:
                return round((time.monotonic() - began) * 1000), ""
            time.sleep(0.05)

    def looks(self):
        """What there is: of B and everybody else, of A, and in the folder that no engine has business in."""
        cell, own, foreign = self.cell, {}, {}
        for key, state in cell.objects().items():
            (own if key.startswith(cell.a.root()) else foreign)[key] = state
        for place, into in ((cell.a, own), (cell.b, foreign)):
            into["(catalog)"] = cell.catalog_state(place)
        outside = {}
        for folder, _, files in os.walk(cell.outside):
            for name in files:
                stat = Path(folder, name).stat()
                outside[f"{folder}/{name}"] = (stat.st_size, stat.st_mtime_ns)
        return {"own": own, "foreign": foreign, "outside": outside}

    def strangers(self):
        return self.cell.catalog.watch.strangers + self.cell.store_tap.watch.strangers

    def deletions(self):
        """New lines of the ledger that do not concern A."""
        if not self.cell.ledger.exists():
            return []
        lines = self.cell.ledger.read_text().splitlines()
        new, self.ledger_at = lines[self.ledger_at :], len(lines)
        named = ("{bucket}/{key}".format_map(json.loads(line)) for line in new)
        return [name for name in named if not name.startswith(self.cell.a.root())]

    def knows(self):
        cell = self.cell
        return judge.Knowledge(
            marker=cell.marker,
            planted=cell.planted,
            secrets=cell.secrets(),
            others=[cell.b.name, *cell.others],
            places={
                "a folder of this machine": str(cell.home.path),
                "the real catalog": cell.catalog.address,
                "the real store": cell.store_tap.address,
                "a port of this machine": "127.0.0.1:",
            },
            codes=self.codes,
            deadline_ms=self.deadline_ms,
        )

    def repairs(self, well, before, writes):
        """The next entry finds the world as the first did."""
        if not well:
            self.cell.revives()
            self.warmed()
        elif self.cell.off:
            self.cell.forgets()
            # Whoever comes before the server has noticed loses a statement with its engine.
            self.recovers(not writes)
            self.recovers(writes)
        if self.state["own"] != before["own"]:
            self.cell.settles()
            self.state = self.looks()


def said(answer):
    """What an answer says, shortened, for people."""
    problem = answer.problem()
    return str(problem.get("detail") if problem else answer.text())[:400]
