"""The words of the text tokenizer, and their hash.

`models.text` computes the same in tensors, from tables of these functions.
"""

import string

PRIME = 2**31 - 1
"""Words are hashed to 0 .. PRIME - 1; a product of two such numbers fits into an int64."""

BASE = 1_000_003

_LETTERS_AND_DIGITS = (string.ascii_letters + string.digits).encode()


def is_word_byte(byte: int) -> bool:
    """Whether a byte belongs to a word: letters, digits, and all bytes beyond ASCII."""
    return byte >= 128 or byte in _LETTERS_AND_DIGITS


def lower_byte(byte: int) -> int:
    """An ASCII letter in lower case; other bytes unchanged."""
    return bytes([byte]).lower()[0]


def is_word(text: str) -> bool:
    """Whether a text is one word in lower case."""
    code = text.encode()
    return len(code) > 0 and all(is_word_byte(b) and lower_byte(b) == b for b in code)


def word_hash(word: str) -> int:
    """``sum_i byte_i * BASE ** i mod PRIME`` of a word in lower case; unlike Python's hash it is
    the same in every process and on every machine.
    """
    return sum(b * pow(BASE, i, PRIME) for i, b in enumerate(word.encode())) % PRIME
