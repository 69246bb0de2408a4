from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from swaplane.gateway import openai_files
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.scene import in_time


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(folder, stub_models("mA")) as gateway:
        yield gateway


def stored_files(folder: Path) -> list[Path]:
    return list((folder / "state").rglob("*.file"))


def test_a_file_from_upload_to_delete(client: openai.OpenAI, folder: Path) -> None:
    content = os.urandom(3 << 20)
    made = client.files.create(file=("shots.bin", content), purpose="user_data")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(content), "shots.bin", "user_data")
    assert (made.status, made.expires_at) == ("processed", None)
    assert made.id.startswith("file-")
    assert abs(made.created_at - time.time()) < 60

    assert client.files.retrieve(made.id) == made
    answer = client.files.content(made.id)
    assert answer.content == content
    assert 'filename="shots.bin"' in answer.response.headers["Content-Disposition"]

    deleted = client.files.delete(made.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (made.id, True, "file")
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=rf"no file `{made.id}` is known"):
            ask(made.id)
    assert not stored_files(folder)


def test_an_empty_file_is_one(client: openai.OpenAI) -> None:
    made = client.files.create(file=("empty.txt", b""), purpose="assistants")
    assert made.bytes == 0
    assert client.files.content(made.id).content == b""
    client.files.delete(made.id)


def test_a_part_of_a_file_can_be_asked_for(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    made = client.files.create(file=("a.txt", b"0123456789"), purpose="assistants")
    for asked, expected in {"bytes=2-3": (206, b"23"), "bytes=3-2": (200, b"0123456789")}.items():
        answer = gateway.request("GET", f"/v1/files/{made.id}/content", headers={"Range": asked})
        assert (answer.status_code, answer.content) == expected
    client.files.delete(made.id)


def test_files_are_listed_in_pages(client: openai.OpenAI) -> None:
    ids = [client.files.create(file=(f"{n}.txt", b"x"), purpose="vision").id for n in range(5)]
    other = client.files.create(file=("other.jsonl", b"{}"), purpose="batch").id
    newest = client.files.list(purpose="vision", limit=2)
    assert [file.id for file in newest.data] == [ids[4], ids[3]]
    assert newest.has_more
    raw = client.files.with_raw_response.list(purpose="vision", limit=2).http_response.json()
    assert (raw["object"], raw["first_id"], raw["last_id"], raw["has_more"]) == ("list", ids[4], ids[3], True)
    assert [file.id for file in client.files.list(purpose="vision", limit=2)] == ids[::-1], "page after page"
    oldest = client.files.list(purpose="vision", order="asc")
    assert ([file.id for file in oldest.data], oldest.has_more) == (ids, False)
    assert client.files.list(limit=1).data[0].id == other
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.files.list(limit=0)
    for file_id in (*ids, other):
        client.files.delete(file_id)
    assert not client.files.list().data


def test_how_long_a_file_is_kept(client: openai.OpenAI) -> None:
    for purpose, expires_after, kept_s in (
        ("batch", None, 30 * 86400),
        ("vision", {"anchor": "created_at", "seconds": 3600}, 3600),
        ("batch", {"anchor": "created_at", "seconds": 7200}, 7200),
    ):
        made = client.files.create(
            file=("a.jsonl", b"{}"),
            purpose=purpose,  # type: ignore[arg-type]
            expires_after=expires_after or openai.omit,  # type: ignore[arg-type]
        )
        assert made.expires_at == made.created_at + kept_s
        client.files.delete(made.id)
    with pytest.raises(openai.BadRequestError, match=r"expires_after\[seconds\]` must be a whole number from 3600"):
        client.files.create(file=("a", b"x"), purpose="vision", expires_after={"anchor": "created_at", "seconds": 5})


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.jsonl", "a.jsonl"),
        ("..", "file"),
        ("folder/", "file"),
        ("Büro-\u202eexe.txt", "Büro-exe.txt"),
        ("n" * 400, "n" * 255),
    ],
)
def test_a_file_name_is_no_path(client: openai.OpenAI, sent: str, kept: str) -> None:
    made = client.files.create(file=(sent, b"x"), purpose="user_data")
    assert made.filename == kept
    assert client.files.content(made.id).content == b"x"
    client.files.delete(made.id)


def test_bad_uploads_are_told_in_one_sentence(client: openai.OpenAI, gateway: GatewayProcess, folder: Path) -> None:
    with pytest.raises(openai.BadRequestError, match="field `purpose` is `fun`; it must be one of assistants, batch"):
        client.files.create(file=("a", b"x"), purpose="fun")  # type: ignore[arg-type]
    boundary = {"Content-Type": "multipart/form-data; boundary=b"}
    field = 'Content-Disposition: form-data; name="{}"'
    for headers, body, words in (
        ({"Content-Type": "application/json"}, "{}", "uploaded as `Content-Type: multipart/form-data`"),
        ({"Content-Type": "multipart/form-data"}, "x", "the form cannot be read: Missing boundary"),
        (boundary, "no form at all", "the form "),
        (boundary, f"--b\r\n{field.format('purpose')}\r\n\r\nbatch\r\n--b--\r\n", "no file in its field `file`"),
        (
            boundary,
            f'--b\r\n{field.format("file")}; filename="a"\r\n\r\nx\r\n--b--\r\n',
            "the form field `purpose` is not given",
        ),
    ):
        answer = gateway.request("POST", "/v1/files", headers=headers, content=body.encode())
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
    assert not stored_files(folder)


def test_a_file_that_is_too_long_is_refused_before_it_is_sent(gateway: GatewayProcess) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: gateway\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: %d\r\n\r\n" % (openai_files.FILE_BYTES + (2 << 20))
        )
        head = connection.recv(65536)
        assert head.startswith(b"HTTP/1.1 413 ")
        assert b"536870912 bytes (512 MiB)" in head + connection.recv(65536)


def test_a_client_that_leaves_in_the_middle_leaves_nothing(gateway: GatewayProcess, folder: Path) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: gateway\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: 9999999\r\n\r\n--b\r\n"
            b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 3_000_000
        )
        in_time(lambda: spooled(gateway.process.pid) > 0, "it is written to disk as it comes")
    in_time(lambda: not spooled(gateway.process.pid), "its temporary file is gone")
    assert not stored_files(folder)


def spooled(pid: int) -> int:
    """Bytes in temporary files that have no name any more."""
    total = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "(deleted)" in os.readlink(link):
                total += link.stat().st_size
        except OSError:
            continue
    return total


def test_an_upload_passes_through_disk(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    before = peak_kib(gateway.process.pid)
    made = client.files.create(file=("long.bin", io.BytesIO(bytes(160 << 20))), purpose="user_data")
    assert made.bytes == 160 << 20
    with client.files.with_streaming_response.content(made.id) as answer:
        assert sum(map(len, answer.iter_bytes(1 << 20))) == 160 << 20
    assert peak_kib(gateway.process.pid) - before < 80 << 10, "far less than the file"
    client.files.delete(made.id)


def peak_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_files_survive_a_restart(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, stub_models("mA"))
    with gateway.unguarded():
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:
            made = client.files.create(file=("a.txt", b"hello"), purpose="user_data")
        gateway.process.kill()
        gateway.process.wait()
    gateway = GatewayProcess(tmp_path, stub_models("mA"))
    with gateway, openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:
        assert client.files.retrieve(made.id) == made
        assert client.files.content(made.id).content == b"hello"
