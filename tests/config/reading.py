"""Short ways to read a text as a configuration file."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from swaplane.config.load import ConfigError, parse
from swaplane.config.settings import ModelSettings, Settings


def settings(text: str, environ: Mapping[str, str] | None = None) -> Settings:
    return parse(text, path="c.yaml", environ=environ or {})


def model(text: str, model_id: str = "m", environ: Mapping[str, str] | None = None) -> ModelSettings:
    return settings(text, environ).models[model_id]


def problems(text: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        settings(text, environ)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems
