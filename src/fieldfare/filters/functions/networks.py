"""Functions over IP addresses."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network

from fieldfare.filters import values as sets
from fieldfare.filters.expression import Expression, Literal
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type
from fieldfare.filters.values import Ranges, ValueSet

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ADDRESS_CHARACTERS_MAX = 45
"""Maximum characters of an address: eight groups, the last two as an IPv4 address; longer texts are none."""


def address_of(text: str) -> Address | None:
    """Parse an IPv4 or IPv6 address; None if a text is none. Zones (``%eth0``) are not accepted."""
    if len(text) > ADDRESS_CHARACTERS_MAX or "%" in text:
        return None
    try:
        return IPv6Address(text) if ":" in text else IPv4Address(text)
    except AddressValueError:
        return None


def network_of(block: str) -> Network | None:
    """Parse a network such as ``10.0.0.0/8``; None if a text is none.

    Any address of the block is accepted. An address without a length is a block of one.
    """
    text, slash, bits = block.partition("/")
    address = address_of(text)
    if address is None or (slash and not (bits.isascii() and bits.isdigit() and len(bits) <= 3)):
        return None
    length = int(bits) if slash else address.max_prefixlen
    if length > address.max_prefixlen:
        return None
    return (
        IPv4Network((address, length), False)
        if address.version == 4
        else IPv6Network((address, length), False)
    )


def _in_cidr(address: str, block: str) -> bool | None:
    found, network = address_of(address), network_of(block)
    if found is None or network is None:
        return None
    return found.version == network.version and found in network


def _implied(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements | None:
    """Return the strings with which addresses of a block start."""
    address, block = operands
    if not isinstance(block, Literal) or not isinstance(block.value, str):
        return None
    network = network_of(block.value)
    if network is None:
        return ([(address, sets.NO_VALUES)], True)
    if True not in wanted or False in wanted:
        return ([(address, sets.STRINGS)], False)
    if network.version == 4:
        strings, is_exact = _texts_v4(network)
    else:
        strings, is_exact = _prefixes_v6(network), False
    return ([(address, ValueSet(strings=strings))], is_exact)


def _texts_v4(network: Network) -> tuple[Ranges, bool]:
    """Return all addresses of a small IPv4 block, exactly; for a larger one, prefixes of its addresses."""
    octets, rest = divmod(network.prefixlen, 8)
    fixed = network.network_address.packed[:octets]
    start = "".join(f"{octet}." for octet in fixed)
    if octets == 4:
        return sets.points([start[:-1]]), True
    first = network.network_address.packed[octets]
    following = [f"{start}{first + i}" for i in range(1 << 8 - rest)] if rest else []
    if octets == 3 and rest:
        return sets.points(following), True
    if not rest:
        return sets.with_prefix(start), False
    return _any_prefix([f"{text}." for text in following]), False


def _prefixes_v6(network: Network) -> Ranges:
    """Return the spellings of an IPv6 block's first group as prefixes, if the block fixes that group."""
    if network.prefixlen < 16:
        return sets.EVERYTHING
    group = int.from_bytes(network.network_address.packed[:2], "big")
    starts = [""]
    for digit in f"{group:x}":
        starts = [start + form for start in starts for form in {digit, digit.upper()}]
    prefixes = ["0" * zeros + start + ":" for zeros in range(5 - len(f"{group:x}")) for start in starts]
    return _any_prefix([*prefixes, "::"] if group == 0 else prefixes)


def _any_prefix(prefixes: list[str]) -> Ranges:
    """Return all strings with one of the prefixes, none of which may be a prefix of another."""
    return Ranges(False, tuple(cut for prefix in sorted(prefixes) for cut in sets.with_prefix(prefix).cuts))


FUNCTIONS = [
    Function(
        name="IN_CIDR",
        parameters=(Parameter("address", Type.STRING), Parameter("block", Type.STRING)),
        result=Type.BOOLEAN,
        summary="whether an IP address is in a block such as '10.0.0.0/8'; unknown if it is not an address",
        group="Networks",
        compute=_in_cidr,
        implied=_implied,
    ),
]
