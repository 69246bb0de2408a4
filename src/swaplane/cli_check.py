"""What a configuration will run, as one JSON document and as text for people.

Only renders resolved settings; what is right or wrong about a file is decided in `config.load`. Values of
environment variables are left out, because they often hold secrets, and so are the hashes of API keys. Called by
`swaplane check`.
"""

from __future__ import annotations

import itertools
import shlex
from typing import Any

from rich.console import Console
from rich.table import Table

from swaplane.config.settings import Key, ModelSettings, Settings
from swaplane.core.limits import Allowance, Limits
from swaplane.core.score import ScoreRules, band_distance


def described(settings: Settings) -> dict[str, Any]:
    """The settings as JSON: models, groups, lanes, the score's rules, limits, keys and the warnings."""
    rules = settings.rules
    return {
        "file": settings.path,
        "models": [_model(model) for model in settings.models.values()],
        "groups": [
            {
                "name": group.name,
                "swap": group.swap,
                "exclusive": group.exclusive,
                "persistent": group.persistent,
                "members": sorted(group.members),
            }
            for group in settings.groups
        ],
        "lanes": [
            {
                "name": lane.name,
                "size": lane.size,
                "reserve": dict(lane.reserve),
                "models": [model.id for model in settings.models.values() if model.lane == lane.name],
            }
            for lane in settings.lanes.values()
        ],
        "scheduling": {
            "bands": _bands(rules),
            "tiers": dict(rules.tiers),
            "swap_affinity": rules.swap_affinity,
            "aging_divisor": rules.aging_divisor_s,
            "aging_clock": rules.aging_clock,
            "fairness": rules.fairness,
            "weights": dict(rules.weights),
            "priority_limits": [rules.priority_min, rules.priority_max],
            "distance": _distance(rules),
        },
        "limits": _limits(settings.limits),
        "keys": [_key(key, settings.limits) for key in settings.keys],
        "warnings": list(settings.warnings),
    }


def _model(model: ModelSettings) -> dict[str, Any]:
    return {
        "id": model.id,
        "aliases": list(model.aliases),
        "lane": model.lane,
        "slots": model.slots,
        "argv": list(model.argv),
        "env": [assignment.partition("=")[0] for assignment in model.env],
        "stop_argv": None if model.stop_argv is None else list(model.stop_argv),
        "proxy": model.proxy,
        "check_endpoint": model.check_endpoint,
        "health_timeout_s": model.health_timeout_s,
        "unload_timeout_s": model.unload_timeout_s,
        "ttl_s": model.ttl_s,
        "use_model_name": model.use_model_name or None,
        "unlisted": model.unlisted,
        "send_loading_state": model.send_loading_state,
    }


def _limits(limits: Limits) -> dict[str, Any]:
    """Numbers and seconds; null stands for no limit."""
    budget = limits.budget
    return {
        **_allowance(limits.total),
        "bands": {band: _allowance(allowance) for band, allowance in limits.bands.items()},
        "member": _allowance(limits.member),
        "max_running_per_member": limits.max_running,
        "max_wait_s": dict(limits.max_wait_s),
        "interactive_budget": None if budget is None else {"band": budget.band, "gpu_s_per_hour": budget.gpu_s},
    }


def _allowance(allowance: Allowance) -> dict[str, Any]:
    return {"waiting": allowance.jobs, "waiting_bytes": allowance.bytes}


def _key(key: Key, limits: Limits) -> dict[str, Any]:
    return {
        "name": key.name,
        "member": key.member,
        "tier_bonus": key.tier_bonus,
        "max_priority": key.max_priority,
        "trust_member_header": key.trust_member_header,
        "admin": key.admin,
        "models": None if key.models is None else sorted(key.models),
        "limits": {
            **_allowance(limits.keys.get(key.name, Allowance())),
            "running": limits.running_of_keys.get(key.name),
        },
    }


