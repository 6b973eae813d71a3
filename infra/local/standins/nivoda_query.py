"""As much GraphQL as the stand-in understands: one query, variables for every argument, no fragments or literals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TOKENS = re.compile(r"[\s,]+|(?P<token>[A-Za-z_]\w*|[{}():!$\[\]])")


class QueryError(Exception):
    """What the answer's `errors` will say."""

    def __init__(self, message: str, code: str = "GRAPHQL_VALIDATION_FAILED") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    arguments: Mapping[str, str]  # each the name of a variable
    fields: tuple[Field, ...]


def parse(text: str, variables: Mapping[str, Any]) -> Field:
    """The one field at the root of the query."""
    reader = _Reader(text)
    declared = reader.head()
    fields = reader.selection()
    reader.end()
    needed = {name for name, required in declared.items() if required}
    if missing := needed - {name for name, value in variables.items() if value is not None}:
        raise QueryError(f"Variables without a value: {sorted(missing)}", "BAD_USER_INPUT")
    if reader.used != set(declared):
        raise QueryError(f"Variables declared and used differ: {sorted(reader.used ^ set(declared))}")
    if len(fields) != 1:
        raise QueryError("The stand-in answers one root field at a time")
    return fields[0]


def pick(value: Any, fields: Sequence[Field], where: str) -> Any:
    """The asked-for part of a value; a field that is not there is refused, as the schema would."""
    if isinstance(value, list):
        return [pick(each, fields, where) for each in value]
    if not isinstance(value, dict):
        if fields:
            raise QueryError(f'Field "{where}" has no subfields')
        return value
    if not fields:
        raise QueryError(f'Field "{where}" must have a selection of subfields')
    for field in fields:
        if field.name not in value:
            raise QueryError(f'Cannot query field "{field.name}" on "{where}"')
    return {field.name: pick(value[field.name], field.fields, field.name) for field in fields}


class _Reader:
    def __init__(self, text: str) -> None:
        self.used: set[str] = set()
        self._tokens: list[str] = []
        at = 0
        while at < len(text):
            match = _TOKENS.match(text, at)
            if match is None:
                raise QueryError(f"Syntax Error: unexpected character at {at}", "GRAPHQL_PARSE_FAILED")
            if match["token"]:
                self._tokens.append(match["token"])
            at = match.end()
        self._tokens.reverse()

    def head(self) -> dict[str, bool]:
        """The declared variables, and whether each must have a value."""
        declared: dict[str, bool] = {}
        if self._peek() == "{":
            return declared
        self._expect("query")
        if self._peek() not in "({":
            self._name()
        if self._peek() == "(":
            self._next()
            while self._peek() != ")":
                name = self._variable()
                self._expect(":")
                declared[name] = self._type()
            self._next()
        return declared

    def selection(self) -> tuple[Field, ...]:
        self._expect("{")
        fields = []
        while self._peek() != "}":
            name = self._name()
            arguments = self._arguments() if self._peek() == "(" else {}
            fields.append(Field(name, arguments, self.selection() if self._peek() == "{" else ()))
        self._next()
        return tuple(fields)

    def end(self) -> None:
        if self._tokens:
            raise QueryError(f"Syntax Error: unexpected {self._peek()}", "GRAPHQL_PARSE_FAILED")

    def _arguments(self) -> dict[str, str]:
        arguments = {}
        self._expect("(")
        while self._peek() != ")":
            name = self._name()
            self._expect(":")
            arguments[name] = self._variable()
            self.used.add(arguments[name])
        self._next()
        return arguments

    def _type(self) -> bool:
        if self._peek() == "[":
            self._next()
            self._type()
            self._expect("]")
        else:
            self._name()
        if self._peek() == "!":
            self._next()
            return True
        return False

    def _variable(self) -> str:
        self._expect("$")
        return self._name()

    def _name(self) -> str:
        token = self._next()
        if not token.isidentifier():
            raise QueryError(f"Syntax Error: expected a name, found {token}", "GRAPHQL_PARSE_FAILED")
        return token

    def _expect(self, token: str) -> None:
        if (found := self._next()) != token:
            raise QueryError(f"Syntax Error: expected {token}, found {found}", "GRAPHQL_PARSE_FAILED")

    def _peek(self) -> str:
        if not self._tokens:
            raise QueryError("Syntax Error: unexpected end", "GRAPHQL_PARSE_FAILED")
        return self._tokens[-1]

    def _next(self) -> str:
        token = self._peek()
        self._tokens.pop()
        return token
