"""The file's keys, their types and their defaults.

Decides what may be written; what it means together (ports, names that refer to one another, the band rule) is
decided in `load`, `groups`, `scheduling`, `completion` and `jobs`. Every field has a default, so that a file with
one wrong value is still read as a whole and all of its problems are found: see `validation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from swaplane.completion.rule import DEFAULT_DEADLINE_S, DEFAULT_PATIENCE_S
from swaplane.config import later
from swaplane.config.document import WrittenFloat, WrittenInt
from swaplane.config.macros import spelled

DEFAULT_IGNORE_PATHS = (r".*\.(js|json|css|png|gif|jpg|jpeg|ico|txt)$",)


def as_text(value: object) -> object:
    """A number or switch as it was written; anything else as it is."""
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


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | bool | int | float) else value


Text = Annotated[str, BeforeValidator(as_text)]
OneOrMore = Annotated[list[Text], BeforeValidator(_as_list)]
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
    completion: Any = "response"  #: read by itself, as it is a word or a CompletionEntry


class CompletionEntry(Section):
    """`models.<id>.completion` as a mapping: a preset, or the description of a server."""

    preset: Text = ""
    submit: OneOrMore = []
    id: Text = ""
    poll: Text = ""
    status: Text = "status"
    done: OneOrMore = []
    failed: OneOrMore = []
    progress: Text = ""
    cancel: Text = ""
    result: Text = ""
    deadline: Positive = DEFAULT_DEADLINE_S
    patience: Positive = DEFAULT_PATIENCE_S


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


class WebhookEntry(Section):
    """`jobs.webhook`."""

    hosts: list[Text] = []
    secret: Text = ""


class JobsEntry(Section):
    """`jobs`."""

    path: Text = ""
    keep: Positive = 86400
    interrupted: Literal["rerun", "report"] = "rerun"
    replay: NotNegative = 600
    webhook: WebhookEntry = WebhookEntry()


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
    jobs: JobsEntry = JobsEntry()
