"""Errors of the row store. Every one tells what is wrong, where, and what to type or change next.

EngramError               7  (engram data)
|-- TableFormatError      a packed file or its manifest is damaged, or written by another version
|-- TableMismatchError    a sound file that is not the one asked for (rank, TP, layer, revision)
|-- CheckpointError       the checkpoint the tables come from is incomplete, damaged or another one
|-- DiskError             a read, write or open failed, with file, offset and errno
|   `-- ReadError         rows could not be read: failed, short, or over its deadline (ReadTimeoutError)
|-- BackendError          the way of reading asked for does not work on this machine
|-- RowIdError            a row id that is not of this rank's file
|-- RequestCancelled      a read was cancelled, or the store closed under it
|-- WaitTimeout           a wait for rows was given up; the read goes on
|-- PackError             packing cannot go on: no room, another job's leftovers, a failed write
`-- TokenIdError          a token id that no row belongs to
"""


class EngramError(Exception):
    """Root of the tree. `message` says what is wrong, `hint` the next command or value, `node` where."""

    exit_code = 7

    def __init__(self, message: str, *, hint: str = "", node: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.node = node

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.message}"


class TableFormatError(EngramError):
    pass


class TableMismatchError(EngramError):
    pass


class CheckpointError(EngramError):
    pass


class DiskError(EngramError):
    pass


class ReadError(DiskError):
    """Carries `path`, `offset_bytes` and `errno`; no row of the request may be used."""

    def __init__(
        self, message: str, *, hint: str = "", path: str = "", offset_bytes: int = 0, errno: int = 0
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.offset_bytes = offset_bytes
        self.errno = errno


class ReadTimeoutError(ReadError):
    pass


class BackendError(EngramError):
    pass


class RowIdError(EngramError):
    pass


class RequestCancelled(EngramError):
    pass


class WaitTimeout(EngramError):
    pass


class PackError(EngramError):
    pass


class TokenIdError(EngramError):
    pass
