"""A program that opens the store in a folder and adds jobs until it is killed; prints each id once it is stored."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path

from swaplane.store import Store, StoreError
from tests.store.support import LONG, add, end

#: Bytes of a body, in turns.
LENGTHS = (10, 5000, 1 << 20, LONG, 3 * LONG)
AT_ONCE = 8


def length_of(job_id: str) -> int:
    return LENGTHS[int(job_id.partition("-")[2]) % len(LENGTHS)]


async def main(folder: Path, epoch: str) -> None:
    store = await Store.open(folder)
    os.write(1, b"open\n")
    numbers = itertools.count()

    async def keep_adding() -> None:
        for n in numbers:
            job_id = f"{epoch}-{n}"
            await add(store, job_id, length_of(job_id))
            os.write(1, f"added {job_id}\n".encode())
            if n % 3 == 0:
                await end(store, job_id)
                os.write(1, f"ended {job_id}\n".encode())

    await asyncio.gather(*(keep_adding() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
    except StoreError as error:
        sys.exit(str(error))
