"""In which catalog the table of an archive is.

A local folder has its own, a SQLite file beside the table; of the table in a bucket Redis says where its
metadata is (``redis_catalog``). Any other catalog that pyiceberg knows is named by its address
(``--archive-catalog https://...`` is a REST catalog); what else it needs, such as a token, it takes from
pyiceberg's own settings for the catalog ``streamlease`` (``PYICEBERG_CATALOG__STREAMLEASE__TOKEN``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from streamlease.streams.archive.files import places
from streamlease.streams.archive.files.places import endpoint, is_local, region
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.archive_settings import ArchiveSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

NAME = "streamlease"
NAMESPACE = "streamlease"
CATALOG_FILE = "catalog.db"


def table_name(space: str) -> str:
    """The name of the table of a space, in its catalog."""
    return f"{NAMESPACE}.{space}"


def catalog_of(redis: BlockingRedis, space: str, settings: ArchiveSettings) -> Catalog:
    """The catalog with the table of `space`."""
    from pyiceberg.catalog import load_catalog

    properties = {"warehouse": settings.uri, **_store_properties(settings.uri)}
    if settings.catalog:
        return load_catalog(NAME, uri=settings.catalog, **properties)
    if is_local(settings.uri):
        Path(settings.uri).mkdir(parents=True, exist_ok=True)
        return load_catalog(NAME, type="sql", uri=f"sqlite:///{settings.uri}/{CATALOG_FILE}", **properties)
    from streamlease.streams.archive.redis_catalog import RedisCatalog

    return RedisCatalog(redis, space, **properties)


def _store_properties(uri: str) -> dict[str, str]:
    if not uri.startswith("s3://"):
        return {}
    named = {
        "s3.endpoint": endpoint(),
        "s3.region": region(),
        "s3.access-key-id": os.environ.get("AWS_ACCESS_KEY_ID"),
        "s3.secret-access-key": os.environ.get("AWS_SECRET_ACCESS_KEY"),
        "s3.session-token": os.environ.get("AWS_SESSION_TOKEN"),
        "s3.connect-timeout": str(places.CONNECT_SECONDS),
        "s3.request-timeout": str(places.ANSWER_SECONDS),
    }
    return {name: value for name, value in named.items() if value}