def _bands(rules: ScoreRules) -> list[dict[str, Any]]:
    """The bands, the highest first, each with the priorities it holds; null where the limits leave none."""
    floors = [rules.priority_min, *(band.value for band in rules.bands[1:])]
    ceilings = [*(band.value - 1 for band in rules.bands[1:]), rules.priority_max]
    bands = []
    for band, floor, ceiling in zip(rules.bands, floors, ceilings, strict=True):
        low, high = max(floor, rules.priority_min), min(ceiling, rules.priority_max)
        empty = low > high
        bands.append(
            {"name": band.name, "value": band.value, "from": None if empty else low, "to": None if empty else high}
        )
    return bands[::-1]


def _distance(rules: ScoreRules) -> dict[str, Any] | None:
    """The check that tier and affinity alone never lift a job into a higher band; None with a single band."""
    found = band_distance(rules)
    if found is None:
        return None
    smallest, needed = found
    low, high = min(itertools.pairwise(rules.bands), key=lambda pair: pair[1].value - pair[0].value)
    return {"smallest": smallest, "between": [low.name, high.name], "must_exceed": needed}


def print_report(settings: Settings) -> None:
    """The same for people, on standard output; warnings come last."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    document = described(settings)
    console.print(f"{settings.path}: {_count(len(settings.models), 'model')} in {_count(len(settings.lanes), 'lane')}")
    for model in document["models"]:
        console.print()
        console.print(model["id"], style="bold")
        console.print(_facts(_model_facts(model)))
    if document["groups"]:
        console.print("\nGroups", style="bold")
        console.print(_facts([(group["name"], _group_words(group)) for group in document["groups"]]))
    console.print("\nLanes", style="bold")
    console.print(_facts([(lane["name"], _lane_words(lane)) for lane in document["lanes"]]))
    console.print("\nBands", style="bold")
    console.print(_band_table(document["scheduling"]))
    for line in _rule_lines(document["scheduling"]):
        console.print(line)
    console.print("\nLimits", style="bold")
    console.print(_facts(_limit_facts(document["limits"])))
    console.print("\nKeys", style="bold")
    if not document["keys"]:
        console.print("  none: whoever reaches the gateway may do everything")
    else:
        console.print(_facts([(key["name"], _key_words(key, settings.rules)) for key in document["keys"]]))
    for warning in settings.warnings:
        console.print(f"\nwarning: {warning}", style="yellow")


def _facts(facts: list[tuple[str, str]]) -> str:
    """Names and what they say, a line each; long texts run on instead of being cut."""
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in facts)


def _model_facts(model: dict[str, Any]) -> list[tuple[str, str]]:
    ready = (
        "taken to be ready once it runs"
        if model["check_endpoint"] == "none"
        else f"{model['check_endpoint']} answers 200 within {model['health_timeout_s']:g} s"
    )
    stop = "SIGTERM" if model["stop_argv"] is None else shlex.join(model["stop_argv"])
    ttl = "stays loaded when idle" if model["ttl_s"] is None else f"unloaded after {model['ttl_s']:g} s idle"
    facts = [
        ("aliases", ", ".join(model["aliases"])),
        ("lane", f"{model['lane']}, {_count(model['slots'], 'job')} at a time"),
        ("command", shlex.join(model["argv"])),
        ("env", ", ".join(model["env"]) + " (values not shown)" if model["env"] else ""),
        ("proxy", model["proxy"]),
        ("ready", ready),
        ("stop", f"{stop}, SIGKILL after {model['unload_timeout_s']:g} s"),
        ("ttl", ttl),
        ("model name", f"its server is sent `{model['use_model_name']}`" if model["use_model_name"] else ""),
        ("unlisted", "left out of /v1/models" if model["unlisted"] else ""),
        ("while it waits", "a streamed chat is told so in its text" if model["send_loading_state"] else ""),
    ]
    return [(name, text) for name, text in facts if text]


def _group_words(group: dict[str, Any]) -> str:
    swap = "one resident at a time" if group["swap"] else "resident together"
    exclusive = "other groups leave for it" if group["exclusive"] else "other groups may stay"
    persistent = ", leaves for no other group" if group["persistent"] else ""
    return f"{', '.join(group['members']) or 'no models'}: {swap}, {exclusive}{persistent}"


def _lane_words(lane: dict[str, Any]) -> str:
    reserved = "".join(f", {count} reserved for {band}" for band, count in lane["reserve"].items())
    return f"{_count(lane['size'], 'place')}{reserved}: {', '.join(lane['models']) or 'no models'}"


def _limit_facts(limits: dict[str, Any]) -> list[tuple[str, str]]:
    budget = limits["interactive_budget"]
    running = limits["max_running_per_member"]
    facts = [
        ("waiting", _waiting_words(limits)),
        *((f"waiting in {band}", _waiting_words(allowance)) for band, allowance in limits["bands"].items()),
        ("waiting of a member", _waiting_words(limits["member"])),
        ("running of a member", "" if running is None else _count(running, "job")),
        ("longest wait", ", ".join(f"{band} {seconds:g} s" for band, seconds in limits["max_wait_s"].items())),
        (
            "budget of a member",
            "" if budget is None else f"{budget['gpu_s_per_hour'] / 60:g} minutes an hour from {budget['band']} up",
        ),
    ]
    return [(name, text or "no limit") for name, text in facts]


def _waiting_words(allowance: dict[str, Any]) -> str:
    jobs, size = allowance["waiting"], allowance["waiting_bytes"]
    words = ["" if jobs is None else _count(jobs, "job"), "" if size is None else _size(size)]
    return ", ".join(filter(None, words))


def _size(size: int) -> str:
    """Bytes in the greatest unit that leaves no fraction."""
    units = {"GiB": 1 << 30, "GB": 10**9, "MiB": 1 << 20, "MB": 10**6, "KiB": 1 << 10, "kB": 1000}
    return next((f"{size // bytes_} {unit}" for unit, bytes_ in units.items() if not size % bytes_), f"{size} bytes")


def _key_words(key: dict[str, Any], rules: ScoreRules) -> str:
    member = key["member"] or "anonymous"
    tier = next((name for name, bonus in rules.tiers.items() if bonus == key["tier_bonus"]), None)
    limits = key["limits"]
    running = limits["running"]
    words = [
        f"member named by each request, else {member}" if key["trust_member_header"] else f"member {member}",
        f"tier {tier} +{key['tier_bonus']}" if key["tier_bonus"] else "",
        "" if key["max_priority"] is None else f"priorities up to {_highest(key, rules)}",
        "" if key["models"] is None else f"models {', '.join(key['models'])}",
        f"waiting {waiting}" if (waiting := _waiting_words(limits)) else "",
        "" if running is None else f"running {_count(running, 'job')}",
        "admin" if key["admin"] else "",
    ]
    return "; ".join(filter(None, words))


def _highest(key: dict[str, Any], rules: ScoreRules) -> str:
    """The greatest priority that a key may ask for, and what its tier makes of it."""
    limit, bonus = key["max_priority"], key["tier_bonus"]
    raised = bonus and any(band.value == limit for band in rules.bands)
    return f"{limit} ({limit + bonus} with its tier)" if raised else str(limit)


def _band_table(scheduling: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  band")
    table.add_column("value", justify="right")
    table.add_column("priorities", justify="right")
    for band in scheduling["bands"]:
        held = "none" if band["from"] is None else f"{band['from']} to {band['to']}"
        table.add_row(f"  {band['name']}", str(band["value"]), held)
    return table


def _rule_lines(scheduling: dict[str, Any]) -> list[str]:
    tiers = ", ".join(f"{name} +{bonus}" for name, bonus in scheduling["tiers"].items()) or "none"
    weights = "".join(f", {member} {weight:g}" for member, weight in scheduling["weights"].items())
    lines = [
        f"  tiers {tiers}; resident model +{scheduling['swap_affinity']:g}; "
        f"1 point per {scheduling['aging_divisor']:g} s; aging_clock {scheduling['aging_clock']}; "
        f"fairness {scheduling['fairness']}{weights and f'; weights {weights[2:]}, others 1'}"
    ]
    distance = scheduling["distance"]
    if distance is None:
        lines.append("  one band: nothing to cross")
    else:
        low, high = distance["between"]
        lines.append(
            f"  smallest distance {distance['smallest']} ({low} to {high}) exceeds {distance['must_exceed']:g} "
            "(largest tier bonus + affinity): only waiting crosses a band"
        )
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
