"""How much memory JSON text may turn into, known before it is read.

Three characters can become a list of 64 bytes, so a small foreign file could ask for much memory. Readers refuse text
that is too dense for its length, and writers fill up with spaces what would be refused. So reading never takes more
than about ten times the bytes that are read: the text as a string, the values, and the mapped file itself.
"""

from typing import Any

import numpy as np

from fanfold.dataproto.errors import FileFormatError

# Bytes that CPython allocates: a dict beside its entries, an entry with a key of its own, an empty list, a short
# string, and the place of a number with the number.
_DICT, _ENTRY, _LIST, _SHORT_STRING, _NUMBER = 50, 150, 72, 64, 40
_TIMES = 8
_FREE = 64 * 1024  # not worth a thought


def weight(text: Any) -> int:
    """Return about how many bytes the values take that JSON text stands for."""
    # Backslashes are inside of strings only; without them, every quote is one end of a string.
    raw = np.frombuffer(bytes(text).replace(b"\\\\", b"  ").replace(b'\\"', b"  "), np.uint8)
    quotes = raw == ord('"')
    outside = ~np.bitwise_xor.accumulate(quotes)

    def count(character: str) -> int:
        return int(np.count_nonzero(outside & (raw == ord(character))))

    colons, strings = count(":"), -(-int(np.count_nonzero(quotes)) // 2)
    return (
        _DICT * count("{")
        + _ENTRY * colons
        + _LIST * count("[")
        + _SHORT_STRING * max(0, strings - colons)
        + _NUMBER * count(",")
    )


def filled(text: bytes, extra: int = 0) -> bytes:
    """Return JSON text with spaces at its end, as many as it takes for `check` to pass.

    Args:
        text: the text
        extra: bytes of what will be made of the values beside them
    """
    return text + b" " * max(0, -(-(weight(text) + extra - _FREE) // _TIMES) - len(text))


def check(text: Any, extra: int = 0) -> None:
    """Refuse JSON text that stands for much more memory than it takes itself.

    Raises:
        FileFormatError: it does.
    """
    needed = weight(text) + extra
    if needed > _TIMES * len(text) + _FREE:
        raise FileFormatError(
            f"{len(text)} bytes of JSON stand for about {needed} bytes of values; no batch is so dense"
        )
