"""Read the frames of a container's output, as Docker and the node helper's monitor write them. Pure."""

import struct
from collections.abc import Iterable, Iterator

_HEADER = struct.Struct(">B3xL")


def messages(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the content of each frame of Docker's stream, with 1 for stdout or 2 for stderr.

    The container must have no terminal. A frame is an 8-byte header (the stream's number, three zeros, the length),
    followed by its content (Docker Engine API, ContainerAttach). If a frame is cut off at the end, the part that
    arrived is yielded.
    """
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        start = 0
        while len(waiting) - start >= _HEADER.size:
            stream, length = _HEADER.unpack_from(waiting, start)
            end = start + _HEADER.size + length
            if len(waiting) < end:
                break
            yield stream, bytes(waiting[start + _HEADER.size : end])
            start = end
        del waiting[:start]
    if len(waiting) > _HEADER.size:
        yield waiting[0], bytes(waiting[_HEADER.size :])
