"""`glean doctor`, which checks an installed control, node or client without changing anything."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gleaner.control.cli.failures import CliError
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.effective_settings import load_settings
from gleaner.control.input_errors import one_line


def doctor(
    role: Annotated[
        Literal["control", "node", "client"] | None,
        typer.Argument(help="The role of this machine.  [default: detected]"),
    ] = None,
    *,
    bundle: Annotated[
        Path | None, typer.Option(metavar="FILE.tar.gz", help="Pack the findings for a bug report, without secrets.")
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="S", min=0.1, max=3600, help="The time limit for all checks together, in seconds.")
    ] = 7.5,
    as_json: AsJson = False,
) -> Answer:
    """Check what is installed on this machine, and name the remedies.

    Nothing is changed. As root, more can be checked. The exit code is 0 if there is no fault.
    """
    from gleaner.agent.common.installed_version import installed_version
    from gleaner.control.doctor import bundle as bundles
    from gleaner.control.doctor.doctor import age_of_this_program_s, examine, find_role
    from gleaner.control.doctor.finding import CheckState, MachineRole, fold, summary
    from gleaner.control.doctor.look import Look
    from gleaner.control.simulation.metrics.tables import Table

    machine = find_role(lambda path: Path(path).exists()) if role is None else MachineRole(role)
    # On a busy machine this program's own start takes seconds, so half of the time is reserved for the checks.
    look = Look(machine, load_settings, within_s=patience - min(age_of_this_program_s(), patience / 2))
    found = examine(look)
    remarks = (f"{bundle} contains what a bug report needs; check it before you send it",) if bundle else ()
    if bundle is not None:
        try:
            bundles.pack(bundle, look, found)
        except OSError as error:
            raise CliError(one_line(f"{bundle}: {error.strerror}")) from error
    exit_code = int(any(finding.state is CheckState.FAULT for finding in found))
    if as_json:
        return Answer({"role": machine, "version": installed_version(), "findings": found}, as_json, remarks, exit_code)
    rows = sorted(fold(found), key=lambda finding: list(CheckState).index(finding.state))
    table = Table.of(rows, {"STATE": "state", "CHECK": "name", "SEEN": "seen", "TO DO": "to_do"})
    return Answer((table, f"{machine}: {summary(found)}"), as_json, remarks, exit_code)
