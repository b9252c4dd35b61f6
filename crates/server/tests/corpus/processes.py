"""Processes that end with this one, however it ends: the shell around each waits for the end of its standard input."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

SHELL = '"$@" </dev/null & p=$!; echo $p; exec >/dev/null; cat; kill -{signal} $p 2>/dev/null; wait $p'


def kill(pid, name):
    """Ends this process if it is of that name."""
    try:
        if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, 9)
    except OSError:
        pass  # it has ended


class Process:
    def __init__(self, command, log, signal="TERM", environment=None):
        self.log = Path(log)
        with open(log, "ab") as errors:
            self.shell = subprocess.Popen(
                ["sh", "-c", SHELL.format(signal=signal), "sh", *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
            )
        self.pid = int(self.shell.stdout.readline())

    def line(self):
        """Its next line on standard output."""
        line = self.shell.stdout.readline()
        if not line:
            raise RuntimeError(f"it did not start: {self.log.read_text()[-2000:]}")
        return line

    def alive(self):
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][:1]
        except OSError:
            return False
        return state not in "ZX"

    def logged(self, since=0):
        with open(self.log, "rb") as log:
            log.seek(since)
            return log.read().decode("utf-8", "replace")

    def log_bytes(self):
        return self.log.stat().st_size

    def logs(self, text, wait_s=30):
        """Waits for a line with this text and returns it."""
        ends = time.monotonic() + wait_s
        while time.monotonic() < ends:
            for line in self.logged().splitlines():
                if text in line:
                    return line
            if not self.alive():
                break
            time.sleep(0.05)
        raise RuntimeError(f"it never said {text!r}: {self.logged()[-2000:]}")

    def stop(self):
        self.shell.stdin.close()
        try:
            self.shell.wait(30)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, 9)
            self.shell.wait()
        self.shell.stdout.close()


class Home:
    """A temporary folder that other users may pass through: engines run as somebody else where the server is root."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="corpus-"))
        self.path.chmod(0o711)

    def folder(self, name, mode=0o755):
        path = self.path / name
        path.mkdir(exist_ok=True)
        path.chmod(mode)
        return path

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)
