"""A batch as OpenAI's clients know it, and as it is stored: one JSON text.

Decides what a request for a batch may say. Called by `batches` and `batch_run`.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from swaplane.config.problems import nearest
from swaplane.gateway.errors import RequestRefused
from swaplane.gateway.openai_files import KEPT_S, SHORTEST_S, new_file_id
from swaplane.gateway.routes import ROUTES
from swaplane.store.batches import StoredBatch

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Ending = Literal["completed", "expired", "cancelled"]
OVER: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})  #: no status follows on these

_LONGEST_H = 168
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")
_ENDPOINTS = [path for path, routes in ROUTES.items() if "POST" in routes and routes["POST"].kind == "json"]
_USUAL = ("/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings")
_PAIRS, _KEY_CHARS, _VALUE_CHARS = 16, 64, 512  # of a batch's metadata
_METADATA = (
    f"it must be an object of at most {_PAIRS} texts, with keys of up to {_KEY_CHARS}"
    f" and values of up to {_VALUE_CHARS} characters"
)


class BadBatch(RequestRefused):
    """The request for a batch is not one."""


class OutputExpiresAfter(BaseModel):
    """How long the output is kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=SHORTEST_S, le=KEPT_S)]


class NewBatch(BaseModel):
    """The request for a batch."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiresAfter | None = None

    @field_validator("endpoint")
    @classmethod
    def _is_route(cls, value: str) -> str:
        if value not in _ENDPOINTS:
            mistyped = value if value not in ROUTES else ""  # a route of another kind is none
            close = nearest(mistyped[:100], [path for path in _ENDPOINTS if path.startswith("/v1/")], n=2)
            paths = " or ".join(f"`{path}`" for path in close or _USUAL)
            meant = f"did you mean {paths}?" if close else f"it must be a route that takes JSON, such as {paths}"
            raise ValueError(f"`{value[:100]}` cannot be run in a batch; {meant}")
        return value

    @field_validator("metadata", mode="before")
    @classmethod
    def _is_metadata(cls, value: object) -> object:
        fits = value is None or (
            isinstance(value, dict)
            and len(value) <= _PAIRS
            and all(
                isinstance(text, str) and len(text) <= _VALUE_CHARS and len(key) <= _KEY_CHARS
                for key, text in value.items()
            )
        )
        if not fits:
            raise ValueError(_METADATA)
        return value

    @field_validator("completion_window")
    @classmethod
    def _is_window(cls, value: str) -> str:
        found = _WINDOW.fullmatch(value)
        if found is None or int(found[1]) > _LONGEST_H:
            raise ValueError(f"it must be a number of hours from `1h` to `{_LONGEST_H}h`, such as `24h`")
        return value

    @property
    def window_s(self) -> int:
        """The completion window in seconds."""
        return int(self.completion_window[:-1]) * 3600


def read_new_batch(data: bytes) -> NewBatch:
    """The request in a body. Raises BadBatch."""
    try:
        return NewBatch.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        words = first["msg"].removeprefix("Value error, ")
        raise BadBatch(f"`{where}`: {words}" if where else f"the request body: {words}") from error


class Counts(BaseModel):
    """How many lines a batch has."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchError(BaseModel):
    """Why a batch failed."""

    code: str
    line: int | None = None
    message: str
    param: str | None = None


class BatchErrors(BaseModel):
    """All reasons why a batch failed."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class Sender(BaseModel):
    """On whose behalf a batch runs."""

    member: str
    key: str = ""  #: name of the API key; empty without one
    label: str
    priority: int
    client: str  #: host
    authorization: str | None  #: the header, as received, where it is for the models' servers


class Batch(BaseModel):
    """One batch."""

    model_config = ConfigDict(validate_assignment=True)

    id: str = Field(default_factory=lambda: f"batch_{uuid.uuid4().hex}")
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = Field(default_factory=Counts)
    metadata: dict[str, str] | None = None

    # What its clients are not told.
    sender: Sender
    ending: Ending = "completed"  #: what is to become of it
    output_kept_s: int = KEPT_S
    # Chosen at the beginning, so that a file that was written is known after a crash.
    future_output_file_id: str = Field(default_factory=new_file_id)
    future_error_file_id: str = Field(default_factory=new_file_id)

    def told(self) -> dict[str, Any]:
        """What its clients are told."""
        return self.model_dump(
            exclude={"sender", "ending", "output_kept_s", "future_output_file_id", "future_error_file_id"}
        )


def stored_batch(batch: Batch, *, is_open: bool) -> StoredBatch:
    """A batch as the store keeps it: as long as it is open, and then for as long as its files."""
    return StoredBatch(
        id=batch.id,
        created_at=batch.created_at,
        data=batch.model_dump_json(),
        open=is_open,
        member=batch.sender.member,
        key_name=batch.sender.key,
        expires_at=None if is_open else time.time() + KEPT_S,
    )
