"""Sizes: integers that depend on the inputs of a model, as sums of products of symbols.

A size has a canonical form, so that equal expressions compare equal: 2*(B + 1)*S is 2*B*S + 2*S. Sizes that compare
equal are equal for every input of the model; sizes that compare unequal may have the same value. A symbol is a
dimension or the floor of a quotient (`Floor`), and never negative.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Limits of a size: its terms; the symbols of a term; the bits of a coefficient; the characters of a symbol. The engine
# treats larger sizes as unknown, because repeated multiplication would make them grow exponentially.
MAX_TERMS, MAX_SYMBOLS, MAX_BITS, MAX_NAME = 64, 64, 2048, 1000
# The symbols of a product, sorted; a square has its symbol twice.
Monomial = tuple[str, ...]


@dataclass(frozen=True)
class Size:
    """A sum of products of symbols.

    Attributes:
        terms: (product of symbols, non-zero coefficient), in a fixed order; () is the empty product, 1.
    """

    terms: tuple[tuple[Monomial, int], ...] = ()

    @staticmethod
    @functools.lru_cache(4096, typed=True)
    def of(number: int) -> Size:
        return Size((((), number),)) if number else Size()

    @staticmethod
    def symbol(name: str) -> Size:
        return Size((((name,), 1),))

    @property
    def value(self) -> int | None:
        """The integer, or None if the size depends on symbols."""
        if not self.terms:
            return 0
        product, number = self.terms[0]
        return None if product or len(self.terms) > 1 else number

    @property
    def never_negative(self) -> bool:
        return all(coefficient > 0 for _, coefficient in self.terms)

    @property
    def is_bounded(self) -> bool:
        """Whether the numbers of terms, symbols, bits and characters are within the limits."""
        if len(self.terms) > MAX_TERMS:
            return False
        for symbols, number in self.terms:  # no generators: this runs for every size of a large graph
            if len(symbols) > MAX_SYMBOLS or number.bit_length() > MAX_BITS:
                return False
            for symbol in symbols:
                if len(symbol) > MAX_NAME:
                    return False
        return True

    def exceeds(self, other: Size) -> bool:
        """Returns whether this size is larger than `other` for every input of the model; False if that is unknown."""
        difference = self - other
        return difference.never_negative and any(not product for product, _ in difference.terms)

    def __add__(self, other: Size) -> Size:
        return _sum((*self.terms, *other.terms))

    def __neg__(self) -> Size:
        return Size(tuple((product, -coefficient) for product, coefficient in self.terms))

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __mul__(self, other: Size) -> Size:
        return _sum([(tuple(sorted(a + b)), m * n) for a, m in self.terms for b, n in other.terms])

    def divided_by(self, other: Size) -> Size | None:
        """Returns the exact quotient, or None if it is not a size."""
        if not other.terms:
            return None
        # Polynomial division: the last term has the highest degree.
        divisor, by = other.terms[-1]
        rest, quotient = self, Size()
        while rest.terms:
            product, coefficient = rest.terms[-1]
            symbols = _without(product, divisor)
            if symbols is None or coefficient % by:
                return None
            term = Size(((symbols, coefficient // by),))
            quotient, rest = quotient + term, rest - term * other
        return quotient

    def floor_divided_by(self, number: int) -> Size:
        """Returns floor(self / number) for a positive number, with the divisible part outside of the floor."""
        outside = Size(tuple((p, c // number) for p, c in self.terms if c // number))
        inside = Size(tuple((p, c % number) for p, c in self.terms if c % number))
        return outside if inside.value is not None else outside + Size.symbol(Floor(inside, number))

    def evaluate(self, sizes: Mapping[str, int]) -> int | None:
        """Returns the integer for these sizes of the symbols; None if a symbol is missing."""
        result = 0
        for symbols, number in self.terms:
            for symbol in symbols:
                size = sizes.get(symbol)
                if size is None and isinstance(symbol, Floor):
                    inside = symbol.inside.evaluate(sizes)
                    size = None if inside is None else inside // symbol.number
                if size is None:
                    return None
                number *= size
            result += number
        return result

    def __str__(self) -> str:
        parts = ["*".join([str(c)] * (c != 1 or not p) + list(p)) for p, c in self.terms]
        return " + ".join(parts) or "0"


class Floor(str):
    """The symbol of a floor division.

    Attributes:
        inside: the dividend.
        number: the divisor.
    """

    inside: Size
    number: int

    def __new__(cls, inside: Size, number: int) -> Floor:
        symbol = super().__new__(cls, f"floor(({inside})/{number})")
        symbol.inside, symbol.number = inside, number
        return symbol


ZERO, ONE = Size.of(0), Size.of(1)


def product(sizes: Iterable[Size]) -> Size:
    return math.prod(sizes, start=ONE)


def total(sizes: Iterable[Size]) -> Size:
    return sum(sizes, start=ZERO)


def shape_text(dims: Iterable[Size] | None) -> str:
    """Formats dimensions for messages: [B, 2*S + 1]; ? for an unknown rank."""
    return "?" if dims is None else f"[{', '.join(map(str, dims))}]"


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Size:
    sums: dict[Monomial, int] = {}
    for symbols, coefficient in terms:
        sums[symbols] = sums.get(symbols, 0) + coefficient
    kept = [(symbols, coefficient) for symbols, coefficient in sums.items() if coefficient]
    return Size(tuple(sorted(kept, key=lambda term: (len(term[0]), term[0]))))


def _without(symbols: Monomial, divisor: Monomial) -> Monomial | None:
    """Returns the product divided by another one; None if it is not divisible."""
    rest = list(symbols)
    for symbol in divisor:
        if symbol not in rest:
            return None
        rest.remove(symbol)
    return tuple(rest)
