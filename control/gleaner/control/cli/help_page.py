"""`glean --help` with its commands in groups, and what `glean` alone says."""

from typing import Any

from typer.core import TyperGroup

JOBS, CAMPAIGNS, CLUSTER, ADMIN, SIMULATION = "Jobs", "Campaigns", "Cluster", "Admin", "Simulation"
"""The groups of commands. A command names its group as Typer's `rich_help_panel`."""

FIRST_STEPS = """\
Usage: glean COMMAND ...

  Run containerised jobs on the idle node time of a Slurm cluster.

First steps:
  glean check IMAGE -- COMMAND           See whether a program can be saved here.
  glean submit --image IMAGE -- COMMAND  Submit one job.
  glean submit FILE                      Submit the jobs of a campaign file.
  glean status                           See how your jobs stand.
  glean why JOB                          See what a job waits for.
  glean logs JOB                         Read what a job has printed.
  glean results JOB                      Fetch what a job has left in its folder.

`glean --help` lists all commands. `glean config` says where control is, and
which file has your token: an admin gives you both. docs/quickstart.md has a
first job from its image to its results.
"""


class GroupedCommands(TyperGroup):
    """A command whose help lists its verbs in groups, in the order in which the groups first come."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each group. (The types of the arguments are private to Typer.)"""
        commands = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        width = max(map(len, commands))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in commands.items():
            if not command.hidden:
                text = command.get_short_help_str(formatter.width - 4 - width)
                sections.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append((name, text))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])
