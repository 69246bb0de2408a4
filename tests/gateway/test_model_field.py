from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import psutil
import pytest
from python_multipart.multipart import MultipartParser

from swaplane.gateway.body import Body
from swaplane.gateway.errors import DuplicateModel, ModelNameTooLong, NoModel, NotJson, RequestRefused
from swaplane.gateway.model_field import ModelField, find_model, rename

pytestmark = pytest.mark.anyio

JSON = b"application/json"
FORM = b"application/x-www-form-urlencoded"
MULTIPART = b'multipart/form-data; boundary="----b 0"'


def body_of(content: bytes) -> Body:
    return Body(content, len(content))


async def find(content: bytes, content_type: bytes = JSON, query: bytes = b"", method: str = "POST") -> ModelField:
    return await find_model(method, content_type, query, body_of(content))


async def refusal(
    content: bytes, content_type: bytes = JSON, query: bytes = b"", method: str = "POST"
) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        await find(content, content_type, query, method)
    return caught.value


async def renamed(content: bytes, new_name: str, content_type: bytes = JSON) -> bytes:
    body = body_of(content)
    rename(await find_model("POST", content_type, b"", body), body, new_name)
    out = b"".join([piece async for piece in body.pieces()])
    assert body.length == len(out)
    return out


# --- JSON -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"model":"m"}', "m"),
        (' \r\n\t{ "model" : "m" } \n', "m"),
        ('\ufeff{"model":"m"}', "m"),
        ('{"model":"author/model:7b"}', "author/model:7b"),
        ('{"model":"caf\u00e9 \\u4e2d \\ud83d\\ude00"}', "café 中 😀"),
        ('{"model":"a\\"b\\\\"}', 'a"b\\'),
        ('{"mod\\u0065l":"m"}', "m"),
        ('{"model":7}', "7"),
        ('{"model":-1.50e3 }', "-1.50e3"),
        ('{"input":{"model":"x"},"model":"m"}', "m"),
        ('{"input":[{"model":"x"},["model","y"]],"text":"\\"model\\":\\"z\\"","model":"m"}', "m"),
        ('{"":{},"a":[],"b":"","model":"m","c":[[[[]]]]}', "m"),
        ('{"model":"half \\ud800"}', "half \ufffd"),
        ('{"Model":"x","models":["y"],"model ":"z","model":"m"}', "m"),
        # Malformed inside a nested value: the model server judges it.
        ('{"a":[1,,2}, "model":"m"}', "m"),
    ],
)
async def test_json(text: str, name: str) -> None:
    content = text.encode()
    field = await find(content)
    assert (field.name, field.place) == (name, "json")
    assert field.span is not None
    value = content[slice(*field.span)].decode()
    assert str(json.loads(value, parse_int=str, parse_float=str)).replace("\ud800", "\ufffd") == name


async def test_json_of_other_content_types() -> None:
    text = b'{"model":"m"}'
    assert (await find(text, b"application/json; charset=utf-8")).name == "m"
    assert (await find(text, b"Application/JSON")).name == "m"
    error = await refusal(text, FORM)
    assert isinstance(error, NoModel)
    assert error.message == (
        "no model id could be identified; the body looks like JSON: send it with `Content-Type: application/json`"
    )
    assert (await refusal(text, b"")).status == 404


async def test_json_ignores_the_query() -> None:
    assert (await find(b'{"model":"m"}', query=b"model=x")).name == "m"
    assert (await refusal(b"{}", query=b"model=x")).status == 404


@pytest.mark.parametrize(
    ("value", "stream"),
    [("true", True), ("false", False), ('"true"', True), ("1", True), ("0", False), ("null", False), ("[true]", False)],
)
async def test_stream(value: str, stream: bool) -> None:
    assert (await find(f'{{"model":"m","stream":{value}}}'.encode())).stream is stream
    assert (await find(f'{{"stream":{value} , "model":"m"}}'.encode())).stream is stream


