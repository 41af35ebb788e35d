"""Sections of the settings: what one part of the broker is given of them."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Settings of one subject. `BrokerSettings` has all sections, and is handed on as any of them.

    A section by itself, as tests make them, has its defaults and reads no environment.
    """

    model_config = ConfigDict(frozen=True)
