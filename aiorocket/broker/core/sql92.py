"""SQL92 filters: text -> Expression, with RocketMQ's grammar, its three-valued logic and its conversions.

The operators, loosest first: ``OR``; ``AND``; ``=  <>  IS [NOT] NULL``; ``>  >=  <  <=  [NOT] BETWEEN x AND y
[NOT] IN ('a', ...)  [NOT] CONTAINS | STARTSWITH | ENDSWITH 'text'``; ``NOT + -`` in front of one operand. Operands are
properties, numbers, 'texts', TRUE, FALSE, NULL and parentheses. A property's value is a text or, when it is missing,
unknown; a text beside a number is converted, and if that fails the message does not match, whatever the rest says.

Three of Apache's oddities are kept, because a filter has to select the same messages at both: an unknown right side of
``=`` is false, not unknown (so ``a <> b`` matches without b); two unknown sides are equal; the integers that a text is
converted to have 32 bits when the constant beside it has. Not kept: Apache ignores whatever follows the first complete
expression, and accepts no 0.0 and no comment without a line end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from types import NoneType
from typing import NamedTuple, NoReturn

from aiorocket.broker.core.sql92_values import (
    ORDERINGS,
    TEXT_TESTS,
    Long,
    NotComparable,
    Properties,
    Run,
    Value,
    all_of,
    any_of,
    compare,
    equality,
    is_null,
    membership,
    minus,
    negation,
    ordering,
    text_test,
)

__all__ = ("Expression", "Sql92Error", "parse")

#: Nobody writes this by hand, and what is cached must be bounded: 16 KiB compile in 25 ms.
MAX_LENGTH = 16 * 1024
#: Names, constants and operators; each takes 200 to 300 bytes when compiled.
MAX_TOKENS = 4_000
#: Operators inside each other; parsing and evaluating are recursive.
MAX_DEPTH = 50
#: Compiled expressions that are kept (Apache: 100), and characters of one: 16 MiB in all, and a long one compiles once
#: for each request that brings it.
MAX_CACHED, LONGEST_CACHED = 128, 1_024


class Sql92Error(ValueError):
    """The text is no filter expression. ``position`` is the index of the character where that became clear."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} at position {position}")
        self.position = position


class Expression:
    """A compiled filter. The same object serves any number of messages."""

    __slots__ = ("_run", "text", "tokens")

    def __init__(self, text: str, run: Run, tokens: int) -> None:
        self.text = text
        #: How many names, constants and operators it has: what it costs for each message.
        self.tokens = tokens
        self._run = run

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def evaluate(self, properties: Properties) -> bool | None:
        """True, False or None for unknown; None too when a text had to be a number and is none. Raises nothing."""
        try:
            value = self._run(properties)
        except NotComparable:
            return None
        return value if isinstance(value, bool) else None

    def matches(self, properties: Properties) -> bool:
        """Is this message wanted? Unknown means no."""
        try:
            return self._run(properties) is True
        except NotComparable:
            return False


def parse(text: str) -> Expression:
    """Compile ``text``; Sql92Error when it does not compile. The most recent expressions are kept, unless long."""
    return _known(text) if len(text) <= LONGEST_CACHED else _compiled(text)


def _compiled(text: str) -> Expression:
    parser = _Parser(text)
    return Expression(text, parser.parse(), parser.tokens)


_known = lru_cache(maxsize=MAX_CACHED)(_compiled)


# ---- tokens

