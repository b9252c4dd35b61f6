"""Layers that can be taken off, what need not hold then, and who refused what.

What a server is given in the worker's place is `crates/worker/examples/layers_off`: nothing in `duck-worker` can be switched off.
"""

import argparse
import os

LAYERS = ("policy", "lockdown", "sandbox")

# What need not hold without all of these layers: it is reported, and fails nothing. Everything else holds without any layer, above
# all `marker`, `foreign`, `secret`, and that a reader changes nothing.
LAPSES = [
    # What was written for an entry is mostly that it is refused; a writer may change what is its own.
    ({"policy"}, {"must", "effect"}),
    ({"lockdown"}, {"must"}),
    # This machine: who has its files and its network is kept from neither.
    ({"policy", "lockdown", "sandbox"}, {"outside", "file", "listener", "bypass"}),
]

# What the log says where a door refuses. B's questions are never refused, so it is A's engine that asked.
REFUSED = {
    "storage door": ["refused at the storage door"],
    "catalog door": [
        "refused at the catalog door",
        "a worker asked for another warehouse's prefix",
        "a reader asked for a change",
        "change refused",
        "catalog answer held back",
    ],
}


def named(text):
    """The layers of a list with commas."""
    found = tuple(each for each in LAYERS if each in text.split(","))
    if set(found) != set(text.split(",")):
        raise argparse.ArgumentTypeError(f"of {', '.join(LAYERS)}")
    return found


def program(home, server, off):
    """A worker without these layers, as a server can be given it."""
    built = server.parent / "examples/layers_off"
    if not built.exists():
        raise RuntimeError("it is not built: cargo build --workspace --examples")
    script = home / "worker"
    script.write_text(f'#!/bin/sh\nexec {built} {",".join(off)} "$@"\n')
    os.chmod(script, 0o755)
    return script


def parted(broken, off, writes):
    """What has to hold all the same, and what does not."""
    lapsing = set().union(*(promises for layers, promises in LAPSES if layers <= set(off)))
    if not writes:
        lapsing -= {"effect"}
    found = {True: [], False: []}
    for each in broken:
        found[each.partition(":")[0] in lapsing].append(each)
    return found[False], found[True]


def doors(log):
    """The doors that refused something."""
    return [door for door, texts in REFUSED.items() if any(text in log for text in texts)]
