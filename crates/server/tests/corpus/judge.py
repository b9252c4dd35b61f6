"""What a run has to show, and what it broke of that. Plain functions on what was seen: nothing here asks or waits."""

import base64
import json
import re
from dataclasses import dataclass, field

from client import Answer

AFTER_MS_MAX = 2_000
OVERRUN_MS_MAX = 2_000
# An answer that is cut after its first byte is how a failure looks from there on (README, "The interface").
CUT = "cut"
# What a refusal looks like: it is said that this is not done, or that there is no such thing. Running out of something is not one.
REFUSALS = (400, 403, 404, 413)
NO_LETTERS = bytes(each for each in range(256) if not chr(each).isascii() or not chr(each).isalnum())


@dataclass
class Knowledge:
    """What is looked for, and what answers are made of."""

    marker: str
    # The marker of files of this machine, which belong to nobody's warehouse.
    planted: str
    secrets: dict
    # Names of other organisations' warehouses.
    others: list
    # Texts that tell where something of the machine's or the service's lies: name and text.
    places: dict
    codes: dict
    deadline_ms: int


@dataclass
class Shown:
    """Everything that was seen of one run."""

    sql: str
    answer: Answer
    must: str
    setup: list = field(default_factory=list)
    log: str = ""
    # Objects, tables and files before and after: name and what changes with them.
    foreign: tuple = ({}, {})
    own: tuple = ({}, {})
    outside: tuple = ({}, {})
    # Deletions that the storage door wrote down and did not do.
    ledger: list = field(default_factory=list)
    listener: list = field(default_factory=list)
    strangers: list = field(default_factory=list)
    # The neighbour's answers: what is wrong with each, or None.
    neighbour: list = field(default_factory=list)
    # After how long a plain statement was answered, or None.
    after_ms: int | None = 0
    after: str = ""
    front_alive: bool = True
    # Whether the run may change what is the caller's own.
    may_change: bool = False
    # The statement's answer in a session that had no setup.
    without_setup: Answer | None = None


def outcome(answer, codes):
    """A code, `answered`, or what is not allowed to be."""
    if answer.fault == "cut":
        return CUT if answer.status == 200 else "broken off"
    if answer.fault:
        return answer.fault
    if answer.status == 200:
        return "answered"
    problem = answer.problem()
    if problem is None:
        return "untyped"
    right = (
        codes.get(problem.get("code")) == answer.status == problem.get("status")
        and problem.get("request_id") == answer.headers.get("x-request-id")
        and isinstance(problem.get("detail"), str)
        and problem["detail"]
    )
    return problem["code"] if right else "untyped"


def broken(shown, known):
    """Every promise that a run broke, in words."""
    answers = [*shown.setup, shown.answer, *([shown.without_setup] if shown.without_setup else [])]
    found = []
    for where, text in seen(answers, shown):
        found += [f"marker: {form} of B's marker in the {where}" for form in forms_in(known.marker, text)]
        found += [f"file: {form} of a local file's marker in the {where}" for form in forms_in(known.planted, text)]
        found += [f"secret: {name} in the {where}" for name, secret in known.secrets.items() if secret in text and secret not in shown.sql]
    said = "".join(answer.head() + answer.text() for answer in answers)
    found += [f"name: {name} in the answer" for name in known.others if name in said and name not in shown.sql]
    for answer in answers:
        if answer.problem() is not None:
            detail = str(answer.problem().get("detail"))
            found += [f"place: a problem names {name}" for name, text in known.places.items() if text in detail and text not in shown.sql]
    found += [f"foreign: {change}" for change in changes(*shown.foreign)]
    found += [f"foreign: a deletion of {entry} was asked for" for entry in shown.ledger]
    found += [f"outside: {change}" for change in changes(*shown.outside)]
    found += [f"listener: {connection}" for connection in shown.listener]
    found += [f"bypass: {stranger}" for stranger in shown.strangers]
    wrong = [each for each in shown.neighbour if each]
    found += [f"neighbour: {each}" for each in wrong[:1]]
    if not shown.neighbour:
        found.append("neighbour: B was never answered")
    if shown.after_ms is None or shown.after_ms > AFTER_MS_MAX:
        found.append(f"after: SELECT 1 was not answered within {AFTER_MS_MAX} ms: {shown.after}")
    if not shown.front_alive:
        found.append("front: the server ended")
    return found + kept(shown, known)


def kept(shown, known):
    """What is broken of `must`, and of what every answer has to be."""
    came, found = outcome(shown.answer, known.codes), []
    if came not in known.codes and came not in ("answered", CUT):
        found.append(f"typed: the answer is {came} (status {shown.answer.status})")
    if shown.answer.ms > known.deadline_ms + OVERRUN_MS_MAX:
        found.append(f"deadline: answered after {shown.answer.ms} ms")
    if shown.must == "deny" and known.codes.get(came) not in REFUSALS and came != "not_supported":
        found.append(f"must: deny, and it is {came}")
    if shown.must == "ok" and came != "answered":
        found.append(f"must: ok, and it is {came}")
    if shown.must in ("deny", "isolated") and came == CUT:
        found.append(f"must: {shown.must}, and it is {came}")
    if not shown.may_change:
        found += [f"effect: {change}" for change in changes(*shown.own)]
    if shown.without_setup and essence(shown.answer) != essence(shown.without_setup):
        found.append("state: the answer is another one than without the setup")
    return found


def seen(answers, shown):
    for answer in answers:
        yield "headers", answer.head()
        yield "body", answer.body.decode("latin-1")
    yield "log", shown.log


def forms_in(marker, text):
    """The ways in which a text has the marker, though it be cut by blanks, frames or other letters' case."""
    text_lower = text.lower()
    if marker in text_lower:
        return ["the text"]
    raw = marker.encode()
    if raw.hex() in text_lower:
        return ["the hexadecimal form"]
    # In base64 a text looks different at each of three offsets; what lies between its first and last letters stays.
    for offset in range(3):
        coded = base64.b64encode(b"\0" * offset + raw)[4:-4].decode()
        if coded in text:
            return ["the base64 form"]
    if marker[::-1] in text_lower:
        return ["the reverse"]
    for escape in ("\\n", "\\r", "\\t"):
        text_lower = text_lower.replace(escape, "")
    if "\\u" in text_lower:
        text_lower = re.sub(r"\\u[0-9a-f]{4}", "", text_lower)
    if raw in text_lower.encode("utf-8", "replace").translate(None, NO_LETTERS):
        return ["pieces"]
    return []


def changes(before, after):
    """What was created, changed or deleted, at most three of it."""
    found = [f"{name} was created" for name in after if name not in before]
    found += [f"{name} was deleted" for name in before if name not in after]
    found += [f"{name} was changed" for name in before if name in after and before[name] != after[name]]
    return found[:3]


def essence(answer):
    """What has to be the same of two answers to one statement: code, or columns and rows, but for times and ids."""
    problem = answer.problem()
    if problem is not None:
        return problem.get("code")
    try:
        body = json.loads(answer.body)
    except ValueError:
        return answer.status
    volatile = any("TIMESTAMP" in column["type"] for column in body["columns"])
    return body["columns"], None if volatile else body["rows"]


def notes(shown, known):
    """What is worth reading though no promise covers it: places that an answer of success shows."""
    if shown.answer.status != 200:
        return []
    text = shown.answer.text()
    return [f"shows {name}" for name, place in known.places.items() if place in text and place not in shown.sql]