@pytest.mark.parametrize(
    "text",
    [
        '{"model":"a","model":"b"}',
        '{"model":"a","model":"a"}',
        '{"model":"a","x":[{}],"mod\\u0065l":"b"}',
        '{"\\u006d\\u006f\\u0064\\u0065\\u006C":"a","model":"b"}',
        '{"model":null,"model":"b"}',
        '{"model":"a"' + ',"stream":true,"model":"a"' * 1000 + "}",
    ],
)
async def test_json_with_the_key_twice(text: str) -> None:
    error = await refusal(text.encode())
    assert isinstance(error, DuplicateModel)
    assert error.message == "the top-level key `model` is given more than once; give it once"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("{}", ""),
        ("[]", ""),
        ('["model"]', ""),
        ("null", ""),
        ("12.5", ""),
        ('"model"', ""),
        ('{"input":{"model":"x"}}', ""),
        ('{"big":' + "9" * 5000 + "}", ""),
        ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", ""),
        ("", "; the body is empty"),
        (" \n ", "; the body is empty"),
        ('{"model":""}', "; the value of `model` is not a name"),
        ('{"model":null}', "; the value of `model` is not a name"),
        ('{"model":true}', "; the value of `model` is not a name"),
        ('{"model":{"name":"m"}}', "; the value of `model` is not a name"),
        ('{"model":["m"]}', "; the value of `model` is not a name"),
    ],
)
async def test_json_without_a_model(text: str, detail: str) -> None:
    error = await refusal(text.encode())
    assert isinstance(error, NoModel)
    assert error.message == "no model id could be identified" + detail


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"hello", "expected a value at line 1, column 1 (byte 0)"),
        (b"{", "unexpected end of the text at line 1, column 2 (byte 1)"),
        (b'{"a":1,}', "expected a key in double quotes at line 1, column 8 (byte 7)"),
        (b"{'model':'m'}", "expected a key in double quotes at line 1, column 2 (byte 1)"),
        (b'{"a" 1}', "expected `:` after a key at line 1, column 6 (byte 5)"),
        (b'{"a":1 "b":2}', "expected `,` or `}` after a value at line 1, column 8 (byte 7)"),
        (b'{"a":1', "unexpected end of the text at line 1, column 7 (byte 6)"),
        (b'{"a":01}', "expected `,` or `}` after a value at line 1, column 7 (byte 6)"),
        (b'{"a":nul}', "expected a value at line 1, column 6 (byte 5)"),
        (b'{"a":NaN}', "expected a value at line 1, column 6 (byte 5)"),
        # Where the model is named already, too.
        (b'{"model":"m"', "unexpected end of the text at line 1, column 13 (byte 12)"),
        (b'{"model":"m",', "unexpected end of the text at line 1, column 14 (byte 13)"),
        (b'{"model":"m","a":}', "expected a value at line 1, column 18 (byte 17)"),
        (b'{"model":"m"} and more', "expected the end of the text at line 1, column 15 (byte 14)"),
        (b'{"model":"a"}{"model":"c"}', "expected the end of the text at line 1, column 14 (byte 13)"),
        (b'{"model":"a",x,"model":"c"}', "expected a key in double quotes at line 1, column 14 (byte 13)"),
        (b'{"model":"m', "a string begins here and has no end at line 1, column 10 (byte 9)"),
        (b'{"model":"m\\', "a string begins here and has no end at line 1, column 10 (byte 9)"),
        (b'{\n "\xc3\xa9": "\xc3\xa9", [}', "expected a key in double quotes at line 2, column 12 (byte 15)"),
        (b'{"a":[[1,2]', "a bracket is opened here and never closed at line 1, column 6 (byte 5)"),
        (b'{"a":1} x', "expected the end of the text at line 1, column 9 (byte 8)"),
        (b"{} {}", "expected the end of the text at line 1, column 4 (byte 3)"),
        (b'{"a":[1,,2]}', "expecting value at line 1, column 9 (byte 8)"),
        (b'\xef\xbb\xbf{"\xc3\xa9":[1,,2]}', "expecting value at line 1, column 10 (byte 12)"),
        (b'{"a":"\xff"}', "bytes that are not UTF-8 at line 1, column 7 (byte 6)"),
        (b'{"model":"\\x"}', "invalid \\escape at line 1, column 11 (byte 10)"),
        ('{"model":"m"}'.encode("utf-16"), "expected a value at line 1, column 1 (byte 0)"),
    ],
)
async def test_what_is_not_json(content: bytes, fault: str) -> None:
    error = await refusal(content)
    assert isinstance(error, NotJson)
    assert error.status == 400
    assert error.message == f"the request body is not JSON: {fault}"


