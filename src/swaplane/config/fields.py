"""The types of single values in the file, and how a value is said in a sentence about it.

Decides what counts as a text, a switch, a number of seconds or of bytes. Which key takes which of them is declared in
`schema`.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from swaplane.config.document import WrittenFloat, WrittenInt
from swaplane.config.macros import spelled

NO_LIMIT = "none"  #: written where a number could stand
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_BYTES = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) *((?:[kmgt]i?)?b)", re.IGNORECASE)
_POWERS = "bkmgt"


def as_text(value: object) -> object:
    """A number or switch as it was written; anything else as it is."""
    if isinstance(value, WrittenInt | WrittenFloat):
        return value.text
    return spelled(value) if isinstance(value, bool | int | float) else value


def shown(value: object) -> str:
    """The value as a sentence about it says it."""
    if value is None:
        return "empty"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if not isinstance(value, str):
        return str(as_text(value))
    return f'the text "{value}"'


def is_whole(value: object) -> bool:
    """Whether this is a whole number, which a switch is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _as_switch(value: object) -> object:
    word = value.lower() if isinstance(value, str) else None
    return True if word in {"yes", "on"} else False if word in {"no", "off"} else value


def refused(sentence: str) -> PydanticCustomError:
    """What a validator raises to refuse a value with this sentence."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})


def at_least(minimum: int, sentence: str) -> AfterValidator:
    """A check in the words that llama-swap's users know."""

    def check(value: float) -> float:
        if value < minimum:
            raise refused(sentence)
        return value

    return AfterValidator(check)


def unavailable(word: str, instead: str) -> BeforeValidator:
    """Refuses one word that is known and not available."""

    def check(value: object) -> object:
        if value == word:
            raise refused(f"`{word}` is not available yet; {instead}")
        return value

    return BeforeValidator(check)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | bool | int | float) else value


def _not_that(expected: str, value: object) -> PydanticCustomError:
    quoted = isinstance(value, str) and NUMBER.fullmatch(value)
    return refused(f"must be {expected}, not {shown(value)}{': write it without quotes' if quoted else ''}")


def _bound(value: object) -> object:
    if value == NO_LIMIT:
        return None
    if isinstance(value, int) and is_whole(value) and value >= 1:
        return int(value)
    raise _not_that(f"a whole number of at least 1, or `{NO_LIMIT}`", value)


def _bytes(value: object) -> object:
    found = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        count = value
    else:
        unit = found[2].lower()
        count = int(float(found[1]) * (1024 if "i" in unit else 1000) ** _POWERS.index(unit[0]))
    if value == NO_LIMIT:
        return None
    if isinstance(count, int) and is_whole(count) and count >= 1:
        return int(count)
    raise _not_that(f"a number of bytes of at least 1, such as 512MB or 4GiB, or `{NO_LIMIT}`", value)


def _whole_or_word(value: object) -> object:
    if is_whole(value) or (isinstance(value, str) and value and not NUMBER.fullmatch(value)):
        return value
    raise _not_that("a whole number or the name of a band", value)


def _none_as_absent(value: object) -> object:
    return None if value == NO_LIMIT else value


Text = Annotated[str, BeforeValidator(as_text)]
OneOrMore = Annotated[list[Text], BeforeValidator(_as_list)]
Switch = Annotated[bool, BeforeValidator(_as_switch)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Bound = Annotated[int | None, BeforeValidator(_bound)]  #: how many there may be; None, written `none`: any number
Bytes = Annotated[int | None, BeforeValidator(_bytes)]  #: how many bytes there may be; None, written `none`: any number
PriorityOrBand = Annotated[int | str, BeforeValidator(_whole_or_word)]
NoneIsAbsent = BeforeValidator(_none_as_absent)
