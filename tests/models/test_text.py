"""Words as they are split and hashed, rows that differ, and what attention looks at."""

import re

import pytest
import torch
from pydantic import ValidationError

from quintet.models.config import GridOptions
from quintet.models.text import ByteTokens, TextEncoder, WordTokens, distinct_rows, trimmed
from quintet.models.words import PRIME, is_word, word_hash

TEXTS = (
    b"go to the red ball",
    b"Go TO the, red\tball!",
    b"  two  spaces ",
    b"",
    b"...",
    b"a",
    b"a\0 b c",
    b"x1 1x x-1",
    "\u00c9t\u00e9 \u00e9t\u00e9 na\u00efve \u4f60\u597d".encode(),
    b"pick up the key, then open a door",
    bytes(range(1, 64)),
    b"w" * 64,
)


def as_rows(texts: tuple[bytes, ...], length: int = 64) -> torch.Tensor:
    return torch.stack([torch.tensor(list(text.ljust(length, b"\0"))) for text in texts]).byte()


def words_of(text: bytes) -> list[bytes]:
    return re.findall(rb"[0-9a-zA-Z\x80-\xff]+", text.split(b"\0")[0].lower())


def slow_hash(word: bytes) -> int:
    total, power = 0, 1
    for byte in word:
        total, power = total + byte * power, power * 1_000_003
    return total % (2**31 - 1)


def test_words_and_their_hashes():
    hashes, lengths = WordTokens((), 1024, 64).hashes(as_rows(TEXTS))
    for found, length, text in zip(hashes.tolist(), lengths.tolist(), TEXTS, strict=True):
        words = words_of(text)
        assert length == len(words), text
        assert found[:length] == [slow_hash(word) for word in words], text
    assert lengths[:6].tolist() == [5, 5, 2, 0, 0, 1]


@pytest.mark.parametrize(
    ("word", "expected", "bucket"),
    [("a", 97, 98), ("go", 111000436, 885), ("red", 977495115, 76), ("ball", 1180946981, 550)],
)
def test_hashes_are_those_of_yesterday(word: str, expected: int, bucket: int):
    """Trained weights belong to these numbers."""
    assert word_hash(word) == expected
    tokens, _ = WordTokens((), 1024, 64)(as_rows((word.encode(),)))
    assert tokens.tolist() == [[bucket]]


def test_hashed_tokens():
    tokens, lengths = WordTokens((), 7, 64)(as_rows(TEXTS))
    for row, length, text in zip(tokens.tolist(), lengths.tolist(), TEXTS, strict=True):
        words = [1 + slow_hash(word) % 7 for word in words_of(text)]
        assert row == words + [0] * (len(row) - length)
    assert WordTokens((), 7, 64).size == 8


def test_tokens_of_a_vocabulary():
    vocabulary = ("red", "the", "ball", "\u00e9t\u00e9", "x1")
    module = WordTokens(vocabulary, 1024, 64)
    tokens, lengths = module(as_rows(TEXTS))
    assert module.size == 7
    for row, length, text in zip(tokens.tolist(), lengths.tolist(), TEXTS, strict=True):
        known = [word.encode() for word in vocabulary]
        words = [known.index(w) + 2 if w in known else 1 for w in words_of(text)]
        assert row == words + [0] * (len(row) - length)
    assert tokens[0].tolist()[:5] == [1, 1, 3, 2, 4] == tokens[1].tolist()[:5]


def test_every_byte_is_a_token():
    tokens, lengths = ByteTokens()(as_rows(TEXTS))
    for row, length, text in zip(tokens.tolist(), lengths.tolist(), TEXTS, strict=True):
        kept = text.split(b"\0")[0]
        assert length == len(kept)
        assert row == list(kept.ljust(64, b"\0"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("red", True), ("x1", True), ("\u00e9", True), ("Red", False), ("a b", False), ("", False)],
)
def test_what_a_vocabulary_may_hold(text: str, expected: bool):
    assert is_word(text) == expected
    if expected:
        assert GridOptions(vocabulary=(text,)).vocabulary == (text,)
    else:
        with pytest.raises(
            ValidationError, match="must hold different words of lower-case letters"
        ):
            GridOptions(vocabulary=("a", text))


def test_a_vocabulary_holds_no_word_twice():
    with pytest.raises(ValidationError, match="must hold different words"):
        GridOptions(vocabulary=("a", "b", "a"))


def test_the_largest_sum_of_a_word_stays_in_an_int64():
    assert 2**9 * 256 * PRIME < 2**63  # 512 bytes, each times a power
    assert PRIME == 2**31 - 1
    assert all(PRIME % n for n in range(2, 2**16))


@pytest.mark.parametrize("width", [1, 7, 8, 9, 30])
@pytest.mark.parametrize("weight", [0, 1, 3])
def test_distinct_rows(width: int, weight: int):
    """Also where hashes are equal: all of them with weight 0, those of permuted words with 1."""
    g = torch.Generator().manual_seed(width)
    pool = torch.randint(0, 256, (5, width), generator=g).byte()
    pool[0] = 0
    rows = pool[torch.randint(0, 5, (40,), generator=g)]
    if width >= 16:
        rows[7] = torch.cat((rows[3, 8:16], rows[3, :8], rows[3, 16:]))
    different, which = distinct_rows(rows, torch.full((4,), weight))
    assert torch.equal(different[which], rows)
    expected = {bytes(row.tolist()) for row in rows}
    assert len(different) == len(expected) == len(different.unique(dim=0))


def test_trimmed():
    rows = as_rows((b"abc", b"", b"x"))
    assert trimmed(rows).shape == (3, 3)
    assert trimmed(torch.zeros((4, 9), dtype=torch.uint8)).shape == (4, 1)
    assert trimmed(torch.ones((4, 9), dtype=torch.uint8)).shape == (4, 9)


def make(pooling: str) -> TextEncoder:
    text = TextEncoder(
        16,
        tokenizer="bytes",
        embedding_size=3,
        hidden_size=4,
        pooling=pooling,
        query_size=2 if pooling == "attention" else None,
    )
    text.draw_weights(torch.Generator().manual_seed(0))
    return text


def test_attention_looks_at_no_padding():
    text, view = make("attention"), 5.0 * torch.randn(1, 2)
    alone = text(as_rows((b"red",), 16), view)
    long = as_rows((b"red", b"a longer text"), 16)
    together = text(long, view.expand(2, -1))
    torch.testing.assert_close(together[:1], alone)
    (found,) = torch.autograd.grad(together[0].sum(), text.embedding.weight)
    assert found.any(1).nonzero().squeeze(1).tolist() == sorted(b"red")


def test_attention_follows_what_is_in_view():
    vectors = make("attention")(as_rows((b"red ball",) * 4, 16), torch.randn(4, 2))
    assert (vectors[1:] - vectors[:1]).abs().amax(1).min() > 1e-4


@pytest.mark.parametrize("pooling", ["last", "attention"])
def test_a_text_without_tokens_is_zero(pooling: str):
    texts = as_rows((b"", b"x", b""), 16)
    for each in (texts, texts[:1]):
        vectors = make(pooling)(each, torch.randn(len(each), 2))
        assert [bool(row.any()) for row in vectors] == [bool(row.any()) for row in each]
