"""Texts in observations, which become vectors.

A text is UTF-8 and ends at the first zero byte.  It is split into tokens, bytes or words, which are
embedded and read by a GRU.  Token 0 means no token.

Texts stay the same over an episode, so a batch holds few different texts: each is read once
(`distinct_rows`).  All computations use tensors; Python's `hash` is not used.

`TextEncoder` reads the missions of `film_grid`, and can be used in users' encoders
(examples/text_encoder.py).
"""

from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from quintet.models.cores import Core, draw_weights
from quintet.models.words import BASE, PRIME, is_word_byte, lower_byte, word_hash


def trimmed(texts: Tensor) -> Tensor:
    """The leading columns of `texts` ``[N, L]`` up to the last column with a byte that is not 0, at
    least one.
    """
    used = texts.amax(0).nonzero()
    return texts[:, : int(used[-1]) + 1 if len(used) else 1]


def distinct_rows(rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows ``[U, M]`` of ``[N, M]`` bytes, and the index of each row in them ``[N]``.

    Rows are grouped by a one-number hash and then compared, so the result is exact; sorting whole
    rows takes 30 times as long.

    weights: odd int64 factors in the hash, one per eight bytes, at least ``M / 8``.
    """
    size = rows.shape[1]
    padded = rows.new_zeros(len(rows), size + -size % 8)  # memory of its own, so aligned
    padded[:, :size] = rows
    words = padded.view(torch.int64)
    hashes = (words * weights[: words.shape[1]]).sum(1)  # modulo 2^64
    different, index = torch.unique(hashes, return_inverse=True)
    # Any row of a hash will do: if they differ, the hashes are not used.
    number = torch.arange(len(index), device=index.device)
    example = torch.empty_like(different).scatter_(0, index, number)
    if not torch.equal(words[example][index], words):
        different, index = torch.unique(words, dim=0, return_inverse=True)
        return different.view(torch.uint8)[:, :size], index
    return rows[example], index


def _before_end(texts: Tensor) -> Tensor:
    """Mask ``[N, L]`` of the bytes before the first zero byte."""
    return (texts == 0).long().cumsum(1) == 0


@final
class ByteTokens(nn.Module):
    """Every byte is a token."""

    size = 256

    def forward(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens ``[U, M]``, 0 after the end, and their counts ``[U]``, from texts ``[U, M]``."""
        inside = _before_end(texts)
        return texts * inside.long(), inside.sum(1)


@final
class WordTokens(nn.Module):
    """Every word (see `models.words`), in lower case, is a token.

    With a vocabulary its words are tokens 2, 3, ... in order, and all other words token 1; without
    a vocabulary a word is token ``1 + word_hash(word) % buckets``.  Words are looked up by their
    hash: a word outside a vocabulary of V words is taken for one in it with probability
    ``V / 2^31``.
    """

    word: Tensor
    lower: Tensor
    powers: Tensor
    known: Tensor
    tokens: Tensor

    def __init__(self, vocabulary: Sequence[str], buckets: int, longest: int):
        """longest: largest number of bytes of a text."""
        super().__init__()
        self.buckets = 0 if vocabulary else buckets
        self.size = len(vocabulary) + 2 if vocabulary else buckets + 1
        by_hash = sorted((word_hash(word), 2 + i) for i, word in enumerate(vocabulary))
        tables = {
            "word": torch.tensor([is_word_byte(byte) for byte in range(256)]),
            "lower": torch.tensor([lower_byte(byte) for byte in range(256)]),
            "powers": torch.tensor([pow(BASE, i, PRIME) for i in range(longest)]),
            "known": torch.tensor([number for number, _ in by_hash], dtype=torch.int64),
            "tokens": torch.tensor([token for _, token in by_hash], dtype=torch.int64),
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens ``[U, W]``, 0 after the last word, and counts ``[U]``, from texts ``[U, M]``."""
        hashes, lengths = self.hashes(texts)
        if self.buckets:
            tokens = 1 + hashes % self.buckets
        else:
            nearest = self._place(hashes).clamp_max(len(self.known) - 1)
            tokens = torch.where(self.known[nearest] == hashes, self.tokens[nearest], 1)
        exists = torch.arange(tokens.shape[1], device=texts.device) < lengths[:, None]
        return tokens * exists.long(), lengths

    def _place(self, hashes: Tensor) -> Tensor:
        """Number of known words with a smaller hash."""
        if torch.compiler.is_exporting():  # other formats have no such search
            return (self.known < hashes.unsqueeze(-1)).sum(-1)
        return torch.searchsorted(self.known, hashes)

    def hashes(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """`word_hash` of each word ``[U, W]`` and the counts of words ``[U]``."""
        codes = texts.long()
        inside = self.word[codes] & _before_end(codes)
        begins = (inside & ~functional.pad(inside, (1, 0))[:, :-1]).long()
        number = begins.cumsum(1)  # number of the word, from 1
        lengths = number[:, -1]
        place = torch.arange(texts.shape[1], device=texts.device)
        first = codes.new_zeros(texts.shape[0], texts.shape[1] + 1)  # place of a word's first byte
        first = first.scatter(1, number * begins, place * begins)
        terms = self.lower[codes] * self.powers[place - first.gather(1, number)] % PRIME
        # A graph for other programs has no shapes that depend on values.
        exporting = torch.compiler.is_exporting()
        most = (texts.shape[1] + 1) // 2 if exporting else max(int(lengths.max()), 1)
        # Place 0 sums the bytes outside of words.
        sums = terms.new_zeros(texts.shape[0], most + 1)
        sums.scatter_add_(1, number * inside.long(), terms)
        return sums[:, 1:] % PRIME, lengths


@final
class TextEncoder(nn.Module):
    """An encoder of texts ``[N, length]`` in bytes, as in the leaf of a Text space, into vectors
    ``[N, H]``.

    A vector is the GRU's last state, or the mean of its states, weighted by scaled dot products
    with a query (Vaswani et al. 2017).  A text without tokens gives 0.
    """

    weights: Tensor

    def __init__(
        self,
        length: int,
        *,
        tokenizer: Literal["bytes", "words"] = "words",
        vocabulary: Sequence[str] = (),
        hash_buckets: int = 1024,
        embedding_size: int = 32,
        hidden_size: int = 128,
        pooling: Literal["last", "attention"] = "last",
        query_size: int | None = None,
        deduplicate: bool = True,
    ):
        """Weights are drawn from PyTorch's default generator.

        Args:
            length: bytes of a text, ``leaves[name].shape[0]``.
            tokenizer: kind of tokens; words are converted to lower case.
            vocabulary: words with a token each, all others share one; empty: words are hashed.
            hash_buckets: number of tokens to which words are hashed.
            embedding_size: size of a token's embedding.
            hidden_size: H, units of the GRU.
            query_size: size of the input of attention's query.
            deduplicate: whether each distinct text of a batch is read only once, which changes
                results only by rounding.

        Raises:
            ValueError: attention without a query_size, or a query_size without attention.
        """
        super().__init__()
        if (pooling == "attention") != (query_size is not None):
            raise ValueError(
                "pooling attention and query_size must be given together, got "
                f"pooling={pooling!r} and query_size={query_size}"
            )
        self.tokens: ByteTokens | WordTokens = (
            WordTokens(vocabulary, hash_buckets, length) if tokenizer == "words" else ByteTokens()
        )
        self.embedding = nn.Embedding(self.tokens.size, embedding_size, padding_idx=0)
        self.gru = Core("gru", embedding_size, hidden_size, 1)
        self.query = None if query_size is None else nn.Linear(query_size, hidden_size)
        self.deduplicate, self.feature_size = deduplicate, hidden_size
        odd = torch.randint(2**62, (-(-length // 8),), generator=torch.Generator().manual_seed(0))
        self.register_buffer("weights", 2 * odd + 1, persistent=False)
        self.draw_weights(torch.default_generator)

    def forward(self, texts: Tensor, view: Tensor | None = None) -> Tensor:
        """Vectors ``[N, H]``.

        texts: ``[N, length]``, uint8.
        view: ``[N, query_size]``, the input of attention's query.
        """
        vectors, index = self.distinct(texts, view)
        return vectors if index is None else functional.embedding(index, vectors)

    def distinct(self, texts: Tensor, view: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Vectors ``[K, H]``, and each row's index ``[N]``; None: each row has its own."""
        index = None
        fixed = torch.compiler.is_exporting()  # no shapes that depend on values
        if not fixed:
            texts = trimmed(texts)
            if self.deduplicate:
                texts, index = distinct_rows(texts, self.weights)
        tokens, lengths = self.tokens(texts)
        if not fixed:
            tokens = tokens[:, : max(int(lengths.max()), 1)]
        states = self._read(tokens)
        if self.query is None:
            last = states[
                lengths.clamp_min(1) - 1, torch.arange(tokens.shape[0], device=tokens.device)
            ]
            return last * (lengths > 0)[:, None], index
        return _attend(self.query(view), states, lengths, index), None

    def _read(self, tokens: Tensor) -> Tensor:
        """States of the GRU after each token ``[M, U, H]``, from ``[U, M]``."""
        steps = self.embedding(tokens.t().int())
        state = {"h0": steps.new_zeros(tokens.shape[0], self.feature_size)}
        is_first = torch.zeros(steps.shape[:2], dtype=torch.bool, device=tokens.device)
        states: Tensor = self.gru(steps, state, is_first)[0]
        return states

    @torch.no_grad()
    def draw_weights(self, generator: torch.Generator) -> None:
        """Draws standard normal embeddings (0 for no token), and the GRU as a recurrent core."""
        self.embedding.weight.normal_(generator=generator)[0] = 0.0
        draw_weights(self.gru, generator)


def _attend(query: Tensor, states: Tensor, lengths: Tensor, index: Tensor | None) -> Tensor:
    """Dot-product attention: means ``[N, H]`` of the states ``[M, U, H]`` within the lengths
    ``[U]``, weighted by queries ``[N, H]``.

    index: of each query's text ``[N]``; None: query k reads text k.
    """
    steps, _, size = states.shape
    read = states.transpose(0, 1)
    if index is not None:
        read = functional.embedding(index, read.flatten(1)).view(-1, steps, size)
        lengths = lengths[index]
    inside = torch.arange(steps, device=states.device) < lengths[:, None]
    score = torch.bmm(read, query.float().unsqueeze(2)).squeeze(2).float() / size**0.5
    weight = score.masked_fill(~inside, -1e30).softmax(1) * inside  # without tokens: all 0
    return torch.bmm(weight.unsqueeze(1), read).squeeze(1).float()
