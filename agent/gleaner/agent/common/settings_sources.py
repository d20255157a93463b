"""Read our programs' settings from a TOML file, and then from the environment, which takes precedence."""

import math
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

LONGEST_S = 5_000_000_000
"""The largest duration and the latest instant that are allowed, in seconds. Python cannot wait longer than 9.2e9 s."""
MOST = 10**12
"""The largest number for any other setting. It exceeds any real value, and every database can hold it."""


def _several(value: object) -> object:
    return value.replace(",", " ").split() if isinstance(value, str) else value


Addresses = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_several), Field(min_length=1)]
"""A list, or one text with commas between the addresses."""


def usable(value: Any, info: ValidationInfo) -> Any:
    """Return a setting's value. Raises `ValueError` for a number that is too large or not finite."""
    most = LONGEST_S if (info.field_name or "").endswith("_s") else MOST
    if isinstance(value, int | float) and not abs(value) <= most:
        raise ValueError(f"must be at most {most:,}" if math.isfinite(value) else "must be a finite number")
    return value


class FileSettings(BaseSettings):
    """Settings from the file that the environment variable `file_variable` names, or from `default_file` if it exists.

    An unknown key is an error.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    _usable = field_validator("*")(usable)

    file_variable: ClassVar[str]
    default_file: ClassVar[Path]

    @classmethod
    def file(cls) -> Path | None:
        """Return the settings file, or None if there is none."""
        if variable := os.environ.get(cls.file_variable):
            return Path(variable)
        return cls.default_file if cls.default_file.exists() else None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order of precedence, in which the environment comes before the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, cls.file())
