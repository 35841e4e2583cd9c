"""Puts this folder on the import path (`from builders import ...`), undoes what a stage sets for its process, and lets
no test reach further than this machine."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@pytest.fixture(autouse=True)
def _restore_execution() -> Iterator[None]:
    torch = sys.modules.get("torch")  # light tests need not wait for its import
    threads = torch.get_num_threads() if torch else None
    yield
    if torch := sys.modules.get("torch"):
        torch.set_deterministic_debug_mode("default")
        torch.set_num_threads(threads or torch.get_num_threads())


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in LOOPBACK:
            raise AssertionError(f"a test connects to {address[0]}")
        connect(self, address)

    def guarded_resolve(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in LOOPBACK:
            raise AssertionError(f"a test asks for the address of {host}")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_resolve)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