@pytest.mark.parametrize(
    "text", ['{"model":"' + "x" * 1025 + '"}', '{"model":"' + "é" * 513 + '"}', '{"model":"' + "\\u0078" * 1025 + '"}']
)
async def test_a_value_that_is_too_long_for_a_name(text: str) -> None:
    error = await refusal(text.encode())
    assert isinstance(error, ModelNameTooLong)
    assert error.message == "the value of `model` is longer than the 1024 bytes a model's name may have"
    assert (await find(('{"model":"' + "\\u0078" * 1024 + '"}').encode())).name == "x" * 1024


@pytest.mark.parametrize(
    ("text", "new_name", "expected"),
    [
        ('{"model":"m","n":1.0}', "org/new", '{"model":"org/new","n":1.0}'),
        (' { "model" :  "m" , "x":"\\u00e9" }\n', 'a"b', ' { "model" :  "a\\"b" , "x":"\\u00e9" }\n'),
        ('{"model":7}', "x", '{"model":"x"}'),
        ('{"mod\\u0065l":"m"}', "中", '{"mod\\u0065l":"\\u4e2d"}'),
    ],
)
async def test_rename_in_json_leaves_everything_else(text: str, new_name: str, expected: str) -> None:
    assert await renamed(text.encode(), new_name) == expected.encode()


# --- queries and urlencoded forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_get_looks_at_the_query_alone(method: str) -> None:
    field = await find(b'{"model":"x"}', JSON, b"a=1&model=author%2Fm+1&stream=true", method)
    assert field == ModelField(name="author/m 1", stream=True, place="query")
    assert (await refusal(b'{"model":"x"}', JSON, b"models=y", method)).status == 404


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (b"model=m", "m"),
        (b"&&model=m&", "m"),
        (b"m%6Fdel=m", "m"),
        (b"model=caf%C3%A9", "café"),
        (b"model=caf%E9", "caf\ufffd"),
        (b"model=a=b", "a=b"),
        (b"xmodel=1&modelx=2&model=m", "m"),
        (b"model=100%", "100%"),
    ],
)
async def test_a_query_goes_with_any_body_but_json(query: bytes, name: str) -> None:
    for content_type in (b"", b"audio/wav", b"application/octet-stream", FORM):
        field = await find(b"RIFF....", content_type, query)
        assert (field.name, field.span, field.place) == (name, None, "query")


@pytest.mark.parametrize("query", [b"", b"model", b"model=", b"Model=m", b"?model=m", b"x=model=m"])
async def test_a_query_without_a_model(query: bytes) -> None:
    assert isinstance(await refusal(b"", b"", query), NoModel)


async def test_urlencoded_forms() -> None:
    assert await find(b"text=hi&model=m%2B&stream=true", FORM + b"; charset=utf-8") == ModelField(
        name="m+", stream=True, place="form"
    )
    assert (await find(b"model=m", FORM, b"model=m")).name == "m"
    assert (await refusal(b"model=m", b"text/plain")).status == 404, "a form only where it is declared to be one"
    body = body_of(b"model=m")
    rename(await find_model("POST", FORM, b"", body), body, "new")
    assert body.length == 7, "passed on as it is"


@pytest.mark.parametrize(
    ("content", "query", "message"),
    [
        (b"model=a&model=b", b"", "the form field `model` is given more than once; give it once"),
        (b"model=a&x=1&m%6fdel=a", b"", "the form field `model` is given more than once; give it once"),
        (b"", b"model=a&model=b&model=c", "the query parameter `model` is given more than once; give it once"),
        (b"model=a", b"model=b", "the query parameter `model` and the form field `model` differ; give one of them"),
    ],
)
async def test_two_models_in_query_and_form(content: bytes, query: bytes, message: str) -> None:
    error = await refusal(content, FORM, query)
    assert isinstance(error, DuplicateModel)
    assert error.message == message


async def test_long_forms() -> None:
    long = b"x=" + b"y" * 300_000 + b"&model=m"
    assert (await find(long, FORM)).name == "m"
    assert (await refusal(b"x=" + b"y" * (10 << 20) + b"&model=m", FORM)).status == 404
    assert isinstance(await refusal(b"model=" + b"%78" * 1025, FORM), ModelNameTooLong)
    assert isinstance(await refusal(b"model=" + b"x" * 1025, FORM), ModelNameTooLong)
    assert (await find(b"model=" + b"%78" * 1024, FORM)).name == "x" * 1024


# --- multipart --------------------------------------------------------------------------------------------------


