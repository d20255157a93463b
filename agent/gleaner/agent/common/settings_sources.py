"""The sources of our programs' settings: a TOML file, then the environment on top."""

import os
from pathlib import Path
from typing import ClassVar

from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)


class FileSettings(BaseSettings):
    """Settings from the file that `file_variable` names in the environment, else from `default_file` if it is there.

    An unknown key is an error.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    file_variable: ClassVar[str]
    default_file: ClassVar[Path]

    @classmethod
    def file(cls) -> Path | None:
        """Return the settings file; None if there is none."""
        variable = os.environ.get(cls.file_variable)
        if variable:
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
        """Return the sources, the strongest first: the environment wins over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, cls.file())
