"""The file's keys, their types and their defaults.

Decides what may be written; what it means together (ports, names that refer to one another, the band rule) is
decided in `load`, `groups` and `scheduling`. Every field has a default, so that a file with one wrong value is
still read as a whole and all of its problems are found.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from swaplane.config import later
from swaplane.config.document import WrittenFloat, WrittenInt
from swaplane.config.macros import spelled
from swaplane.config.problems import Path, Problems

DEFAULT_IGNORE_PATHS = (r".*\.(js|json|css|png|gif|jpg|jpeg|ico|txt)$",)


def _as_text(value: object) -> object:
    if isinstance(value, WrittenInt | WrittenFloat):
        return value.text
    return spelled(value) if isinstance(value, bool | int | float) else value


def _as_switch(value: object) -> object:
    word = value.lower() if isinstance(value, str) else None
    return True if word in {"yes", "on"} else False if word in {"no", "off"} else value


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})


def _at_least(minimum: int, sentence: str) -> AfterValidator:
    """A check in the words that llama-swap's users know."""

    def check(value: float) -> float:
        if value < minimum:
            raise _refused(sentence)
        return value

    return AfterValidator(check)


def _unavailable(word: str, instead: str) -> BeforeValidator:
    def check(value: object) -> object:
        if value == word:
            raise _refused(f"`{word}` is not available yet; {instead}")
        return value

    return BeforeValidator(check)


