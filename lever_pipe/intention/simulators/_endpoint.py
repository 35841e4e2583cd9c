"""Where an OpenAI-compatible server stands, and the key for it, both from the configuration and named variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from lever_pipe.base.errors import SimulatorError
from lever_pipe.experiment.agent_config import Connection
from lever_pipe.intention.simulators._http import Target

_CONTROL = 32


class Access(NamedTuple):
    """A server and what lets us in; its text never shows the key."""

    target: Target
    url: str
    headers: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Access({self.url!r})"


def find_access(connection: Connection, environ: Mapping[str, str] = os.environ) -> Access:
    """Return the server's place and the headers that hold the key; a server of one's own needs none.

    Raises:
        SimulatorError: no address, one that is none, or a key that no header can hold.
    """
    name = connection.base_url_variable
    url = connection.base_url or environ.get(name, "")
    setting = "intention.execution.connection.base_url" if connection.base_url else f"${name}"
    if not url:
        raise SimulatorError(
            "the address of an OpenAI-compatible server",
            found=f"neither intention.execution.connection.base_url nor the environment variable {name}",
            do="Set one of them, such as http://127.0.0.1:8000/v1.",
        )
    return Access(_target_of(url, setting), url, _headers(connection.api_key_variable, environ))


def _target_of(url: str, setting: str) -> Target:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        raise _no_address(setting, "one that does not parse") from None
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise _no_address(setting, repr(url) if parts.password is None else "something else")
    if parts.username is not None or parts.query or parts.fragment:
        raise _no_address(setting, "an address with a name, password, query or fragment in it")
    is_secure = parts.scheme == "https"
    default = 443 if is_secure else 80
    return Target(is_secure, host, default if port is None else port, parts.path.rstrip("/") + "/chat/completions")


def _no_address(setting: str, found: str) -> SimulatorError:
    return SimulatorError(
        f"{setting}: expected an address such as http://127.0.0.1:8000/v1", found=found, do="Mend the setting."
    )


def _headers(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    key = environ.get(name, "").strip()
    if not key:
        return {}
    if not key.isascii() or any(ord(letter) <= _CONTROL for letter in key):
        raise SimulatorError(
            f"an API key in the environment variable {name}",
            found="a value with blanks, control or non-ASCII characters (not shown)",
            do="Export the key alone.",
        )
    return {"Authorization": f"Bearer {key}"}