_TOKEN = re.compile(
    r"""
      (?P<skip>   [ \t\n\r\f]+ | --[^\n\r]* | /\*.*?\*/ )
    | (?P<float>  [0-9]+\.[0-9]*(?:e[+-]?[0-9]+)? | \.[0-9]+(?:e[+-]?[0-9]+)? | [0-9]+e[+-]?[0-9]+ )
    | (?P<int>    0(?![0-9]) | [1-9][0-9]*l? )
    | (?P<string> '(?:''|[^'])*' )
    | (?P<name>   [a-z_$][a-z0-9_$]* )
    | (?P<op>     <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE | re.ASCII,
)
_KEYWORDS = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)


class _Token(NamedTuple):
    """``kind`` is float, int, string, name, end, or the operator or upper-case keyword itself."""

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"{self.text!r:.60}"


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            at += text[at] == "0"  # a number by itself, behind which no digit may stand
            what = {"'": "a text without its closing '", "/": "a comment without its end"}.get(text[at])
            raise Sql92Error(what or f"unexpected character {text[at]!r}", at)
        kind, word = str(match.lastgroup), match.group()
        if kind == "name" and word.upper() in _KEYWORDS:
            kind = word.upper()
        elif kind == "op":
            kind = word
        if kind != "skip":
            if len(tokens) == MAX_TOKENS:
                raise Sql92Error(f"more than {MAX_TOKENS} names, constants and operators", at)
            tokens.append(_Token(kind, word, at))
        at = match.end()
    tokens.append(_Token("end", "", at))
    return tokens


# ---- operands


class _Operand(NamedTuple):
    """Part of an expression. ``kind`` is property, constant, boolean (what AND, OR and NOT take) or other."""

    run: Run
    kind: str
    #: Of a constant.
    value: Value = None
    #: How many operators are inside each other here.
    depth: int = 0


def _property(name: str) -> _Operand:
    return _Operand(lambda properties: properties.get(name), "property")


def _constant(value: Value) -> _Operand:
    return _Operand(lambda _properties: value, "constant", value)


class _Parser:
    """Recursive descent, one method per level of the grammar."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise Sql92Error(f"an expression of {len(text)} characters; at most {MAX_LENGTH} are accepted", MAX_LENGTH)
        self._tokens = _tokens(text)
        self.tokens = len(self._tokens)
        self._next = 0
        self._nested = 0

    def parse(self) -> Run:
        found = self._boolean(self._or(), 0)
        if self._token.kind != "end":
            raise Sql92Error(f"unexpected {self._token} after a complete expression", self._token.at)
        return found.run

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, kind: str) -> bool:
        """Step over the next token when it is a ``kind``."""
        if self._token.kind != kind:
            return False
        self._next += 1
        return True

    def _need(self, kind: str, what: str) -> _Token:
        token = self._token
        if not self._take(kind):
            self._fail(f"{what} expected, found {token}")
        return token

    def _fail(self, what: str) -> NoReturn:
        raise Sql92Error(what, self._token.at)

    def _boolean(self, operand: _Operand, at: int) -> _Operand:
        if operand.kind == "boolean" or (operand.kind == "constant" and isinstance(operand.value, (bool, NoneType))):
            return operand
        if operand.kind == "property":
            run = operand.run  # its value is a text, which is not true; missing it is unknown
            return _Operand(lambda properties: None if run(properties) is None else False, "boolean")
        raise Sql92Error("an expression that is neither true nor false", at)

    def _made(self, run: Run, *parts: _Operand) -> _Operand:
        depth = 1 + max(part.depth for part in parts)
        if depth > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} operators inside each other")
        return _Operand(run, "boolean", depth=depth)

    # ---- levels

    def _or(self) -> _Operand:
        return self._chain("OR", self._and, any_of)

    def _and(self) -> _Operand:
        return self._chain("AND", self._equality, all_of)

    def _chain(self, word: str, level: Callable[[], _Operand], joined: Callable[[tuple[Run, ...]], Run]) -> _Operand:
        at = self._token.at
        first = level()
        if self._token.kind != word:
            return first
        parts = [self._boolean(first, at)]
        while self._take(word):
            at = self._token.at
            parts.append(self._boolean(level(), at))
        return self._made(joined(tuple(part.run for part in parts)), *parts)

    def _equality(self) -> _Operand:
        at = self._token.at
        left = self._comparison()
        while True:
            if self._take("="):
                right = self._comparable(left, self._comparison(), at)
                left = self._made(equality(left.run, right.run), left, right)
            elif self._take("<>"):
                right = self._comparable(left, self._comparison(), at)
                left = self._made(negation(equality(left.run, right.run)), left, right)
            elif self._take("IS"):
                no = self._take("NOT")
                self._need("NULL", "NULL")
                left = self._made(is_null(left.run, not no), left)
            else:
                return left

    def _comparable(self, left: _Operand, right: _Operand, at: int) -> _Operand:
        """``right``, when ``=`` and ``<>`` may stand between the two."""
        for operand in (left, right):
            if operand.kind == "constant" and operand.value is None:
                raise Sql92Error("NULL cannot be compared, write IS NULL or IS NOT NULL", at)
        if left.kind == right.kind == "constant" and isinstance(left.value, bool) and not isinstance(right.value, bool):
            raise Sql92Error("TRUE and FALSE cannot be compared with a number or a text", at)
        return right

    def _comparison(self) -> _Operand:
        at = self._token.at
        left = self._unary()
        while True:
            word = self._token.kind
            if word in ORDERINGS:
                self._next += 1
                left = self._ordered(word, left, self._unary(), at)
                continue
            no = word == "NOT" and self._tokens[self._next + 1].kind in ("BETWEEN", "IN", *TEXT_TESTS)
            if no:
                self._next += 1
                word = self._token.kind
            if word == "BETWEEN":
                self._next += 1
                low = self._unary()
                self._need("AND", "AND of BETWEEN")
                left = self._between(left, low, self._unary(), no, at)
            elif word == "IN":
                self._next += 1
                if left.kind != "property":
                    raise Sql92Error("only a property can stand in front of IN", at)
                left = self._made(membership(left.run, self._texts(), no), left)
            elif word in TEXT_TESTS:
                self._next += 1
                left = self._made(text_test(TEXT_TESTS[word], left.run, self._text(), no), left)
            else:
                return left

    def _ordered(self, word: str, left: _Operand, right: _Operand, at: int) -> _Operand:
        for operand in (left, right):
            number = isinstance(operand.value, (int, float)) and not isinstance(operand.value, bool)
            if operand.kind == "boolean" or (operand.kind == "constant" and not number):
                raise Sql92Error(f"only numbers and properties can be compared by {word}", at)
        return self._made(ordering(ORDERINGS[word], left.run, right.run), left, right)

    def _between(self, left: _Operand, low: _Operand, high: _Operand, no: bool, at: int) -> _Operand:
        if no:
            below, above = self._ordered("<", left, low, at), self._ordered(">", left, high, at)
            return self._made(any_of((below.run, above.run)), below, above)
        from_low, to_high = self._ordered(">=", left, low, at), self._ordered("<=", left, high, at)
        if low.kind == high.kind == "constant" and compare(low.value, high.value) > 0:
            raise Sql92Error(f"BETWEEN {low.value} AND {high.value}: the first must not be above the second", at)
        return self._made(all_of((from_low.run, to_high.run)), from_low, to_high)

    def _unary(self) -> _Operand:
        at = self._token.at
        word = self._token.kind
        if word not in ("NOT", "+", "-", "("):
            return self._primary()
        self._next += 1
        self._nested += 1
        if self._nested > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} operators inside each other")
        if word == "(":
            found = self._or()
            self._need(")", "a closing parenthesis")
        elif word == "+":
            found = self._unary()
        elif word == "-":
            inside = self._unary()
            found = _Operand(minus(inside.run), "other", depth=inside.depth + 1)
        else:
            inside = self._boolean(self._unary(), at)
            found = self._made(negation(inside.run), inside)
        self._nested -= 1
        return found

    def _primary(self) -> _Operand:
        token = self._token
        if token.kind not in ("name", "string", "int", "float", "TRUE", "FALSE", "NULL"):
            self._fail(f"a property, a number, a text or a parenthesis expected, found {token}")
        if token.kind == "string":
            return _constant(self._text())
        self._next += 1
        if token.kind == "name":
            return _property(token.text)
        if token.kind == "int":
            return _constant(_integer(token))
        if token.kind == "float":
            number = float(token.text)
            if math.isinf(number):
                raise Sql92Error(f"{token} is beyond the numbers of 64 bits", token.at)
            return _constant(number)
        return _constant({"TRUE": True, "FALSE": False, "NULL": None}[token.kind])

    def _text(self) -> str:
        return self._need("string", "a 'text'").text[1:-1].replace("''", "'")

    def _texts(self) -> frozenset[str]:
        self._need("(", "( after IN")
        texts = {self._text()}
        while self._take(","):
            texts.add(self._text())
        self._need(")", "a comma or a closing parenthesis")
        return frozenset(texts)


def _integer(token: _Token) -> int:
    digits = token.text.rstrip("lL")
    if len(digits) > 19 or int(digits) >= 1 << 63:
        raise Sql92Error(f"{token} is beyond the integers of 64 bits", token.at)
    number = int(digits)
    return number if number < 1 << 31 else Long(number)
