"""Decompress a request's body that is sent with Content-Encoding: gzip, within the limit of a body's size."""

import os
import zlib
from collections.abc import Iterator
from typing import Protocol

from container.serving.errors import bad_request, check_limit

_BLOCK_BYTES = 1 << 18
_GZIP = 31  # wbits of zlib: the format of gzip
# The end of a member returns to Python. Parallel compressors write members of about 64 KiB, before compression.
_BYTES_PER_MEMBER, _MOST_SHORT = 1 << 10, 16


class Body(Protocol):
    """A body that can be read more than once."""

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int: ...

    def read(self, size: int, /) -> bytes: ...


class Gunzipped:
    """The content of a gzip body. It is decompressed whenever it is read, so that it needs no memory and no disk.

    Raises:
        RequestError: 400, the body is not gzip; 413, the content has more than `limit` bytes.
    """

    def __init__(self, body: Body, limit: int) -> None:
        self._body = body
        self.size = 0
        try:
            for block in self._blocks():
                self.size += len(block)
                check_limit(self.size, "bytes after it is decompressed", limit)
        except (zlib.error, EOFError) as error:
            raise bad_request(f"the request is not gzip: {error}", "Compress it again.") from error

    def seek(self, _offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to the beginning, or return the size as the position of the end."""
        self._unread = self._blocks()
        return self.size if whence == os.SEEK_END else 0

    def read(self, _size: int, /) -> bytes:
        """Return the next bytes, of any number; none at the end."""
        return next(filter(None, self._unread), b"")

    def _blocks(self) -> Iterator[bytes]:
        self._body.seek(0)
        block = self._body.read(_BLOCK_BYTES)
        received, members = len(block), 0
        while block:
            member = zlib.decompressobj(_GZIP)
            while not member.eof:
                if not block:
                    raise EOFError("it is not complete")
                yield member.decompress(block, _BLOCK_BYTES)
                block = member.unconsumed_tail or member.unused_data
                if not block:
                    block = self._body.read(_BLOCK_BYTES)
                    received += len(block)
            members += 1
            if members > _MOST_SHORT + received // _BYTES_PER_MEMBER:
                raise zlib.error(f"its first {received} bytes have {members} members")
