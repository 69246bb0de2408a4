"""The completions that a configuration file may choose by name.

Decides what is known of those servers: the paths and words of OpenAI's Videos API as vLLM-Omni and SGLang serve it.
Called by `config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from swaplane.completion.comfyui import ComfyUi
from swaplane.completion.paths import Route
from swaplane.completion.polled import Polled
from swaplane.completion.rule import Completion

#: How vLLM-Omni's ids begin. Its DELETE aborts the job; that of SGLang forgets it while the GPU goes on.
_VLLM_OMNI = "video_gen_"


def openai_videos(deadline_s: float, patience_s: float) -> Completion:
    """OpenAI's Videos API, and the `/v1/videos/sync` of vLLM-Omni: no submit, its response is the job."""
    going_on = tuple(Route("POST", path) for path in ("/v1/videos/edits", "/v1/videos/extensions"))
    return Polled(
        name="openai-videos",
        submit=(Route("POST", "/v1/videos"), Route("POST", "/v1/videos/{id}/remix"), *going_on),
        going_on=going_on,
        source_at=("video", "video[id]", "video_id"),
        id_at="id",
        poll=Route("GET", "/v1/videos/{id}"),
        done=("completed",),
        failed=("failed",),
        progress_at="progress",
        cancel=Route("DELETE", "/v1/videos/{id}"),
        freeing_ids=(_VLLM_OMNI,),
        result=Route("GET", "/v1/videos/{id}/content"),
        other_by="variant=",
        same_as_none=("variant=video",),
        heedless=(Route("POST", "/v1/videos/sync"),),
        deadline_s=deadline_s,
        patience_s=patience_s,
    )


def comfyui(deadline_s: float, patience_s: float) -> Completion:
    """ComfyUI."""
    return ComfyUi(deadline_s=deadline_s, patience_s=patience_s)


#: By name; each takes `deadline_s` and `patience_s`.
PRESETS: Mapping[str, Callable[[float, float], Completion]] = MappingProxyType(
    {"openai-videos": openai_videos, "comfyui": comfyui}
)
