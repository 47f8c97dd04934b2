"""The order of nodes: by number, so that node 9 comes before node 10, today and after every restart."""

from __future__ import annotations

import ipaddress
import re
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
    parts = re.findall(r"[0-9]+|[^0-9]+", text.lower())
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
