"""The least that uvicorn costs: an application that reads a request and waits until its client leaves.

The yardstick for starting and for connections that wait (`python support_uvicorn.py --port N`): what the gateway
needs beyond it is its own. GET is answered at once.
"""

from __future__ import annotations

import argparse
from typing import Any

import uvicorn


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["method"] == "GET":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        return
    while (await receive())["type"] != "http.disconnect":
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(
        app, host="127.0.0.1", port=parser.parse_args().port, lifespan="off", access_log=False, log_level="error"
    )
