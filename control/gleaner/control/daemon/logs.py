"""The log of control and its libraries on the error output, either as plain text or as one JSON object per line."""

import logging
import sys
from typing import Any

import structlog

from gleaner.control.api import audit

AUDIT_LINE = "%(message)s"
"""Audit lines are already JSON."""


def write_to_stderr(form: str) -> None:
    """Send all log lines of this process to its error output, in this form (`[log] format`)."""
    is_json = form == "json"
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    rendered = structlog.processors.JSONRenderer() if is_json else plain
    structlog.configure(
        processors=[*common, rendered],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    libraries = logging.StreamHandler(sys.stderr)
    if is_json:
        chain = [structlog.stdlib.add_logger_name, *common]
        libraries.setFormatter(structlog.stdlib.ProcessorFormatter(rendered, foreign_pre_chain=chain))
    else:
        libraries.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root, lines = logging.getLogger(), logging.getLogger(audit.LOGGER)
    root.handlers[:], root.level = [libraries], logging.WARNING
    lines.setLevel(logging.INFO)
    if is_json:
        own = logging.StreamHandler(sys.stderr)
        own.setFormatter(logging.Formatter(AUDIT_LINE))
        lines.handlers[:], lines.propagate = [own], False
