from __future__ import annotations

import pytest

from swaplane.config.command_line import split, without_comments


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("server --port 1", ["server", "--port", "1"]),
        ("  server\t--port \n 1 ", ["server", "--port", "1"]),
        ("server \\\n  --port 1 \\\n  -x", ["server", "--port", "1", "-x"]),
        ("server \\   \n -x", ["server", "-x"]),
        ("server\n# gone\n  # gone too\n-x", ["server", "-x"]),
        ("server # kept", ["server", "#", "kept"]),
        ("server a#b", ["server", "a#b"]),
        ("a 'b c' \"d e\"", ["a", "b c", "d e"]),
        ("a b' 'c\" \"d", ["a", "b c d"]),
        ("a '' \"\" b", ["a", "", "", "b"]),
        (r"a 'b\n\' c", ["a", "b\\n\\", "c"]),
        (r'a "\"\\\$\`\n"', ["a", r'"\$`\n']),
        (r"a b\ c \\ \'", ["a", "b c", "\\", "'"]),
        ("a 'b\nc' \"d\ne\"", ["a", "b\nc", "d\ne"]),
        ("a 'b\n# gone\nc'", ["a", "b\nc"]),
        ("a 'b c", ["a", "b c"]),
        ('a "b c', ["a", "b c"]),
        ("a '", ["a", ""]),
        ("a \\", ["a"]),
        ('a "b\\\nc"', ["a", "b \nc"]),
        ("a *.gguf $HOME ~ ; b && c | d > e", ["a", "*.gguf", "$HOME", "~", ";", "b", "&&", "c", "|", "d", ">", "e"]),
        ("server --json '{\"a\": [1, 2]}'", ["server", "--json", '{"a": [1, 2]}']),
        ("modèle --nom été", ["modèle", "--nom", "été"]),
        ("", []),
        (" \n\t\n", []),
        ("# only\n  # comments", []),
    ],
)
def test_a_command_is_split_without_a_shell(command: str, argv: list[str]) -> None:
    assert split(command) == tuple(argv)


def test_comment_lines_are_dropped_and_the_rest_is_left_as_written() -> None:
    assert without_comments("a \\\n # b\n  c # d") == "a \\\n  c # d"
