from __future__ import annotations

import ipaddress

from fanfold.ray import address_sort_key
from hypothesis import given
from hypothesis import strategies as st


def test_numbers_not_text() -> None:
    assert sorted(["10.0.0.10", "10.0.0.9", "10.0.0.66", "10.0.0.2"], key=address_sort_key) == [
        "10.0.0.2",
        "10.0.0.9",
        "10.0.0.10",
        "10.0.0.66",
    ]


def test_families_and_names_in_one_list() -> None:
    mixed = ["node10", "fe80::1%eth0", "[::1]", "node9", "10.0.0.1", "2001:db8::9", "2001:db8::10"]
    assert sorted(mixed, key=address_sort_key) == [
        "10.0.0.1",
        "[::1]",
        "2001:db8::9",
        "2001:db8::10",
        "fe80::1%eth0",
        "node9",
        "node10",
    ]


@given(st.lists(st.ip_addresses(v=4)))
def test_ipv4_by_value(addresses: list[ipaddress.IPv4Address]) -> None:
    ordered = sorted((str(address) for address in addresses), key=address_sort_key)
    assert [ipaddress.IPv4Address(text) for text in ordered] == sorted(addresses)


def test_what_only_looks_like_a_number_is_text() -> None:
    assert sorted(["node\u00b2", "node10", "node\u2460", "node9", "node" + "9" * 5000], key=address_sort_key) == [
        "node9",
        "node10",
        "node" + "9" * 5000,
        "node\u00b2",
        "node\u2460",
    ]
    assert address_sort_key("n007") == address_sort_key("n7")


@given(st.lists(st.one_of(st.text(), st.ip_addresses().map(str))))
def test_any_text_can_be_sorted(texts: list[str]) -> None:
    assert sorted(texts, key=address_sort_key) == sorted(texts, key=address_sort_key)
