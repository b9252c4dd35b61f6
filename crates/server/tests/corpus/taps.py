"""What sees connections: an honest listener, and what stands before the real catalog and the real store.

Only the front may speak to catalog and store. Of every connection to one of these the kernel is asked whose socket is at the
other end (`/proc/net/tcp`, then the descriptors of the front's process): one that is not the front's did not come through a
door.
"""

import http.client
import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOCALHOST = "127.0.0.1"


def hexed(address):
    host, port = address
    return "".join(f"{int(part):02X}" for part in reversed(host.split("."))) + f":{port:04X}"


def inode(peer, own):
    """The socket at the other end of a connection of this machine, or None."""
    ends = [hexed(peer), hexed(own)]
    with open("/proc/net/tcp") as table:
        for line in table:
            words = line.split()
            if words[1:3] == ends and words[9] != "0":
                return words[9]
    return None


def holds(pid, inode):
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{name}") == f"socket:[{inode}]":
                return True
        except OSError:
            continue
    return False


class Watch:
    """Who connects. `front` is the pid of the one process that may."""

    def __init__(self):
        self.front = None
        self.accepted = 0
        self.strangers = []

    def sees(self, peer, own):
        self.accepted += 1
        found = inode(peer, own)
        try:
            if found and self.front and holds(self.front, found):
                return
        except OSError:
            pass
        self.strangers.append(f"connection {peer[1]} to {own[1]} is not the front's (socket {found})")


class Listener:
    """Accepts whatever comes, answers like an attacker's web server, and remembers it."""

    def __init__(self):
        self.socket = socket.create_server((LOCALHOST, 0))
        self.address = "%s:%d" % self.socket.getsockname()
        self.seen = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, peer = self.socket.accept()
            self.seen.append(f"connection from {peer[1]}")
            connection.settimeout(1)
            try:
                self.seen[-1] += f": {connection.recv(200)!r}"
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nlistener\n")
            except OSError:
                pass
            connection.close()


class StoreTap:
    """Passes bytes on to the store, or, where the store is a folder, takes the place of one that nobody may speak to."""

    def __init__(self, upstream=None):
        self.watch = Watch()
        self.upstream = upstream
        self.socket = socket.create_server((LOCALHOST, 0), backlog=64)
        self.address = "%s:%d" % self.socket.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, peer = self.socket.accept()
            self.watch.sees(peer, connection.getsockname())
            if not self.upstream:
                connection.close()
                continue
            try:
                onward = socket.create_connection(self.upstream, 10)
            except OSError:
                connection.close()
                continue
            onward.settimeout(None)
            for ends in ((connection, onward), (onward, connection)):
                threading.Thread(target=pass_on, args=ends, daemon=True).start()


def pass_on(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        try:
            end.shutdown(how)
        except OSError:
            pass


class CatalogTap(ThreadingHTTPServer):
    """Passes requests on to the catalog, remembers the tokens that it gives out, and adds to some answers what a hostile
    catalog would."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream, handler=None):
        super().__init__((LOCALHOST, 0), handler or Passing)
        self.watch = Watch()
        self.upstream = upstream
        self.address = "%s:%d" % self.server_address
        self.tokens = set()
        # The end of a path, and what is added to the answer's top level.
        self.added = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def verify_request(self, request, client_address):
        self.watch.sees(client_address, request.getsockname())
        return True

    def handle_error(self, request, client_address):
        pass  # whoever went away does not want an answer


class Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def passes(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        onward = http.client.HTTPConnection(*self.server.upstream, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "content-length")}
            onward.request(self.command, self.onward(), body or None, headers)
            response = onward.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            return
        finally:
            onward.close()
        self.answers(response.status, response.getheaders(), self.looked_at(response.status, data))

    def answers(self, status, headers, data):
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        bodiless = self.command == "HEAD" or status in (204, 304)
        if not bodiless:
            self.send_header("content-length", str(len(data)))
        self.end_headers()
        if not bodiless:
            self.wfile.write(data)

    def onward(self):
        """The path at the catalog itself."""
        return self.path

    do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = passes

    def looked_at(self, status, data):
        if status != 200:
            return data
        path = self.path.partition("?")[0]
        if path.endswith("/oauth/tokens"):
            self.server.tokens.add(json.loads(data)["access_token"])
        for end, more in self.server.added.items():
            if path.endswith(end) and self.command == "GET":
                data = json.dumps(json.loads(data) | more).encode()
        return data


def settled(count, of, wait_s=1.0):
    """Waits until `of()` is at least `count`."""
    ends = time.monotonic() + wait_s
    while of() < count and time.monotonic() < ends:
        time.sleep(0.01)
    return of() >= count
