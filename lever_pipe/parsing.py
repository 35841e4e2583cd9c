"""From untrusted values to a validated configuration, with all faults at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lever_pipe.config import Experiment
from lever_pipe.errors import ConfigError, UnknownMemberError

M = TypeVar("M", bound=BaseModel)


def parse_experiment(values: Mapping[str, Any], *, source: str = "config.yaml") -> Experiment:
    """Return the validated experiment.

    Raises:
        ConfigError: any fault; all of them, each with dotted path, value seen, bounds and remedy.
        UnknownMemberError: data sets, encoders, samplers or LVLMs that have no module; all of them.
    """
    experiment = parse_model(Experiment, values, source=source)
    named = {
        "data.reader": ("datasets", experiment.data.reader),
        "encoder.member": ("encoders", experiment.encoder.member),
        "pools.sampler": ("samplers", experiment.pools.sampler),
        "lvlm.member": ("lvlms", experiment.lvlm.member),
    }
    faults = [f"{key}: {_unknown(*member)}" for key, member in named.items() if member[1] not in available(member[0])]
    if faults:
        raise UnknownMemberError(
            f"{source}: expected members that exist",
            found="\n  ".join(["", *faults]) + "\n",
            do="Name one of them, or add the module.",
        )
    return experiment


def parse_model(model: type[M], values: Any, *, source: str) -> M:
    """Return `values` as `model`, or raise one ConfigError that lists every fault."""
    try:
        return model.model_validate(values)
    except ValidationError as fault:
        errors = fault.errors(include_url=False)
        lines = [_line(model, error) for error in errors if not _follows_from_another(error)]
        count = f"{len(lines)} fault" + ("s" if len(lines) > 1 else "")
        raise ConfigError(
            f"{source}: expected a valid configuration",
            found=f"{count}:\n  " + "\n  ".join(lines) + "\n",
            do="Mend the named keys; workflow/schemas/config.schema.json lists all of them.",
        ) from None


def available(kind: str) -> list[str]:
    """Return the members of an extension point: the modules of its folder, without importing them."""
    folder = Path(__file__).parent / kind
    names = [p.stem for p in folder.glob("*.py") if not p.stem.startswith("_") and p.stem != "protocol"]
    return sorted(names)


def require_member(kind: str, name: str) -> None:
    """Raise UnknownMemberError unless `lever_pipe/<kind>/<name>.py` exists."""
    if name not in available(kind):
        raise UnknownMemberError(
            f"a module of lever_pipe/{kind}", found=_unknown(kind, name), do="Name one of them, or add the module."
        )


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of `names`, or None when nothing is close."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return matches[0] if matches else None


def _unknown(kind: str, name: str) -> str:
    members = available(kind)
    near = nearest(name, members)
    return f"'{name}' is none of {', '.join(members)}" + (f"; did you mean '{near}'?" if near else "")


def _line(model: type[BaseModel], error: ErrorDetails) -> str:
    path = _dotted(error["loc"])
    if error["type"] == "extra_forbidden":
        siblings = _fields_at(model, error["loc"][:-1])
        near = nearest(str(error["loc"][-1]), siblings)
        remedy = f"did you mean '{near}'?" if near else f"known keys: {', '.join(sorted(siblings))}."
        return f"{path}: unknown key; {remedy}"
    seen = "" if error["type"] == "missing" else f", got {error['input']!r}"
    if error["type"] == "value_error":  # raised by a validator of ours, which names what it saw
        seen = ""
    message = error["msg"].removeprefix("Value error, ")
    return f"{path}: {message[0].lower()}{message[1:]}{seen}. {_remedy(error)}".rstrip()


def _follows_from_another(error: ErrorDetails) -> bool:
    """Tell a tuple that only looks too short because its elements were refused."""
    return error["type"] == "too_short" and bool(error["input"])


def _remedy(error: ErrorDetails) -> str:
    value = error["input"]
    if isinstance(value, str) and error["type"] in {"float_parsing", "int_parsing"}:
        return "Write a number; YAML reads 1e5 as text, so write 100000, or 1.0e-5 for a small one."
    bound = error.get("ctx", {}).get("ge", error.get("ctx", {}).get("gt", -1))
    if isinstance(value, int | float) and value < 0 <= bound:
        return "Drop the sign."
    if error["type"] == "literal_error":
        near = nearest(str(value), re.findall("'([^']*)'", error["ctx"]["expected"]))
        return f"Did you mean '{near}'?" if near else ""
    return ""


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(whole file)"


def _fields_at(model: Any, location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        if isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(str(part))
            model = field.annotation if field else None
        else:  # an element of a tuple or a value of a mapping
            inner = [a for a in get_args(model) if isinstance(a, type) and issubclass(a, BaseModel)]
            model = inner[-1] if inner else None
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []
