"""Which environment variables the shipped code reads: found where they are read, so nobody keeps a list of them."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

from infra.sam.artifact import ROOT, shipped
from shared.kernel.settings import Settings

VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")


@cache
def read_variables() -> frozenset[str]:
    """The names that stand in the code, and the fields of every group of settings with the prefix that it is read by."""
    return frozenset(name for path in shipped() if path.suffix == ".py" for name in _of(path))


def _of(path: Path) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        and VARIABLE.fullmatch(node.value)
    }  # fmt: skip
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=group), attr="from_env"), args=[_, *prefix]):
                module = importlib.import_module(".".join(path.with_suffix("").parts))
                if hasattr(module, group):  # else it goes through all groups, of which none is read here alone
                    found |= _fields(module, group, prefix)
    return found


def _fields(module: object, group: str, prefix: list[ast.expr]) -> set[str]:
    settings = getattr(module, group)
    assert issubclass(settings, Settings)
    match prefix:
        case []:
            begins = "BATON_"
        case [ast.Constant(value=str(begins))]:
            pass
        case [ast.Name(id=name)]:
            begins = getattr(module, name)
        case _:
            raise NotImplementedError(ast.dump(prefix[0]))
    return {begins + field.upper() for field in settings.model_fields}
