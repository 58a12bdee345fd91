"""Packed bodies: what was packed comes out, and nothing that a hostile sender makes costs much."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doses import drawn
from fieldfare.encodings import (
    ENCODINGS,
    FREE_BYTES,
    MADE_BYTES,
    MEMBERS_MAX,
    RATIO_MAX,
    BadPacking,
    DecompressedTooLarge,
    pack,
    unpack,
    zstd,
)

MIB = 1 << 20
LARGE = 64 * MIB

ANY_ENCODING = st.sampled_from(ENCODINGS)


@settings(max_examples=drawn(200))
@given(ANY_ENCODING, st.lists(st.binary(max_size=200_000), min_size=1, max_size=4))
def test_what_was_packed_comes_out_in_one_piece_or_in_several(encoding: str, parts: list[bytes]) -> None:
    packed = b"".join(pack(part, encoding) for part in parts)
    assert unpack(packed, encoding, LARGE) == b"".join(parts)


@settings(max_examples=drawn(300))
@given(ANY_ENCODING, st.binary(min_size=1, max_size=3_000), st.data())
def test_what_was_damaged_is_refused_or_comes_out_whole(
    encoding: str, body: bytes, data: st.DataObject
) -> None:
    """A cut body must not pass for a shorter one. In a gzip header are bytes that say nothing."""
    packed = pack(body, encoding)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(BadPacking):
        unpack(packed[:cut], encoding, LARGE)
    with pytest.raises(BadPacking):
        unpack(packed + data.draw(st.binary(min_size=1, max_size=3)), encoding, LARGE)
    changed = bytearray(packed)
    changed[cut] ^= data.draw(st.integers(1, 255))
    try:
        found = unpack(bytes(changed), encoding, LARGE)
    except (BadPacking, DecompressedTooLarge):
        return
    assert found == body or encoding == "zstd"  # a zstd frame need not have a checksum, and ours have none


@settings(max_examples=drawn(300))
@given(ANY_ENCODING, st.binary(max_size=2_000))
def test_any_bytes_are_unpacked_or_refused(encoding: str, body: bytes) -> None:
    try:
        assert len(unpack(body, encoding, MIB)) <= MIB
    except (BadPacking, DecompressedTooLarge):
        pass


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_bounds_are_met_exactly(encoding: str) -> None:
    packed = pack(bytes(50_000), encoding)
    assert len(unpack(packed, encoding, 50_000)) == 50_000
    with pytest.raises(DecompressedTooLarge) as caught:
        unpack(packed, encoding, 49_999)
    assert caught.value.max_bytes == 49_999
    assert len(unpack(pack(bytes(FREE_BYTES), encoding), encoding, LARGE)) == FREE_BYTES
    with pytest.raises(DecompressedTooLarge):
        unpack(pack(bytes(4 * FREE_BYTES), encoding), encoding, LARGE)


BOMBS = {
    "gzip": lambda: gzip.compress(bytes(LARGE), 9),
    "zstd": lambda: zstd.compress(bytes(LARGE), 19),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_takes_no_more_memory_than_may_come_out(encoding: str) -> None:
    """64 MiB of nothing in a few kilobytes: not one of them is made beyond the bound."""
    bomb = BOMBS[encoding]()
    assert len(bomb) < LARGE // RATIO_MAX
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            unpack(bomb, encoding, 8 * MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What the decompressor itself keeps (a zstd window) is not traced.
    assert peak_bytes < 4 * (8 * MIB)


def test_a_zstd_body_may_not_ask_for_a_large_window() -> None:
    """27 would make each request of a few bytes cost 128 MiB."""
    window = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.content_size_flag: 0}
    packer = zstd.ZstdCompressor(options=window)
    packed = packer.compress(b"x" * 100) + packer.flush()
    with pytest.raises(BadPacking):
        unpack(packed, "zstd", MIB)


CHECKED = {
    "gzip": lambda body: gzip.compress(body)[:-8],
    "zstd": lambda body: zstd.compress(body, options={zstd.CompressionParameter.checksum_flag: 1})[:-4],
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_of_what_was_unpacked_in_vain_all_but_one_step_is_known(encoding: str) -> None:
    """A wrong checksum at the end, and nothing of a mebibyte would have been paid for."""
    with pytest.raises(BadPacking) as caught:
        unpack(CHECKED[encoding](bytes(FREE_BYTES)) + b"_" * 8, encoding, LARGE)
    assert FREE_BYTES - MADE_BYTES <= caught.value.size_bytes <= FREE_BYTES


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("more", range(-2, 3))
def test_what_ends_where_a_step_does_is_whole(encoding: str, more: int) -> None:
    body = bytes(2 * MADE_BYTES + more)
    assert unpack(pack(body, encoding) + pack(b"end", encoding), encoding, LARGE) == body + b"end"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_parts_of_a_body_are_counted(encoding: str) -> None:
    nothing = pack(b"", encoding)
    assert unpack(nothing * MEMBERS_MAX, encoding, MIB) == b""
    with pytest.raises(BadPacking, match="parts"):
        unpack(nothing * (MEMBERS_MAX + 1), encoding, MIB)


def test_gzip_is_no_other_form_of_deflate() -> None:
    for other in (zlib.compress(b"x"), zlib.compress(b"x", wbits=-15)):
        with pytest.raises(BadPacking):
            unpack(other, "gzip", MIB)