def part(disposition: str, value: bytes, *more: str) -> bytes:
    head = "\r\n".join([f"Content-Disposition: form-data; {disposition}", *more])
    return head.encode() + b"\r\n\r\n" + value


def multipart(*parts: bytes, boundary: bytes = b"----b 0") -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"


MODEL = part('name="model"', b"whisper/1")
FILE = part('name="file"; filename="a.wav"', b"RIFF\r\n--\r\n----b", "Content-Type: audio/wav")


@pytest.mark.parametrize(
    "content",
    [
        multipart(MODEL, FILE),
        multipart(FILE, MODEL),
        multipart(FILE, MODEL, part('name="stream"', b"true")),
        multipart(part("name=model", b"whisper/1")),
        multipart(part('name="model"', b"whisper/1", "Content-Type: text/plain; charset=utf-8", "X-Empty:")),
        multipart(b"content-DISPOSITION:form-data;name=model\r\n\r\nwhisper/1"),
        multipart(part('name="file"; filename="модель.wav"', b"\r\nmodel\r\n"), MODEL),
        multipart(part('name="file"; filename="a; name=model"', b"x"), MODEL),
        multipart(part('name="model"; filename="weights.bin"', b"a file, not a name"), MODEL),
        b"\r\n" + multipart(MODEL),
        b"a preamble\r\n" + multipart(MODEL),
        multipart(MODEL) + b"and an epilogue",
        multipart(MODEL, b"broken, no header end"),
        multipart(MODEL, FILE)[:-20],
    ],
)
async def test_multipart(content: bytes) -> None:
    field = await find(content, MULTIPART)
    assert (field.name, field.place) == ("whisper/1", "multipart")
    assert field.span is not None
    assert content[slice(*field.span)] == b"whisper/1"
    assert field.stream is (b'"stream"' in content)
    expected = content.replace(b"whisper/1", "größer".encode())
    assert await renamed(content, "größer", MULTIPART) == expected


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=x", b"x"),
        (b"multipart/form-data; charset=utf-8; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW", None),
        (b'Multipart/Form-Data; Boundary="a;b=c, d"', b"a;b=c, d"),
        (b"multipart/form-data; boundary='()+_,-./:=?", b"'()+_,-./:=?"),
        (b"multipart/form-data;boundary=" + b"z" * 70, b"z" * 70),
    ],
)
async def test_odd_boundaries(content_type: bytes, boundary: bytes | None) -> None:
    content = multipart(FILE, MODEL, boundary=boundary or b"----WebKitFormBoundary7MA4YWxkTrZu0gW")
    assert (await find(content, content_type)).name == "whisper/1"


@pytest.mark.parametrize(
    "content",
    [b"", b"no form", multipart(), multipart(FILE), multipart(part('name="model"', b"")), multipart(MODEL)[:-25]],
)
async def test_multipart_without_a_model(content: bytes) -> None:
    error = await refusal(content, MULTIPART)
    assert (error.status, error.message) == (404, "no model id could be identified")


async def test_multipart_without_a_boundary() -> None:
    error = await refusal(multipart(MODEL), b"multipart/form-data")
    assert error.message == (
        "no model id could be identified; the Content-Type header of a multipart form must name its boundary"
    )
    assert (await find(multipart(MODEL), b"multipart/form-data", b"model=m")).name == "m"
    assert (await refusal(multipart(MODEL), b"multipart/form-data; boundary=" + b"x" * 500)).status == 404


async def test_multipart_with_two_models() -> None:
    for content, query in [(multipart(MODEL, FILE, MODEL), b""), (multipart(MODEL), b"model=other")]:
        assert isinstance(await refusal(content, MULTIPART, query), DuplicateModel)
    field = await find(multipart(MODEL), MULTIPART, b"model=whisper/1&stream=true")
    assert field.span is not None
    assert field.stream


async def test_multipart_with_a_model_that_is_too_long() -> None:
    for size, error in [(1024, None), (1025, ModelNameTooLong), (300_000, ModelNameTooLong)]:
        content = multipart(FILE, part('name="model"', b"x" * size))
        if error is None:
            assert (await find(content, MULTIPART)).name == "x" * size
        else:
            assert isinstance(await refusal(content, MULTIPART), error)


