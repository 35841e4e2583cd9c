"""The command `lever-pipe`: tools for people, and `lever-pipe stage NAME ...` for rules."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

import lever_pipe
from lever_pipe.base.errors import ConfigError
from lever_pipe.base.sections import did_you_mean
from lever_pipe.runtime import stage_call

TOOLS = {
    "doctor": ("runtime.checks.doctor", "check whether a run can work here, before it starts"),
    "plan": ("commands.plan_tool", "print the jobs of a run, their reasons and their duration"),
    "fetch": ("commands.fetch_tool", "download the models that a configuration names"),
    "why": ("commands.why_tool", "print why a target would run, or what it was made from"),
    "trace": ("commands.trace", "trace a number, figure or policy back to data, code and configuration"),
    "compare": ("commands.compare_tool", "say whether two runs agree bit for bit, and print their differences"),
    "store": ("commands.store_tool", "count, check or trim the store of finished work"),
    "ledger": ("commands.ledger_tools", "merge the many files of a ledger of LVLM answers"),
    "convert": ("commands.convert_tool", "write safetensors next to the .bin weights of a model folder"),
    "import_checkpoint": ("commands.checkpoint_tool", "convert a selector from the original's training"),
    "release": ("commands.release_tool", "write a trained policy or agent as a folder for the Hugging Face Hub"),
    "export_rl_data": ("commands.rl_data_tool", "write RL data in the original format"),
    "schema": ("commands.schema_tool", "print the schema of the configuration"),
}
"""Tools, the most common first: module of the `command`, and description."""
STAGE = "stage"


class Tools(click.Group):
    """The tools and `stage`. A tool's module is imported when it is called; the list needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the tools; stages are for rules."""
        return list(TOOLS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a tool or `stage`; None for another name."""
        if cmd_name == STAGE:
            return stage_call.stage
        command: click.Command | None = None
        if cmd_name in TOOLS:
            command = import_module(f"lever_pipe.{TOOLS[cmd_name][0]}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse a name that is no tool, with the nearest one."""
        if args[0] not in (STAGE, *TOOLS) and not args[0].startswith("-"):
            do = did_you_mean(args[0], TOOLS, "List them all: lever-pipe --help")
            raise ConfigError(f"expected a tool ({', '.join(TOOLS)})", found=f"'{args[0]}'", do=do)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of tools."""
        with formatter.section("Tools, each with its own --help"):
            formatter.write_dl([(name, does) for name, (_, does) in TOOLS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the tools that begin with a word."""
        return [CompletionItem(name, help=does) for name, (_, does) in TOOLS.items() if name.startswith(incomplete)]


@click.command(cls=Tools, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(lever_pipe.__version__, message="%(version)s")
def tools() -> None:
    """Check, plan, explain and compare runs. The runs themselves are Snakemake's: `make reproduce`, `snakemake`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tool or a stage and return the exit status."""
    return stage_call.exit_status(tools, sys.argv[1:] if arguments is None else arguments, name="lever-pipe")


def _leave(status: int) -> NoReturn:
    """End the process at once: all files are closed, and unloading torch takes as long as a short stage."""
    for flush in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with suppress(OSError):  # the log may be on a full disk
            flush()
    os._exit(status)


def command() -> NoReturn:
    """Run `main` and end the process; entry point `lever-pipe` of an installed environment."""
    _leave(main())


if __name__ == "__main__":
    command()
