"""The file's text as plain Python values, with the place of each.

Decides what YAML means here: keys are text as written, a repeated key is an error, numbers remember how they
were written, `${env.NAME}` is replaced before anything else. It knows no key by name. Called by `load`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from swaplane.config.problems import Path, Place, Places, Problems

_ENV = re.compile(r"\$\{env\.([a-zA-Z_][a-zA-Z0-9_]*)\}")
_TAG = "tag:yaml.org,2002:"


def as_put_in(value: str) -> str:
    """The value of an environment variable as it stands in the file's text, where quotes may be around it."""
    return value.replace("\\", "\\\\").replace('"', '\\"')


def env_names(text: str) -> frozenset[str]:
    """The environment variables that a file's text uses."""
    return frozenset(_ENV.findall(text))


class WrittenInt(int):
    """A whole number that remembers its spelling, for places where text is wanted."""

    text: str


class WrittenFloat(float):
    """A number that remembers its spelling, for places where text is wanted."""

    text: str


class Source:
    """The text after the environment was put in, and the way back to positions in the file.

    An unset variable becomes a marker, because only the parsed file tells whether it stands in a comment,
    where it does no harm.
    """

    def __init__(self, text: str, environ: Mapping[str, str]) -> None:
        self.faults: list[tuple[str, str, Place]] = []  #: (reference, sentence, place) by number of the marker
        self._moved: dict[int, list[tuple[int, int, int, int]]] = {}  #: by line: columns (from, to, was from, was to)
        lines = [self._substituted(number, line, environ) for number, line in enumerate(text.split("\n"))]
        self.text = "\n".join(lines)

    def _substituted(self, number: int, line: str, environ: Mapping[str, str]) -> str:
        if "${env." not in line:
            return line
        done, taken = "", 0
        for match in _ENV.finditer(line):
            done += line[taken : match.start()]
            value = self._value(match[1], environ, Place(number + 1, match.start() + 1))
            self._moved.setdefault(number, []).append((len(done), len(done) + len(value), match.start(), match.end()))
            done += value
            taken = match.end()
        return done + line[taken:]

    def _value(self, name: str, environ: Mapping[str, str], place: Place) -> str:
        value = environ.get(name)
        if value is None:
            fault = f"environment variable '{name}' is not set"
        elif any(char in value for char in "\n\r\0"):
            fault = f"environment variable '{name}' contains a line break or a NUL character"
        else:
            return as_put_in(value)
        self.faults.append((f"${{env.{name}}}", fault, place))
        return f"swaplane-env-fault-{len(self.faults) - 1}-"

    def place(self, line: int, column: int) -> Place:
        """The place in the file of a position in `text` (both counted from 0)."""
        shift = 0
        for start, end, was_start, was_end in self._moved.get(line, ()):
            if column >= end:
                shift = was_end - end
            elif column >= start:
                return Place(line + 1, was_start + 1)
        return Place(line + 1, column + shift + 1)


_FAULT = re.compile(r"swaplane-env-fault-(\d+)-")
#: Faults of YAML whose description repeats what is written, which may be a secret. All come of a text without quotes.
_REPEATED = re.compile(r"(found undefined alias|tag handle) .*", re.DOTALL)
_NEEDS_QUOTES = "a text that begins with `*`, `&` or `!` needs quotes"


def read(
    text: str, *, file: str, environ: Mapping[str, str], private: Mapping[str, frozenset[str]]
) -> tuple[dict[str, object], Places]:
    """The file's mapping and its places; `private` is as in `Problems`.

    Raises ConfigError when the text is no YAML, repeats a key, or needs an environment variable that is unset.
    """
    source = Source(text, environ)
    problems = Problems(file, private=private)
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False
    builder = _Builder(source, problems, yaml.constructor)
    tree: object = None
    try:
        node = yaml.compose(source.text)
        tree = None if node is None else builder.build(node, ())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = source.place(mark.line, mark.column) if mark else Place(1, 1)
        why = ", ".join(part for part in (error.context, error.problem) if part)
        why = _REPEATED.sub(rf"\1; {_NEEDS_QUOTES}", why)
        problems.add_at(place, (), f"this is not valid YAML: {why}")
    except ReaderError as error:
        before = source.text[: error.position]
        place = source.place(before.count("\n"), len(before) - before.rfind("\n") - 1)
        problems.add_at(place, (), f"this is not valid YAML: the character #x{error.character:04x} is not allowed")
    except YAMLError as error:
        problems.add_at(Place(1, 1), (), f"this is not valid YAML: {error}")
    except RecursionError:
        problems.add_at(Place(1, 1), (), "this is nested too deeply")
    else:
        if tree is not None and not isinstance(tree, dict):
            problems.add((), "top-level YAML must be a mapping")
    problems.raise_any()
    return (tree if isinstance(tree, dict) else {}), builder.places


