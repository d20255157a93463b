"""The actions on the web page. Each is the API's own function, so the API's rules decide who is allowed to do it.

A destructive action needs a confirmation. Without `confirmed` in the form, the answer is a page that asks for it.
"""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, ValidationError

from gleaner.control.api import campaigns, drains, images, jobs, nodes
from gleaner.control.api.access import Admin, Caller, User
from gleaner.control.api.campaigns import CampaignPath
from gleaner.control.api.examples import JobPath
from gleaner.control.api.nodes import NodePath
from gleaner.control.campaigns import campaign_file
from gleaner.control.campaigns.parameter_files import read_rows
from gleaner.control.input_errors import InputError
from gleaner.control.models.drains import DrainRequest, ResumeRequest
from gleaner.control.models.jobs import CampaignRerun, MigrateRequest, Priority
from gleaner.control.queue import queries
from gleaner.control.queue.errors import QueueError
from gleaner.control.web.gate import ROOT, Fields
from gleaner.control.web.rendering import link, page, problem_page

router = APIRouter(prefix=ROOT)

LONGEST_CAMPAIGN = 32 * 1024
"""A longer file would take a second to parse, and requests of agents wait for the same core."""
FIRST_JOBS = 3
EXAMPLE = """name: zmumu
image: {image}
command: [--seed, '{{index}}', --events, 2000, --process, zmumu, --out, .]
cpus: 1
memory_mib: 512
indices: 1-12
"""
Model = TypeVar("Model", bound=BaseModel)
VERBS: Mapping[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "hold": (jobs.hold, campaigns.hold_campaign),
    "release": (jobs.release, campaigns.release_campaign),
    "cancel": (jobs.cancel, campaigns.cancel_campaign),
}
"""The effect of each verb on a job, and on a campaign."""
Verb = Annotated[str, Path(pattern=f"^({'|'.join(VERBS)})$")]


@router.post("/jobs/{job}/priority")
def set_job_priority(caller: User, job: JobPath, fields: Fields) -> Response:
    """Change a job's priority."""
    jobs.change(caller, job, _model(Priority, {"priority": _number(fields, "priority")}))
    return _to(f"{ROOT}/jobs/{job}", "priority")


@router.post("/jobs/{job}/migrate")
def migrate_job(caller: User, job: JobPath, fields: Fields) -> Response:
    """Save a job now, and let it continue on another node."""
    jobs.migrate(caller, job, _model(MigrateRequest, {"to": fields.get("to") or None}))
    return _to(f"{ROOT}/jobs/{job}", "migrate")


@router.post("/jobs/{job}/rerun")
def rerun_job(caller: User, job: JobPath, _fields: Fields) -> Response:
    """Run a failed job again."""
    jobs.rerun(caller, job)
    return _to(f"{ROOT}/jobs/{job}", "rerun")


@router.post("/jobs/{job}/{verb}")
def act_on_job(request: Request, caller: User, job: JobPath, verb: Verb, fields: Fields) -> Response:
    """Hold, release or cancel a job."""
    if verb == "cancel" and not _is_confirmed(fields):
        row = jobs.show(caller, job).job
        return _question(request, fields, f"Cancel job {job}, {row.name}? It ends for good.", f"{ROOT}/jobs/{job}")
    VERBS[verb][0](caller, job)
    return _to(f"{ROOT}/jobs/{job}", verb)


@router.post("/campaigns/{campaign}/rerun")
def rerun_campaign(caller: User, campaign: CampaignPath, fields: Fields) -> Response:
    """Run the failed jobs of a campaign again, with another image if one is chosen."""
    campaigns.rerun_campaign(caller, campaign, _model(CampaignRerun, {"image": fields.get("image") or None}))
    return _to(f"{ROOT}/campaigns/{campaign}", "rerun")


@router.post("/campaigns/{campaign}/{verb}")
def act_on_campaign(request: Request, caller: User, campaign: CampaignPath, verb: Verb, fields: Fields) -> Response:
    """Hold, release or cancel all jobs of a campaign."""
    if verb == "cancel" and not _is_confirmed(fields):
        left = campaigns.show(caller, campaign).unfinished
        with caller.reading() as db:
            name = queries.find_campaign(db, campaign)["name"]
        ask = f"Cancel campaign {campaign}, {name}? Its {left:,} jobs that have not ended end for good."
        return _question(request, fields, ask, f"{ROOT}/campaigns/{campaign}")
    VERBS[verb][1](caller, campaign)
    return _to(f"{ROOT}/campaigns/{campaign}", verb)


