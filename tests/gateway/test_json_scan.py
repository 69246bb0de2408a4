from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swaplane.gateway.json_scan import place_of, scan_object

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | st.just("model"), inner, max_size=4)
    ),
    max_leaves=20,
)
spaces = st.text(alphabet=" \t\r\n", max_size=3)


@st.composite
def json_objects(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, Any]]]:
    """The text of an object and its members; keys may repeat, and characters may be written as escapes."""
    keys = st.sampled_from(["model", "stream", "mode", "models", "", 'mo"del', "\\"]) | st.text(max_size=6)
    members = draw(st.lists(st.tuples(keys, json_values), max_size=6))
    parts = []
    for key, value in members:
        written = "".join(
            f"\\u{ord(char):04x}"
            if ord(char) < 0xD800 and draw(st.booleans())
            else json.dumps(char, ensure_ascii=False)[1:-1]
            for char in key
        )
        text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
        parts.append(f'{draw(spaces)}"{written}"{draw(spaces)}:{draw(spaces)}{text}{draw(spaces)}')
    return (draw(spaces) + "{" + ",".join(parts) + "}" + draw(spaces)).encode(), members


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(json_objects())
def test_the_scanner_agrees_with_a_parser(case: tuple[bytes, list[tuple[str, Any]]]) -> None:
    text, members = case
    assert json.loads(text, object_pairs_hook=list) is not None, "the test's own text is JSON"
    found, fault = scan_object(text, frozenset({b"model", b"stream"}))
    assert fault is None
    got = [(member.key.decode(), json.loads(text[member.start : member.end])) for member in found]
    for wanted in ("model", "stream"):
        expected = [(key, value) for key, value in members if key == wanted]
        assert [(key, value) for key, value in got if key == wanted] == expected[:2]


@settings(deadline=None, max_examples=60)
@given(json_objects(), st.data())
def test_the_scanner_survives_any_damage(case: tuple[bytes, list[tuple[str, Any]]], data: st.DataObject) -> None:
    text = bytearray(case[0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b'"', b"\\", b"{", b"]", b",", b"\xff"])
        )
    members, fault = scan_object(bytes(text), frozenset({b"model"}))
    assert all(0 <= member.start < member.end <= len(text) for member in members)
    if fault is not None:
        assert 0 <= fault.at <= len(text)
        assert place_of(bytes(text), fault.at).endswith(f"(byte {fault.at})")


WINDOW = 64 << 10


@pytest.mark.parametrize("shift", range(-14, 15))
def test_nothing_is_lost_where_two_windows_meet(shift: int) -> None:
    size = WINDOW + shift
    values = {
        "plain": '"' + "x" * size + '"',
        "escaped quotes": '"' + "x" * (size - 20) + '\\"' * 20 + "\\\\" * 20 + '"',
        "backslashes": '"' + "\\\\" * size + '"',
        "nested": "[" * 40 + '{"model":"no","s":"' + "y" * size + '\\\\"},{}' + "]" * 40,
        "many": "[" + '{"model":"no\\""},' * (size // 16) + "0]",
        "deep": "[" * size + "]" * size,
        "zigzag": '{"a":[' * 500 + " " * size + "]}" * 500,
        "digits": "1" * size,
        "spaces": " " * size + "true" + " " * size,
    }
    for what, value in values.items():
        for text in (
            f'{{"k":{value},"model":"m"}}',
            f'{{"model":"m","k":{value}}}',
            f'{{ "{"k" * size}":{value},"model":"m"}}',
        ):
            found, fault = scan_object(text.encode(), frozenset({b"model"}))
            assert fault is None, what
            assert [text[member.start : member.end] for member in found] == ['"m"'], what