class _Builder:
    """Walks the nodes once: values out, places and problems noted on the way."""

    def __init__(self, source: Source, problems: Problems, constructor: Any) -> None:
        self.places = Places()
        self._source = source
        self._problems = problems
        self._constructor = constructor
        self._open: set[int] = set()  #: nodes being built: one that contains itself has no value

    def build(self, node: Node, path: Path) -> object:
        self.places.values[path] = self._place(node)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            self._problems.add(path, "an anchor contains itself", place=self._place(node))
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: Node, path: Path) -> dict[str, object]:
        result: dict[str, object] = {}
        own: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                result = self._merged(value, path) | result
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                continue
            place = self._place(key)
            if not isinstance(key, ScalarNode):
                self._problems.add_at(place, path, "a key must be text; put it in quotes if it contains { or [")
                continue
            name: str = key.value
            self._check_fault(name, (*path, name))
            if name in own:
                told = f'mapping key "{name}"' if self._problems.may_tell((*path, name)) else "this mapping key is"
                self._problems.add_at(place, (*path, name), f"{told} already defined at line {own[name]}")
                continue
            own[name] = place.line
            self.places.keys[*path, name] = place
            result[name] = self.build(value, (*path, name))
            if isinstance(value, ScalarNode) and not value.value and value.style is None:
                self.places.values[*path, name] = place  # a value that is not there is found at its key
        return result

    def _merged(self, node: Node, path: Path) -> dict[str, object]:
        """What `<<` brings in: of several mappings the first wins."""
        result: dict[str, object] = {}
        for part in reversed(node.value if isinstance(node, SequenceNode) else [node]):
            value = self.build(part, path) if isinstance(part, MappingNode) else None
            if isinstance(value, dict):
                result |= value
            else:
                self._problems.add_at(self._place(part), path, "`<<` takes a mapping or a list of mappings")
        return result

    def _scalar(self, node: ScalarNode, path: Path) -> object:
        text: str = node.value
        self._check_fault(text, path)
        match (node.tag or "").removeprefix(_TAG):
            case "str" | "timestamp" | "merge":
                return text
            case "null":
                return None
            case "bool" | "int" | "float" as kind:
                try:
                    return self._number_or_switch(node, kind)
                except (ValueError, KeyError):
                    return text  # `0x_` only looks like a number, `!!bool maybe` like a switch
        self._problems.add(path, f"this tag is not known here; {_NEEDS_QUOTES}", place=self._place(node))
        return None

    def _number_or_switch(self, node: ScalarNode, kind: str) -> object:
        if kind == "bool":
            return bool(self._constructor.construct_yaml_bool(node))
        number: WrittenInt | WrittenFloat
        if kind == "int":
            number = WrittenInt(self._constructor.construct_yaml_int(node))
        else:
            number = WrittenFloat(self._constructor.construct_yaml_float(node))
        number.text = node.value
        return number

    def _check_fault(self, text: str, path: Path) -> None:
        for match in _FAULT.finditer(text):
            _, sentence, place = self._source.faults[int(match[1])]
            written = tuple(self._as_written(part) if isinstance(part, str) else part for part in path)
            self._problems.add_at(place, written, sentence)

    def _as_written(self, text: str) -> str:
        return _FAULT.sub(lambda match: self._source.faults[int(match[1])][0], text)

    def _place(self, node: Node) -> Place:
        return self._source.place(node.start_mark.line, node.start_mark.column)
