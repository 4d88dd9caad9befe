"""What a word is to the tokenizer of texts, and the number that it is known by.

`models.text` computes the same in tensors, from these functions' tables.
"""

import string

PRIME = 2**31 - 1
"""Words are hashed to 0 .. PRIME - 1; a product of two such numbers fits into an int64."""

BASE = 1_000_003

_LETTERS_AND_DIGITS = (string.ascii_letters + string.digits).encode()


def is_word_byte(byte: int) -> bool:
    """Letters, digits, and all bytes of what is not ASCII; a word ends at any other."""
    return byte >= 128 or byte in _LETTERS_AND_DIGITS


def lower_byte(byte: int) -> int:
    """ASCII's letters in lower case; others stay, as their case is no matter of single bytes."""
    return bytes([byte]).lower()[0]


def is_word(text: str) -> bool:
    """Whether a text is one word in lower case."""
    code = text.encode()
    return len(code) > 0 and all(is_word_byte(b) and lower_byte(b) == b for b in code)


def word_hash(word: str) -> int:
    """``sum_i byte_i * BASE ** i mod PRIME`` of a word in lower case: the same in every process and
    on every machine, as Python's own hash is not.
    """
    return sum(b * pow(BASE, i, PRIME) for i, b in enumerate(word.encode())) % PRIME