@router.get("/submit")
def submit_page(request: Request, caller: User) -> Response:
    """Return the form for a campaign file."""
    names = images.image_names(caller)
    image = next((name for name in names if "pythia" in name), names[0] if names else "pythia")
    return _form(request, caller, {"campaign": EXAMPLE.format(image=image)})


@router.post("/submit")
def submit_campaign(request: Request, caller: User, fields: Fields) -> Response:
    """Submit the jobs of a campaign file, or show in a dry run which jobs would be submitted.

    After a mistake, the form shows the text again, with the wrong line.
    """
    text, rows, is_dry_run = fields.get("campaign", ""), fields.get("rows", ""), fields.get("dry_run") == "yes"

    def read(path: str, where: str) -> tuple[str, str]:
        if not rows:
            raise InputError(f"{where}: put what is in {path} into the field of the parameter file")
        return path, rows

    try:
        if len(text) > LONGEST_CAMPAIGN:
            raise InputError(f"a campaign on this page has at most {LONGEST_CAMPAIGN:,} letters: use glean submit")
        wanted = campaign_file.submission(read_rows(campaign_file.parse(text, "the campaign"), read))
        made = jobs.submit(caller, wanted.model_copy(update={"dry_run": is_dry_run}), _key(fields))
    except (InputError, QueueError, HTTPException) as error:
        return _form(request, caller, fields, error)
    if is_dry_run:
        first = [*wanted.first_jobs(FIRST_JOBS)]
        return _form(request, caller, fields, first_jobs=first, number=wanted.count, warning=made.warning)
    where = f"jobs/{made.jobs[0]}" if made.campaign is None else f"campaigns/{made.campaign}"
    return _to(f"{ROOT}/{where}", "submit")


def _form(
    request: Request, caller: Caller, fields: Mapping[str, str], error: Exception | None = None, **facts: Any
) -> Response:
    """Return the form of a campaign with its text, the available images, and the wrong line that the error names."""
    wrong = re.match(r"the campaign, line (\d+)", str(error))
    facts |= {"fields": fields, "images": images.image_names(caller), "wrong_line": int(wrong[1]) if wrong else 0}
    if error is not None:
        return problem_page(request, error, "submit.html", **facts)
    return page(request, "submit.html", **facts)


@router.post("/nodes/drain")
def drain_nodes(request: Request, caller: Admin, fields: Fields) -> Response:
    """Drain nodes for maintenance."""
    is_dry_run = fields.get("dry_run") == "yes"
    words = tuple(fields.get("nodes", "").split())
    asked = _model(
        DrainRequest, {"nodes": words, "spanning": fields.get("spanning") or "refuse", "dry_run": is_dry_run}
    )
    if not is_dry_run and not _is_confirmed(fields):
        ask = f"Drain {', '.join(words)}? Nothing new starts there, and the jobs there are saved and put back."
        return _question(request, fields, ask, f"{ROOT}/drains")
    drains.drain(caller, asked)
    return _to(f"{ROOT}/drains", "drain")


@router.post("/nodes/resume")
def resume_nodes(caller: Admin, fields: Fields) -> Response:
    """Resume drained nodes."""
    drains.resume(caller, _model(ResumeRequest, {"nodes": tuple(fields.get("nodes", "").split())}))
    return _to(f"{ROOT}/drains", "resume")


@router.post("/nodes/{node}/trust")
def trust_node(caller: Admin, node: NodePath, _fields: Fields) -> Response:
    """Trust a node again at once, despite its earlier failures."""
    nodes.trust(caller, node)
    return _to(f"{ROOT}/nodes/{node}", "trust")


def _to(path: str, done: str) -> RedirectResponse:
    """Redirect to the page of the changed job or node, which confirms the action."""
    return RedirectResponse(link(path, {"done": done}), 303)


def _is_confirmed(fields: Mapping[str, str]) -> bool:
    return fields.get("confirmed") == "yes"


def _question(request: Request, fields: Mapping[str, str], question: str, back: str) -> Response:
    return page(request, "confirm.html", question=question, fields=fields, back=back)


def _key(fields: Mapping[str, str]) -> str:
    """Return the key of a form, which prevents a second click on its button from submitting the jobs again."""
    told = f"{fields['key']} {fields.get('campaign', '')} {fields.get('rows', '')}" if fields.get("key") else ""
    return sha256(told.encode("utf-8", "replace")).hexdigest() if told else ""


def _number(fields: Mapping[str, str], name: str) -> int:
    try:
        return int(fields.get(name, ""))
    except ValueError:
        raise HTTPException(422, f"{name}: input should be a whole number") from None


def _model(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Return the request to the API. Raises 422 with the API's message about the fault."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
