"""A verb with stages: a group whose own arguments run all of them."""

from __future__ import annotations

import click

from stantools.cli.verbs import CONTEXT

#: name of the command that runs all stages
ALL_STAGES = "run"


class StagesGroup(click.Group):
    """A group that accepts a store in the place of a stage and then runs all stages."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [ALL_STAGES, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the stage; the command of all stages has no name of its own in messages."""
        name, stage, rest = super().resolve_command(ctx, args)
        return "" if name == ALL_STAGES else name, stage, rest

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the help of the command of all stages, and the list of stages."""
        plain = self.commands[ALL_STAGES]
        with click.Context(plain, info_name=ctx.info_name, parent=ctx.parent, **CONTEXT) as own:
            plain.format_help(own, formatter)
        with formatter.section("Stage by stage"):
            stages = {name: each for name, each in self.commands.items() if name != ALL_STAGES}
            formatter.write_dl([(f"{ctx.info_name} {n}", each.get_short_help_str(120)) for n, each in stages.items()])
