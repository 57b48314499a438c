"""The scopes of a token: what its bearer may ask a server for."""

from enum import StrEnum


class Scope(StrEnum):
    """What a token is good for."""

    ADMIN = "admin"
    WRITE = "write"
    APPROVE = "approve"
    READ = "read"
