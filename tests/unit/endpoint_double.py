"""A local server that plays an OpenAI-compatible endpoint, well or badly, following its script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

Act = Callable[[BaseHTTPRequestHandler, dict[str, Any], Event], None]


def chat_body(content: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()


def judgement(*indices: int, related: bool = True) -> str:
    return json.dumps({"analysis": "a", "is_task_related": related, "covered_detail_indices": list(indices)})


def send(body: bytes, *, status: int = 200, kind: str = "application/json", **headers: str) -> Act:
    def act(handler: BaseHTTPRequestHandler, request: dict[str, Any], released: Event) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return act


def completion(content: Any) -> Act:
    return send(chat_body(content))


def hang(handler: BaseHTTPRequestHandler, request: dict[str, Any], released: Event) -> None:
    released.wait(30)


def hang_up(handler: BaseHTTPRequestHandler, request: dict[str, Any], released: Event) -> None:
    """Close the connection without a word."""


class Double:
    """The running server: its address and the requests that it received."""

    def __init__(
        self, url: str, released: Event, requests: list[dict[str, Any]], headers: list[dict[str, str]]
    ) -> None:
        self.url = url
        self.requests = requests
        self.headers = headers
        self._released = released


@contextmanager
def serve(*acts: Act, always: Act | None = None) -> Iterator[Double]:
    """Run a server that acts once for each request, then `always` (by default: fail the request)."""
    script, lock, released = list(acts), Lock(), Event()
    requests: list[dict[str, Any]] = []
    headers: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                requests.append(request | {"path": self.path})
                headers.append(dict(self.headers))
                act = script.pop(0) if script else (always or send(b"", status=500))
            with suppress(BrokenPipeError, ConnectionResetError):  # the client disconnected, as some tests want
                act(self, request, released)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Log nothing about clients that disconnected."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield Double(f"http://127.0.0.1:{server.server_port}/v1", released, requests, headers)
    finally:
        released.set()
        server.shutdown()
        server.server_close()
        thread.join()
