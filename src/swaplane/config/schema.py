"""The file's keys, their types and their defaults.

Decides what may be written; what it means together (ports, names that refer to one another, the band rule) is
decided in `load`, `groups`, `scheduling`, `limits`, `keys`, `completion` and `jobs`. Every field has a default, so that
a file with one wrong value is still read as a whole and all of its problems are found: see `validation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from swaplane.completion.rule import DEFAULT_DEADLINE_S, DEFAULT_PATIENCE_S
from swaplane.config import later
from swaplane.config.fields import (
    Bound,
    Bytes,
    Count,
    NoneIsAbsent,
    NotNegative,
    Number,
    OneOrMore,
    Positive,
    PriorityOrBand,
    Switch,
    Text,
    at_least,
    unavailable,
)
from swaplane.core.limits import DEFAULT_WAITING, DEFAULT_WAITING_BYTES

DEFAULT_IGNORE_PATHS = (r".*\.(js|json|css|png|gif|jpg|jpeg|ico|txt)$",)


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
    send_loading_state: Switch | None = None


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
    reserve: dict[str, Count] = {}

    @model_validator(mode="before")
    @classmethod
    def _bare_size(cls, value: object) -> object:
        return {"size": value} if isinstance(value, int | float) else value


class AllowanceEntry(Section):
    """What may wait: under `scheduling.limits.bands.<name>` and `scheduling.limits.member`."""

    waiting: Bound = None
    waiting_bytes: Bytes = None


class LimitsEntry(AllowanceEntry):
    """`scheduling.limits`."""

    waiting: Bound = DEFAULT_WAITING
    waiting_bytes: Bytes = DEFAULT_WAITING_BYTES
    bands: dict[str, AllowanceEntry] = {}
    member: AllowanceEntry = AllowanceEntry()


class BudgetEntry(Section):
    """`scheduling.interactive_budget`; bare minutes are those of the highest band."""

    minutes: Positive | None = None
    band: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _bare_minutes(cls, value: object) -> object:
        return {"minutes": value} if isinstance(value, int | float | str) else value


class SchedulingEntry(Section):
    """`scheduling`."""

    bands: dict[str, int] = {"batch": -100, "normal": 0, "interactive": 100}
    tiers: dict[str, Annotated[int, Field(ge=0)]] = {"free": 0, "pro": 1, "max": 2}
    swap_affinity: Annotated[NotNegative, unavailable("auto", "give points, such as 10")] = 10
    aging_divisor: Positive = 60
    aging_clock: Literal["turn", "submit"] = "turn"
    fairness: Literal["turns", "gpu_time", "none"] = "turns"
    priority_limits: list[int] = [-1000, 1000]
    lanes: dict[str, LaneEntry] = {}
    weights: dict[str, Annotated[Number, Field(ge=0.1, le=10)]] = {}
    max_running_per_member: Bound = None
    max_wait: Any = None  #: read by itself, as it is a number or a mapping of bands
    interactive_budget: Annotated[BudgetEntry | None, NoneIsAbsent] = None
    limits: LimitsEntry = LimitsEntry()


class KeyLimitsEntry(AllowanceEntry):
    """`keys[].limits`."""

    running: Bound = None


class KeyEntry(Section):
    """One of `keys`."""

    key: Text = ""
    name: Text = ""
    member: Text = ""
    tier: Text = ""
    max_priority: PriorityOrBand | None = None
    trust_member_header: Switch = False
    admin: Switch = False
    models: list[Text] | None = None
    limits: KeyLimitsEntry = KeyLimitsEntry()


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
    start_port: Annotated[int, at_least(1, "startPort must be greater than 1")] = 5800
    global_ttl: Annotated[Number, at_least(0, "globalTTL must be >= 0")] = Field(default=0, alias="globalTTL")
    unload_timeout: Annotated[Number, at_least(0, "unloadTimeout must be >= 0")] = 10
    macros: dict[str, Any] = {}
    include_aliases_in_list: Switch = False
    send_loading_state: Switch = False
    api_keys: Any = None  #: these two are read by themselves: no sentence about them may show what is written there
    keys: Any = None
    upstream: Upstream = Upstream()
    models: dict[str, Any] = {}  #: each is read as a ModelEntry on its own, after its macros are put in
    groups: dict[str, GroupEntry] = {}
    routing: Routing = Routing()
    scheduling: SchedulingEntry = SchedulingEntry()
    jobs: JobsEntry = JobsEntry()


#: Sections that hold secrets, and the words in them that may be shown when something is wrong.
PRIVATE: Mapping[str, frozenset[str]] = {
    "apiKeys": frozenset(),
    "keys": frozenset(KeyEntry.known_keys()) | frozenset(KeyLimitsEntry.known_keys()),
}
