"""Formats that must stay: values beside the JSON files that hold them."""

import json
import os
from pathlib import Path
from typing import Any


def check_golden(file: Path, value: dict[str, Any]) -> None:
    """Compare a value with that of the file. To write the file anew, after a change that is meant, set
    GLEANER_TESTS=golden, and read the difference.
    """
    if os.environ.get("GLEANER_TESTS") == "golden":
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(value, indent=1) + "\n")
    assert json.loads(file.read_text()) == value
