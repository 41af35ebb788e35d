"""Sections of the settings that are used without the rest of them."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Settings of one subject. `BrokerSettings` has all sections.

    A section by itself, as tests make them, has its defaults and reads no environment.
    """

    model_config = ConfigDict(frozen=True)