Text = Annotated[str, BeforeValidator(_as_text)]
Switch = Annotated[bool, BeforeValidator(_as_switch)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A mapping of the file. Keys without a value count as absent, as in llama-swap."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    not_yet: ClassVar[Mapping[str, later.Later]] = {}  #: keys accepted and left out of the fields

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_said(cls, value: object) -> object:
        if value is None:
            return {}
        if not isinstance(value, dict):
            return value
        absent = {key for key in cls.known_keys() if value.get(key) is None}
        return {key: inner for key, inner in value.items() if key not in absent and key not in cls.not_yet}

    @classmethod
    def known_keys(cls) -> dict[str, Any]:
        """Every key that may be written, with the type of its value (Any for those not acted on)."""
        fields = {info.alias or name: info.annotation for name, info in cls.model_fields.items()}
        return fields | dict.fromkeys(cls.not_yet, Any)


class CamelSection(Section):
    """A mapping with llama-swap's spelling of keys."""

    model_config = ConfigDict(alias_generator=to_camel)


class ModelEntry(CamelSection):
    """`models.<id>`."""

    not_yet = later.MODEL

    cmd: Text = ""
    cmd_stop: Text = ""
    proxy: Text = "http://localhost:${PORT}"
    check_endpoint: Text = "/health"
    health_check_timeout: Positive | None = None
    ttl: Number = -1
    unload_timeout: NotNegative = 0
    aliases: list[Text] = []
    env: list[Text] = []
    name: Text = ""
    description: Text = ""
    unlisted: Switch = False
    use_model_name: Text = ""
    metadata: dict[str, Any] = {}
    macros: dict[str, Any] = {}
    concurrency_limit: int = 0
    lane: Text = "gpu"
    slots: Count | None = None


class GroupEntry(CamelSection):
    """`groups.<name>`."""

    swap: Switch = True
    exclusive: Switch = True
    persistent: Switch = False
    members: list[Text] = []


class RouterSettings(CamelSection):
    """`routing.router.settings`."""

    not_yet = later.ROUTER_SETTINGS

    groups: dict[str, GroupEntry] = {}


class Router(CamelSection):
    """`routing.router`."""

    use: Text = "group"
    settings: RouterSettings = RouterSettings()


class Routing(CamelSection):
    """`routing`."""

    not_yet = later.ROUTING

    router: Router | None = None


class Upstream(CamelSection):
    """`upstream`."""

    ignore_paths: list[Text] = list(DEFAULT_IGNORE_PATHS)


class LaneEntry(Section):
    """`scheduling.lanes.<name>`; a bare number is its size."""

    size: Count = 1

    @model_validator(mode="before")
    @classmethod
    def _bare_size(cls, value: object) -> object:
        return {"size": value} if isinstance(value, int | float) else value


class SchedulingEntry(Section):
    """`scheduling`."""

    bands: dict[str, int] = {"batch": -100, "normal": 0, "interactive": 100}
    tiers: dict[str, Annotated[int, Field(ge=0)]] = {"free": 0, "pro": 1, "max": 2}
    swap_affinity: Annotated[NotNegative, _unavailable("auto", "give points, such as 10")] = 10
    aging_divisor: Positive = 60
    aging_clock: Literal["turn", "submit"] = "turn"
    fairness: Annotated[Literal["turns", "none"], _unavailable("gpu_time", "use `turns` or `none`")] = "turns"
    priority_limits: list[int] = [-1000, 1000]
    lanes: dict[str, LaneEntry] = {}


class File(CamelSection):
    """The top level."""

    not_yet = later.TOP_LEVEL

    health_check_timeout: Number = 120
    log_level: Text = "info"
    start_port: Annotated[int, _at_least(1, "startPort must be greater than 1")] = 5800
    global_ttl: Annotated[Number, _at_least(0, "globalTTL must be >= 0")] = Field(default=0, alias="globalTTL")
    unload_timeout: Annotated[Number, _at_least(0, "unloadTimeout must be >= 0")] = 10
    macros: dict[str, Any] = {}
    include_aliases_in_list: Switch = False
    upstream: Upstream = Upstream()
    models: dict[str, Any] = {}  #: each is read as a ModelEntry on its own, after its macros are put in
    groups: dict[str, GroupEntry] = {}
    routing: Routing = Routing()
    scheduling: SchedulingEntry = SchedulingEntry()


S = TypeVar("S", bound=Section)


def validated(kind: type[S], value: object, path: Path, problems: Problems) -> S:
    """`value` as a section of this kind; what is wrong with it becomes problems and counts as not written."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    for detail in wrong:
        _report(kind, detail, path, problems)
    rest = value if isinstance(value, dict) else {}
    for detail in wrong:
        rest = _without(rest, detail["loc"])
    return kind.model_validate(rest)


def _without(tree: dict[str, Any], loc: tuple[str | int, ...]) -> dict[str, Any]:
    """The mapping without what is at `loc`; a list with a wrong item goes whole."""
    if not loc or loc[0] not in tree:
        return tree
    key = str(loc[0])
    inner = tree[key]
    if len(loc) > 1 and isinstance(inner, dict):
        return {**tree, key: _without(inner, loc[1:])}
    return {other: value for other, value in tree.items() if other != key}


def _report(kind: type[Section], detail: ErrorDetails, path: Path, problems: Problems) -> None:
    where = (*path, *detail["loc"])
    key = where[-1] if where else ""
    if detail["type"] == "extra_forbidden":
        problems.add(where, f"unknown key `{key}`", at_key=True, near=(str(key), _known_beside(kind, detail["loc"])))
    else:
        near = (str(detail["input"]), _words(detail)) if detail["type"] == "literal_error" else None
        problems.add(where, _sentence(detail), near=near)


_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _sentence(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "refused":
        return detail["msg"]
    if kind == "greater_than":
        expected = f"greater than {context['gt']:g}"
    elif kind == "greater_than_equal":
        expected = f"at least {context['ge']:g}"
    elif kind == "literal_error":
        expected = " or ".join(f"`{word}`" for word in _words(detail))
    elif kind in _EXPECTED:
        expected = _EXPECTED[kind]
    else:
        return detail["msg"]
    sentence = f"must be {expected}, not {_shown(detail['input'])}"
    quoted = isinstance(detail["input"], str) and "number" in expected and _NUMBER.fullmatch(detail["input"])
    return f"{sentence}: write it without quotes" if quoted else sentence


def _words(detail: ErrorDetails) -> list[str]:
    """The words a Literal takes, from pydantic's own listing of them."""
    return [word for word in detail["ctx"]["expected"].split("'") if word.isidentifier() and word != "or"]


def _shown(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if not isinstance(value, str):
        return str(_as_text(value))
    return f'the text "{value}"'


def _known_beside(kind: type[Section], loc: tuple[str | int, ...]) -> list[str]:
    """The keys that may stand where `loc` ends."""
    here: Any = kind
    for part in loc[:-1]:
        inside = here.known_keys()[str(part)] if _is_section(here) else typing.get_args(here)[-1]
        here = typing.get_args(inside)[0] if isinstance(inside, UnionType) else inside
    return list(here.known_keys()) if _is_section(here) else []


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)
