"""`glean config`, which prints the settings and their origins."""

import os
import re

from gleaner.control.cli.output import Answer, AsJson, Configuration, Setting
from gleaner.control.effective_settings import TABLES, load_settings, settings_file, settings_variables


def config(as_json: AsJson = False) -> Answer:
    """Print the settings and where each comes from. Passwords are never shown."""
    settings = load_settings()
    file = settings_file()
    variables = settings_variables(os.environ)
    rows: list[Setting] = []
    for table in TABLES:
        for key, value in getattr(settings, table).model_dump(mode="json").items():
            origin = variables.get((table, key), "file" if key in file.tables.get(table, {}) else "default")
            shown = without_password(value) if isinstance(value, str) and "://" in value else value
            rows.append(Setting(table=table, key=key, value=shown, origin=origin))
    return Answer(Configuration(file=str(file.path) if file.path else None, settings=tuple(rows)), as_json)


def without_password(url: str) -> str:
    """Return the URL with its password, wherever it appears, replaced by `***`.

    >>> without_password("postgresql+psycopg://gleaner:secret@db/gleaner?password=secret")
    'postgresql+psycopg://gleaner:***@db/gleaner?password=***'
    """
    masked = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)
    return re.sub(r"(?i)((?:password|passwd|secret|token)=)[^&]*", r"\1***", masked)
