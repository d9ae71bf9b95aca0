"""HPACK's Huffman code for header strings. Source: RFC 7541, section 5.2 and appendix B."""

from __future__ import annotations

from functools import cache

_LENGTHS = (
    "ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHFIBCCCCCCCCCCCCCCCCCCCCCCDCDIOIJB"
    "KABABABBBACCBBBABCBAABCCCCCKGJIXPRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRTQRSSQQRQSRSSPRRRSRRS"
    "VVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSVWVVWWWWWXWWWWWVZ"
)
"""The length of each symbol's code (A is 5 bits), 0 to 255 and the end. The code is canonical: lengths determine it."""
_END = 256


@cache
def _codes() -> dict[tuple[int, int], int]:
    """Symbol by length and value of its code."""
    lengths = [ord(letter) - ord("A") + 5 for letter in _LENGTHS]
    codes: dict[tuple[int, int], int] = {}
    code, last = 0, 0
    for symbol in sorted(range(len(lengths)), key=lambda symbol: (lengths[symbol], symbol)):
        code <<= lengths[symbol] - last
        last = lengths[symbol]
        codes[last, code] = symbol
        code += 1
    return codes


def decode(data: bytes) -> bytes:
    """The bytes behind a coded string.

    Raises:
        ValueError: this is no such code, or its padding is not what the standard asks for.
    """
    codes = _codes()
    out = bytearray()
    code = length = 0
    for byte in data:
        for shift in range(7, -1, -1):
            code, length = code << 1 | byte >> shift & 1, length + 1
            symbol = codes.get((length, code))
            if symbol is not None:
                if symbol == _END:
                    raise ValueError("the end of a string in its middle")
                out.append(symbol)
                code = length = 0
            elif length > 30:
                raise ValueError("no code of HPACK's")
    if length > 7 or code != (1 << length) - 1:
        raise ValueError("a string that ends within a code")
    return bytes(out)
