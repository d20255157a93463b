"""Secrets: credentials that a group stores for its jobs. Routes set, list and remove them, but never return a value.

All users of a group can set secrets, which all jobs of the group use. The user who has set a secret, a manager of the
group, and an admin can replace or remove it.
"""

from typing import Annotated

from fastapi import APIRouter, Path

from gleaner.agent.job_spec import Name
from gleaner.control.api import examples
from gleaner.control.api.access import User
from gleaner.control.api.problems import documented
from gleaner.control.api.uploads import Group
from gleaner.control.models.secrets import SecretPut, SecretRow
from gleaner.control.queue import secret_key, secrets

router = APIRouter(prefix="/v1/secrets", tags=["secrets"])

SecretPath = Annotated[Name, Path(description="The group's name for the secret", examples=["ceph"])]


@router.get("", responses=documented(422))
def list_secrets(caller: User, group: Group = None) -> tuple[SecretRow, ...]:
    """Return the secrets of the caller's group. An admin sees the secrets of all groups, or of one group."""
    only = caller.acts_for(group) if group is not None or caller.group is not None else None
    with caller.reading() as db:
        return secrets.rows(db, only)


@router.post("", status_code=201, responses=documented(409, 413, 422))
def set_secret(caller: User, given: Annotated[SecretPut, examples.A_SECRET]) -> SecretRow:
    """Store a secret for the group, in place of an older one with its name."""
    group = caller.acts_for(given.group)
    keys = secret_key.read(caller.state.settings.queue.secret_key_file)
    with caller.writing() as db:
        for there in secrets.rows(db, group):
            if there.name == given.name:
                caller.may_change(f"secret {there.name}", group=there.group, submitter=there.setter)
        made = secrets.put(db, given, group=group, setter=caller.name, keys=keys, now_s=caller.now_s)
    caller.about.append(f"group {group}, secret {made.name} for {made.url}")
    return made


@router.delete("/{secret}", responses=documented(404, 422))
def remove_secret(caller: User, secret: SecretPath, group: Group = None) -> SecretRow:
    """Delete a secret. Jobs that need it then wait, or are held."""
    whose = caller.acts_for(group)
    with caller.writing() as db:
        found = secrets.row(db, whose, secret)
        caller.may_change(f"secret {found.name}", group=found.group, submitter=found.setter)
        secrets.remove(db, whose, secret)
    caller.about.append(f"group {whose}")
    return found