@pytest.mark.parametrize("shift", range(-40, 41))
async def test_the_span_is_right_wherever_two_portions_meet(shift: int) -> None:
    # The name begins like a boundary, which the parser holds back at the end of a portion.
    name = b"\r\n----x--b"
    head = multipart(part('name="file"; filename="f"', b"")).removesuffix(b"\r\n------b 0--\r\n")
    filler = b"." * ((64 << 10) - len(head) - 70 + shift)
    content = multipart(part('name="file"; filename="f"', filler), part('name="model"', name))
    field = await find(content, MULTIPART)
    assert field.span is not None
    assert content[slice(*field.span)] == name == field.name.encode()


def test_the_parser_hands_over_what_it_held_back_from_another_buffer() -> None:
    """What the span's arithmetic relies on."""
    buffers: list[tuple[bytes, bytes]] = []
    parser = MultipartParser(b"b", {"on_part_data": lambda data, start, end: buffers.append((data, data[start:end]))})
    first, second = b"--b\r\n\r\n\r\n--", b"x\r\n--b--"
    parser.write(first)
    parser.write(second)
    assert b"".join(piece for _, piece in buffers) == b"\r\n--x"
    assert buffers[0][0] is not first
    assert buffers[0][0] is not second


# --- large bodies -----------------------------------------------------------------------------------------------


@pytest.fixture
def large() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile(buffering=0) as file:
        yield file


def filled(file: Any, head: bytes, unit: bytes, size: int, tail: bytes) -> Body:
    """A body on disk: head, then about `size` bytes of repeated units, then tail."""
    block = unit * (1_000_000 // len(unit))
    file.write(head)
    for _ in range(size // len(block)):
        file.write(block)
    file.write(tail)
    return Body(file, file.tell())


class Watch:
    """How much the process grew while the loop was watched, and how often the loop had a turn."""

    def __init__(self) -> None:
        self.turns = 0
        self.grown = 0

    async def __aenter__(self) -> Watch:
        self._task = asyncio.ensure_future(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        process = psutil.Process()
        before = process.memory_info().rss
        while True:
            self.turns += 1
            self.grown = max(self.grown, process.memory_info().rss - before)
            await asyncio.sleep(0)


async def test_a_model_behind_200_mb_of_base64(large: IO[bytes]) -> None:
    body = filled(large, b'{"messages":[{"image":"data:', b"QUJDRA==", 200_000_000, b'"}],"model":"m","stream":true}')
    async with Watch() as watch:
        field = await find_model("POST", JSON, b"", body)
    assert (field.name, field.stream) == ("m", True)
    assert watch.turns > 2
    assert watch.grown < 20_000_000
    rename(field, body, "other")
    assert body.length == len(body.view()) + 4


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        (b'"', b'\\"quoted\\" '),
        (b"[0", b',{"role":"user","content":"\xc3\xa9"}'),
        (b"", b" "),
        (b"1", b"0"),
        (b"[", b"[]" + b"," * 98),
    ],
)
async def test_long_values_of_every_kind_stay_small_in_memory(large: IO[bytes], head: bytes, unit: bytes) -> None:
    tail = {b'"': b'"', b"[0": b"]", b"[": b"]", b"": b"1"}.get(head, b"")
    body = filled(large, b'{"k":' + head, unit, 24_000_000, tail + b',"model":"m"}')
    async with Watch() as watch:
        assert (await find_model("POST", JSON, b"", body)).name == "m"
    assert watch.turns > 2
    assert watch.grown < 12_000_000


async def test_large_text_that_is_not_json(large: IO[bytes]) -> None:
    body = filled(large, b'{\n"k":"', b"x", 3_000_000, b'"\n,"open":[1,2')
    with pytest.raises(NotJson) as caught:
        await find_model("POST", JSON, b"", body)
    assert caught.value.message == (
        "the request body is not JSON: a bracket is opened here and never closed at line 3, column 9 (byte 3000017)"
    )


async def test_a_model_field_behind_a_file_of_40_mib(large: IO[bytes]) -> None:
    before, _, after = multipart(part('name="f"; filename="f"', b"@"), MODEL).partition(b"@")
    body = filled(large, before, os.urandom(999) + b"\r\n", 40 << 20, after)
    async with Watch() as watch:
        field = await find_model("POST", MULTIPART, b"", body)
    assert field.name == "whisper/1"
    assert field.span is not None
    assert body.view()[slice(*field.span)] == b"whisper/1"
    assert watch.turns > 2
    rename(field, body, "w")
    assert b"".join([piece async for piece in body.pieces()]).endswith(b'name="model"\r\n\r\nw\r\n------b 0--\r\n')
