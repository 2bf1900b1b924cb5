"""From public sources to checked splits on disk."""

from whale.domains.data.prepared import read_prepared
from whale.domains.data.source import HubFile, Preparer, RowError, Source

__all__ = ["HubFile", "Preparer", "RowError", "Source", "read_prepared"]
