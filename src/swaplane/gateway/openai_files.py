"""OpenAI's files: upload, list, look at, download and delete, as its clients do it.

Decides what an upload must look like and how long a file is kept. It does not know what a file is for: batches
read their input and write their output by way of the store. Nothing passes through memory whole. Its endpoints
are put into the API by `api`.
"""

from __future__ import annotations

import time
import unicodedata
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from swaplane.gateway.access import ApiRoute, Right, caller_of
from swaplane.gateway.errors import BodyNotStored, RequestRefused
from swaplane.gateway.headers import member_of
from swaplane.gateway.owned import owner_of
from swaplane.gateway.replies import FileReply, Unknown, json_reply
from swaplane.store import StoreError
from swaplane.store.files import FileTable, StoredFile
from swaplane.wire import MEMBER_HEADER

FILE_BYTES = 512 << 20  #: the longest file that is taken
KEPT_S = 30 * 86400  #: how long a batch's files are kept; others are until they are deleted
SHORTEST_S = 3600  #: the least that `expires_after` may ask for; the most is `KEPT_S`

_FORM_BYTES = 1 << 20  # what a form may have beside its file
_PIECE = 1 << 20  # bytes read of an upload at once
_NAME_CHARS = 255
_PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # categories of characters no file name needs


class BadUpload(RequestRefused):
    """The form is not one of an upload."""


class UploadTooLong(RequestRefused):
    """The file is longer than `FILE_BYTES`."""

    status = 413

    def __init__(self) -> None:
        super().__init__(f"the file is longer than the {FILE_BYTES} bytes ({FILE_BYTES >> 20} MiB) a file may have")


class OpenAIFiles:
    """The endpoints under /v1/files, each a method that answers one route."""

    def __init__(self, files: FileTable) -> None:
        self._files = files

    def routes(self) -> list[ApiRoute]:
        """The endpoints; each is for whoever has the file."""
        return [
            ApiRoute("POST", "/v1/files", self.upload, Right.MEMBER),
            ApiRoute("GET", "/v1/files", self.list, Right.MEMBER),
            ApiRoute("GET", "/v1/files/{file_id}", self.file, Right.MEMBER),
            ApiRoute("GET", "/v1/files/{file_id}/content", self.content, Right.MEMBER),
            ApiRoute("DELETE", "/v1/files/{file_id}", self.delete, Right.MEMBER),
        ]

    async def upload(self, request: Request) -> Response:
        """Keep the form's `file` for its `purpose`; `expires_after[seconds]` limits how long."""
        caller = caller_of(request.scope)
        try:
            form = await _form(request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        try:
            upload, purpose, kept_s = _upload_in(form), _purpose_in(form), _kept_s(form)
            if kept_s is None and purpose == "batch":
                kept_s = KEPT_S
            created_at = int(time.time())
            file = StoredFile(
                id=new_file_id(),
                filename=_clean_name(upload.filename or ""),
                purpose=purpose,
                bytes=upload.size or 0,
                created_at=created_at,
                member=member_of(_member_headers(request), caller.key),
                key_name=caller.key_name,
                expires_at=None if kept_s is None else created_at + kept_s,
            )
            file = await self._files.add(file, _pieces(upload))
        except (OSError, StoreError) as error:
            raise BodyNotStored(f"the file could not be kept on disk: {error}") from error
        finally:
            await form.close()
        return json_reply(file_json(file))

    async def list(
        self,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10000)] = 10000,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> Response:
        """The caller's files, newest first unless `order` is `asc`; `after` is the last id of the page before."""
        files, more = await self._files.list(
            purpose=purpose,
            limit=limit,
            after=after,
            newest_first=order == "desc",
            owner=owner_of(caller_of(request.scope)),
        )
        return json_reply(page_json([file_json(file) for file in files], more))

    async def file(self, request: Request, file_id: str) -> Response:
        """What is known of one file."""
        return json_reply(file_json(await self.found(request, file_id)))

    async def content(self, request: Request, file_id: str) -> Response:
        """The file itself."""
        file = await self.found(request, file_id)
        return FileReply(
            self._files.path(file.id),
            media_type="application/octet-stream",
            filename=file.filename,
            headers={"X-Content-Type-Options": "nosniff"},
        )

    async def delete(self, request: Request, file_id: str) -> Response:
        """Forget one file."""
        await self._files.delete((await self.found(request, file_id)).id)
        return json_reply({"id": file_id, "object": "file", "deleted": True})

    async def found(self, request: Request, file_id: str) -> StoredFile:
        """The caller's file of this id. Raises Unknown, also for somebody else's."""
        file = await self._files.get(file_id)
        if file is None or not caller_of(request.scope).owns(member=file.member, key=file.key_name):
            raise unknown_file(file_id)
        return file


