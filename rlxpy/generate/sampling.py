"""Choosing the next token from logits: greedy or drawn, repeatable from a seed."""
from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import numpy as np

from rlxpy.errors import InputError
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array


@dataclass(frozen=True)
class _Range:
    """Values that a setting of the sampler may have.  off: which one means what, as advice."""

    off: str
    least: float = 0
    most: float = inf
    whole: bool = False
    above: bool = False  # `least` itself is refused

    def refusal(self, value: object) -> str | None:
        kinds = (int, np.integer) if self.whole else (int, np.integer, float, np.floating)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return f"wanted a {'whole number' if self.whole else 'number'}, found {type(value).__name__} {value!r:.40}"
        if not (isfinite(value) and self.least <= value <= self.most) or (self.above and value == self.least):
            most = "finite" if self.most == inf else f"at most {self.most}"
            return f"{value} is not {'above' if self.above else 'at least'} {self.least} and {most}"
        return None


_RANGES = {
    "temperature": _Range("0 is greedy"),
    "top_k": _Range("0 is off", whole=True),
    "top_p": _Range("1 is off", most=1),
    "min_p": _Range("0 is off", most=1),
    "repetition_penalty": _Range("1 is off", above=True),
    "repeat_window": _Range("0 looks at no token", whole=True),
    "seed": _Range("None is a fresh one each time", most=2**64 - 1, whole=True),
}


@dataclass(frozen=True)
class Sampler:
    """How a token is chosen.  The steps, in this order, each on what the one before left, in float64:

    1. repetition_penalty  logits of the distinct tokens among the last `repeat_window` of the history: divided by it when
                           positive, multiplied when negative (Keskar et al. 2019, arXiv:1909.05858).  1 is off.
    2. temperature         logits are divided by it.  0 is greedy: the highest logit, ties to the lower index, and the steps
                           below do nothing.
    3. top_k               the k most likely tokens stay, ties to the lower index.  0, or more than there are, is off.
    4. top_p               the fewest most likely tokens whose probabilities add up to at least top_p stay (Holtzman et al.
                           2020, arXiv:1904.09751).  1 is off; at least one token stays.
    5. min_p               tokens at least min_p times as likely as the likeliest stay (arXiv:2407.01082).  0 is off.
    6. draw                from what is left, its probabilities scaled to a sum of 1.

    Temperature comes before the three cuts, so that they read the probabilities that are drawn from.
    seed: 0 to 2**64 - 1, or None for a fresh one each time.  Raises InputError for a value outside its range."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repeat_window: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            value = getattr(self, name)
            refusal = None if name == "seed" and value is None else allowed.refusal(value)
            if refusal is not None:
                raise InputError(f"{name} = {value!r:.40}", why=refusal, fix=allowed.off)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def rng(self, position: int) -> np.random.Generator:
        """The random numbers of one position of the text.

        Counter-based: they depend on seed and position alone, so neither batching nor where a run was taken up again
        changes the text.  Without a seed they are fresh each time."""
        if position < 0:
            raise InputError(f"position {position}", why=f"{position} is below 0", fix="count positions from 0")
        if self.seed is None:
            return np.random.Generator(np.random.Philox())
        return np.random.Generator(np.random.Philox(key=int(self.seed), counter=[0, 0, 0, position]))  # 2**192 numbers a position

    def pick(self, logits: Array, history: Sequence[int], rng: np.random.Generator) -> int:
        """The next token.  logits: [vocabulary], any real dtype and strides, not changed.  history: the tokens so far, the
        prompt's included.  A logit of -inf is never drawn.

        Raises InputError for logits that are not [vocabulary], hold NaN or +inf, or are all -inf, and for history outside
        the vocabulary."""
        scores = self._scores(logits, history)
        if self.is_greedy:
            return int(np.argmax(scores))
        tokens, weights = self._left(scores)
        cumulative = np.cumsum(weights)
        drawn = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
        return int(tokens[min(drawn, np.searchsorted(cumulative, cumulative[-1]))])  # a product may round up to the sum

    def probabilities(self, logits: Array, history: Sequence[int] = ()) -> Array:
        """The distribution `pick` draws from: f64 [vocabulary], sum 1."""
        scores = self._scores(logits, history)
        tokens, weights = (np.argmax(scores), np.ones(())) if self.is_greedy else self._left(scores)
        found = np.zeros(scores.shape)
        found[tokens] = weights / weights.sum()
        return found

    def _scores(self, logits: Array, history: Sequence[int]) -> Array:
        """Checked f64 logits after the repetition penalty."""
        try:
            scores = np.array(logits, np.float64)
        except (TypeError, ValueError) as e:
            raise InputError("logits cannot be read", why=f"wanted real numbers, found {type(logits).__name__}: {e}",
                             fix="pass an array") from None
        if scores.ndim != 1 or not scores.size:
            raise InputError("logits of another shape", why=f"wanted [vocabulary], found {list(scores.shape)}",
                             fix="pass one position of one sequence")
        if not np.max(scores) < inf:  # NaN compares false as well
            at = int(np.flatnonzero(~(scores < inf))[0])
            raise InputError("no token can be chosen", where=f"logit {at} of {scores.size}",
                             why=f"wanted a number or -inf, found {scores[at]}",
                             fix="try device='reference': what is not finite there too comes from the weights; on a GPU RLX_DEBUG=1 names the kernel that made it")
        if np.max(scores) == -inf:
            raise InputError("no token can be chosen", why=f"all {scores.size} logits are -inf", fix="leave at least one token unmasked")
        if self.repetition_penalty != 1:
            seen = _distinct(history[max(0, len(history) - self.repeat_window):], scores.size)
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / self.repetition_penalty, scores[seen] * self.repetition_penalty)
        return scores

    def _left(self, scores: Array) -> tuple[Array, Array]:
        """The tokens that the cuts leave, in order of index, and their unscaled probabilities."""
        tokens = _largest(scores, self.top_k or scores.size)  # dividing by the temperature keeps the order
        with np.errstate(over="ignore"):  # a tiny temperature: a quotient of -inf is a weight of 0
            weights = np.exp((scores[tokens] - scores.max()) / self.temperature)
        if self.top_p < 1:
            kept = _largest(weights, _nucleus(weights, self.top_p))
            tokens, weights = tokens[kept], weights[kept]
        likely = weights >= self.min_p  # the largest weight is 1
        return tokens[likely], weights[likely]


def _nucleus(weights: Array, share: float) -> int:
    """How many of the largest weights it takes to reach the share of their sum; at least 1."""
    total = weights.sum()
    sortable = weights[weights * weights.size >= (1 - share) * total]  # the others together are less than what may be missing
    return 1 + int(np.count_nonzero(np.cumsum(np.sort(sortable)[::-1]) < share * total))


def _largest(values: Array, count: int) -> Array:
    """Indices of the `count` largest, ascending; among equals the lower index."""
    if count >= values.size:
        return np.arange(values.size)
    edge = np.partition(values, values.size - count)[values.size - count]
    above, equal = np.flatnonzero(values > edge), np.flatnonzero(values == edge)
    return np.sort(np.concatenate([above, equal[: count - above.size]]))


def _distinct(tokens: Sequence[int], vocabulary: int) -> Array:
    seen: Array = np.unique(np.asarray(tokens, np.int64))
    outside: Array = seen[(seen < 0) | (seen >= vocabulary)]
    if outside.size:
        raise InputError("history holds a token outside the vocabulary", why=f"token {outside[0]} meets {vocabulary} logits",
                         fix="history and logits must be of one model")
    return seen
