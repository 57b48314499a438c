"""The store in a directory: SQLite, one writer, group commit."""

from interlock.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
