"""What agent and client say to each other over HTTP, beside JSON.

A command's request is the length of a JSON header (u32, little-endian), the header, then its
standard input to the end of the body. The response is frames: kind (1 byte), length (u32),
payload; `o` and `e` are output, one `r` at the end is the result as JSON.
"""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTH = struct.Struct("<I")
FRAME = struct.Struct("<cI")
MAX_HEADER_BYTES = 4 << 20
MAX_FRAME_BYTES = 1 << 20
STREAM_KINDS = {"stdout": b"o", "stderr": b"e"}
KIND_STREAMS = {kind: stream for stream, kind in STREAM_KINDS.items()}
RESULT = b"r"
FAILURE = b"x"


def packed_header(values: dict[str, Any]) -> bytes:
    """The head of a command's request."""
    text = json.dumps(values).encode()
    return LENGTH.pack(len(text)) + text


def packed_frame(kind: bytes, payload: bytes) -> bytes:
    """One frame of a response."""
    return FRAME.pack(kind, len(payload)) + payload


class FrameReader:
    """Pieces of a response to frames; raises ValueError on what is no frame of ours."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The frames that are whole now."""
        self._received += piece
        frames, position = [], 0
        while len(self._received) - position >= FRAME.size:
            kind, length = FRAME.unpack_from(self._received, position)
            if length > MAX_FRAME_BYTES or kind not in (*KIND_STREAMS, RESULT, FAILURE):
                raise ValueError(f"a frame of kind {kind!r} and {length} bytes")
            end = position + FRAME.size + length
            if len(self._received) < end:
                break
            frames.append((kind, bytes(self._received[position + FRAME.size : end])))
            position = end
        del self._received[:position]
        return frames
