"""What outlives the gateway: stored jobs and their answers, ids at model servers, files and batches.

`Store.open(folder)` is the one entry point. A write is on disk when its call returns. Nothing here knows HTTP or
decides what becomes of a job.
"""

from swaplane.store.jobs import StoredJob
from swaplane.store.owner import Owner
from swaplane.store.store import Store, StoreError

__all__ = ["Owner", "Store", "StoreError", "StoredJob"]
