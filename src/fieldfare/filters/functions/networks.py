"""Functions over addresses of the Internet."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network

from fieldfare.filters import values as sets
from fieldfare.filters.expression import Expression, Literal
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type
from fieldfare.filters.values import Ranges, ValueSet

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_ADDRESS_CHARACTERS = 45
"""The longest text of an address: eight groups of which the last two are an IPv4 address."""


def address_of(text: str) -> Address | None:
    """The address that a text is, of either version; None if it is none. A zone (``%eth0``) is not taken."""
    if len(text) > MAX_ADDRESS_CHARACTERS or "%" in text:
        return None
    try:
        return IPv6Address(text) if ":" in text else IPv4Address(text)
    except AddressValueError:
        return None


def network_of(block: str) -> Network | None:
    """The network that a text like ``10.0.0.0/8`` is; None if it is none.

    The address may be any in the block. An address alone is a block of one.
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
    """The strings that a block's addresses start with."""
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
    """All addresses of a small block; of a larger one, how the octets start that its bits reach into."""
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
    """How the first group of an address can be written, if the block fixes it."""
    if network.prefixlen < 16:
        return sets.EVERYTHING
    group = int.from_bytes(network.network_address.packed[:2], "big")
    starts = [""]
    for digit in f"{group:x}":
        starts = [start + form for start in starts for form in {digit, digit.upper()}]
    prefixes = ["0" * zeros + start + ":" for zeros in range(5 - len(f"{group:x}")) for start in starts]
    return _any_prefix([*prefixes, "::"] if group == 0 else prefixes)


def _any_prefix(prefixes: list[str]) -> Ranges:
    """All strings with one of these prefixes, none of which is a prefix of another."""
    return Ranges(False, tuple(cut for prefix in sorted(prefixes) for cut in sets.with_prefix(prefix).cuts))


FUNCTIONS = [
    Function(
        name="IN_CIDR",
        parameters=(Parameter("address", Type.STRING), Parameter("block", Type.STRING)),
        result=Type.BOOLEAN,
        summary="whether an IP address is in a block such as '10.0.0.0/8'; unknown for what is no address",
        group="Networks",
        compute=_in_cidr,
        implied=_implied,
    ),
]
