"""Words of the command line that tools share with Snakemake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class ConfiguredCommand(click.Command):
    """A command with `--configfile` and `--config` as for the run: each may have several values."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["--configfile"], multiple=True, type=click.Path(path_type=Path), metavar="FILE..."),
            click.Option(["--config"], multiple=True, metavar="NAME=VALUE..."),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat such an option before each of its values, as click expects it."""
        options = (option for option in self.params if isinstance(option, click.Option) and option.multiple)
        several = {name for option in options for name in option.opts}
        words, option = list[str](), ""
        for word in args:
            is_value = option != "" and not word.startswith("-")
            if is_value and words[-1] != option:
                words.append(option)
            words.append(word)
            if not is_value:
                option = word if word in several else ""
        return super().parse_args(ctx, words)


class SnakemakeCommand(click.Command):
    """A command that passes all words but its own options on to Snakemake, as `words`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {"ignore_unknown_options": True}
        self.params.append(click.Argument(["words"], nargs=-1, type=click.UNPROCESSED))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep `--` and what follows it: click would drop the mark, which ends Snakemake's lists of values."""
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        ctx.params["words"] += tuple(args[end:])
        return rest
