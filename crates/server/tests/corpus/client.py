"""One request, and what came back of it."""

import http.client
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

# More of an answer is not read: what is looked for comes early, and memory is finite.
BODY_BYTES_MAX = 64 << 20


@dataclass
class Answer:
    status: int | None = None
    headers: dict = field(default_factory=dict)
    body: bytes = b""
    ms: int = 0
    # Why there is no whole answer: `unreachable`, `silent`, `cut`, or None.
    fault: str | None = None

    def head(self):
        return "\n".join(f"{name}: {value}" for name, value in self.headers.items())

    def text(self):
        return self.body.decode("utf-8", "replace")

    def problem(self):
        """The body of an error, where it is one."""
        if self.headers.get("content-type") != "application/problem+json" or self.fault:
            return None
        try:
            body = json.loads(self.body)
        except ValueError:
            return None
        return body if isinstance(body, dict) else None


def ask(url, token, body, wait_s, path="/query"):
    """Sends a request and reads until its answer ends, or for `wait_s`."""
    began = time.monotonic()
    ends = began + wait_s
    answer = Answer()
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=wait_s)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.connect()
    except OSError:
        answer.fault = "unreachable"
        return answer
    try:
        try:
            connection.request("POST", path, json.dumps(body).encode(), headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a body that is too large is not read to its end, but it is answered
        read(connection, answer, ends)
    except TimeoutError:
        answer.fault = "silent"
    except (http.client.HTTPException, OSError):
        answer.fault = "cut"
    finally:
        connection.close()
        answer.ms = round((time.monotonic() - began) * 1000)
    return answer


def read(connection, answer, ends):
    sock = connection.sock
    response = connection.getresponse()
    answer.status = response.status
    answer.headers = {name.lower(): value for name, value in response.getheaders()}
    pieces, size = [], 0
    try:
        while size < BODY_BYTES_MAX:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if sock.fileno() >= 0:
                sock.settimeout(left)
            piece = response.read1(1 << 16)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        if response.length:
            raise http.client.IncompleteRead(b"")
    finally:
        answer.body = b"".join(pieces)
