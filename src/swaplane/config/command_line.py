r"""A `cmd` or `cmdStop` as the argument list it runs.

Decides comments, continued lines, quotes and backslashes as llama-swap does. No shell is involved: there is no
globbing, `$VAR`, `~`, `;`, `&&` or pipe. Called by `load`, after and before macros are put in.
"""

from __future__ import annotations


def without_comments(command: str) -> str:
    """The command without lines whose first visible character is `#`, also inside quotes."""
    return "\n".join(line for line in command.split("\n") if not line.lstrip().startswith("#"))


def split(command: str) -> tuple[str, ...]:
    r"""The arguments; empty when there is nothing to run.

    A line that ends in `\` is joined to the next. Single quotes are literal; in double quotes a backslash
    escapes only `"`, `\`, `$` and a backtick; outside it escapes any character. Quotes may span
    lines, may touch other text, and may be left open: the rest is then the argument.
    """
    lines = []
    for line in without_comments(command).split("\n"):
        stripped = line.strip()
        lines.append(f"{stripped[:-1]} " if stripped.endswith("\\") else line)
    return _words("\n".join(lines))


def _words(text: str) -> tuple[str, ...]:
    """The arguments of a text in which no line ends in a backslash: such lines are joined already."""
    words: list[str] = []
    word: str | None = None  # None between words: an empty quoted word is a word too
    quote = ""
    chars = iter(text)
    for char in chars:
        if quote:
            if char == quote:
                quote = ""
            elif char == "\\" and quote == '"':
                escaped = next(chars, "")
                word = (word or "") + (escaped if escaped in '"\\$`' else f"\\{escaped}")
            else:
                word = (word or "") + char
        elif char in "'\"":
            quote, word = char, word or ""
        elif char == "\\":
            word = (word or "") + next(chars, "")
        elif char in " \t\n":
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + char
    if word is not None:
        words.append(word)
    return tuple(words)
