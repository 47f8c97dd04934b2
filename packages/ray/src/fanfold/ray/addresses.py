"""The order of nodes: by number, so that node 9 comes before node 10, today and after every restart."""

from __future__ import annotations

import ipaddress
import re
import string
from typing import TypeAlias

AddressKey: TypeAlias = tuple[int, int, tuple[tuple[int, int, str], ...]]


def address_sort_key(address: str) -> AddressKey:
    """Return a key that sorts IPv4 addresses by number, then IPv6 by number, then host names.

    Numbers within a host name count as numbers.

    Args:
        address: An address, IPv6 with or without brackets and zone, or a host name.
    """
    bare = address.strip().strip("[]").partition("%")[0]
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        return 2, 0, _natural(address)
    return (0 if isinstance(parsed, ipaddress.IPv4Address) else 1), int(parsed), ()


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    return tuple(_part(part) for part in re.findall(r"[0-9]+|[^0-9]+", text.lower()))


def _part(part: str) -> tuple[int, int, str]:
    if part[0] not in string.digits:
        return 1, 0, part
    digits = part.lstrip("0")  # by length and then as text is by number, however long it is
    return 0, len(digits), digits
