"""`glean doctor`: check an installed control, node or client, without changing anything."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gleaner.control.cli.config import load_settings
from gleaner.control.cli.failures import BadInput, Failure
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.input_errors import InputError, one_line


def doctor(
    role: Annotated[
        Literal["control", "node", "client"] | None,
        typer.Argument(help="What this machine is.  [default: what it seems to be]"),
    ] = None,
    *,
    bundle: Annotated[
        Path | None, typer.Option(metavar="FILE.tar.gz", help="Pack what a bug report needs, without secrets.")
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="S", min=0.1, max=3600, help="The longest that all of it may take, in seconds.")
    ] = 7.5,
    as_json: AsJson = False,
) -> Answer:
    """Check what is installed on this machine, and say what to do.

    Nothing is changed. As root it sees most. The exit code is 0 if there is no fault.
    """
    from gleaner.control.settings import Settings
    from gleaner.control.setup import bundle as bundles
    from gleaner.control.setup import doctor as checks
    from gleaner.control.setup import readers, reading
    from gleaner.control.setup.facts import MachineRole, Unread
    from gleaner.control.setup.finding import CheckState, fold, has_fault, summary
    from gleaner.control.simulation.metrics.tables import Table

    try:
        settings: Settings | Unread = load_settings()
    except InputError as error:
        settings = Unread(str(error))
    if bundle is not None and bundle.exists():
        raise BadInput(one_line(f"{bundle} is there already: name another file"))
    machine = readers.find_role(lambda path: Path(path).exists()) if role is None else MachineRole(role)
    # On a busy machine this program's own start takes seconds; half of the time is left for the look in any case.
    start_s = min(reading.age_of_this_program_s(), patience / 2)
    facts = readers.read(machine, settings, patience_s=patience - start_s)
    found = checks.findings(facts)
    remarks: tuple[str, ...] = ()
    if bundle is not None:
        try:
            bundles.pack(bundle, facts, found, bundles.read_logs(facts, within_s=patience))
        except OSError as error:
            raise Failure(one_line(f"{bundle}: {error.strerror}")) from error
        remarks = (f"{bundle} holds what a bug report needs; look into it before you send it",)
    exit_code = int(has_fault(found))
    if as_json:
        answer = {"role": machine, "version": facts.version, "findings": found}
        return Answer(answer, as_json, remarks, exit_code)
    worst_first = (CheckState.FAULT, CheckState.WARNING, CheckState.NOT_CHECKED, CheckState.OK)
    rows = sorted(fold(found), key=lambda finding: worst_first.index(finding.state))
    table = Table.of(rows, {"STATE": "state", "CHECK": "name", "SEEN": "seen", "TO DO": "to_do"})
    return Answer((table, f"{machine}: {summary(found)}"), as_json, remarks, exit_code)