def unknown_file(file_id: str) -> Unknown:
    """The refusal that says that there is no such file."""
    return Unknown(f"no file `{file_id[:100]}` is known: it was never uploaded here, was deleted or has expired")


def new_file_id() -> str:
    """An id for a file."""
    return f"file-{uuid.uuid4().hex}"


def file_json(file: StoredFile) -> dict[str, Any]:
    """A file as OpenAI's clients know it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def page_json(items: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    """One page of a list as OpenAI's clients know it."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": more,
    }


def _member_headers(request: Request) -> list[bytes]:
    return [value.encode("latin-1") for value in request.headers.getlist(MEMBER_HEADER)]


async def _form(request: Request) -> FormData:
    content_type = request.headers.get("content-type", "")
    if not content_type.lower().startswith("multipart/form-data"):
        raise BadUpload(
            "a file is uploaded as `Content-Type: multipart/form-data`, with the fields `file` and `purpose`"
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > FILE_BYTES + _FORM_BYTES:
        raise UploadTooLong
    # A long file goes to an unnamed temporary file while the form is read.
    parser = MultiPartParser(request.headers, _bounded(request), max_files=1, max_fields=8, max_part_size=4096)
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise BadUpload(f"the form cannot be read: {error.message.rstrip('.')}") from error
    except OSError as error:
        raise BodyNotStored(f"the file could not be kept on disk: {error.strerror or error}") from error


async def _bounded(request: Request) -> AsyncGenerator[bytes, None]:
    room = FILE_BYTES + _FORM_BYTES
    async for piece in request.stream():
        room -= len(piece)
        if room < 0:
            raise UploadTooLong
        yield piece


def _upload_in(form: FormData) -> UploadFile:
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        raise BadUpload("the form has no file in its field `file`; it needs one, with a file name")
    if (upload.size or 0) > FILE_BYTES:
        raise UploadTooLong
    return upload


def _purpose_in(form: FormData) -> str:
    purpose = form.get("purpose")
    if purpose not in _PURPOSES:
        was = "is not given" if purpose is None else f"is `{str(purpose)[:100]}`"
        raise BadUpload(f"the form field `purpose` {was}; it must be one of {', '.join(_PURPOSES)}")
    return str(purpose)


def _kept_s(form: FormData) -> int | None:
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise BadUpload("the form field `expires_after[anchor]` must be `created_at`")
    text = str(seconds)
    if not (text.isdecimal() and len(text) < 10 and SHORTEST_S <= int(text) <= KEPT_S):
        raise BadUpload(f"the form field `expires_after[seconds]` must be a whole number from {SHORTEST_S} to {KEPT_S}")
    return int(text)


def _clean_name(name: str) -> str:
    """A file name without folders and without characters that are not shown; never empty."""
    name = name.replace("\\", "/").rpartition("/")[2]
    name = "".join(char for char in name if unicodedata.category(char) not in _NOT_SHOWN).strip()
    return name[:_NAME_CHARS] if name.strip(".") else "file"


async def _pieces(upload: UploadFile) -> AsyncIterator[bytes]:
    while piece := await upload.read(_PIECE):
        yield piece
