# SPDX-License-Identifier: Apache-2.0
"""State lives in the module that changes it: records of the scheduler and of sharing.

A record is a class with fields that change. No other module writes a field of a record, and few
records have a field that their own module does not use: facts that are set when they are made.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nvshared"
# Methods of lists, sets and mappings that change them.
CHANGING = {"add", "append", "appendleft", "clear", "difference_update", "discard", "extend",
            "insert", "pop", "popitem", "popleft", "remove", "setdefault", "sort", "update"}


def frozen(record: ast.ClassDef) -> bool:
    """Whether objects of the class do not change."""
    return any("NamedTuple" in ast.unparse(base) or "Enum" in ast.unparse(base)
               or "Protocol" in ast.unparse(base) for base in record.bases) or any(
        "frozen=True" in ast.unparse(one) for one in record.decorator_list)


def fields_of(record: ast.ClassDef) -> Iterator[str]:
    """The fields of a record: those of a dataclass, and those that its methods set."""
    yield from (one.target.id for one in record.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name))
    for node in ast.walk(record):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and (
                ast.unparse(node.value) == "self"):
            yield node.attr


def changed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Attributes of other objects than `self` that a module writes, with their lines."""
    for node in ast.walk(tree):
        target: ast.AST | None = None
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            target = node
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (
                node.func.attr in CHANGING):
            target = node.func.value
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) not in ("self", "cls"):
            yield target.lineno, target.attr


def records(package: str) -> tuple[dict[str, ast.AST], dict[str, set[str]]]:
    """The modules of a package by name, and the modules that declare records with a field."""
    trees: dict[str, ast.AST] = {
        path.stem: ast.parse(path.read_text()) for path in (PACKAGE / package).glob("*.py")}
    declared: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for record in ast.walk(tree):
            if isinstance(record, ast.ClassDef) and not frozen(record):
                for field in fields_of(record):
                    declared[field].add(module)
    return trees, declared


# By package: fields that no operation changes, and that only other modules read.
FACTS = {"scheduler": 24, "sharing": 0}


@pytest.mark.parametrize("package", FACTS)
def test_module_writes_no_field_of_another_modules_record(package: str) -> None:
    trees, declared = records(package)
    assert [
        f"{module}.py:{line} writes {field} of {', '.join(declared[field])}.py"
        for module, tree in trees.items() for line, field in changed(tree)
        if field in declared and module not in declared[field]] == []


@pytest.mark.parametrize("package", FACTS)
def test_record_has_few_fields_that_its_own_module_does_not_use(package: str) -> None:
    trees, declared = records(package)
    used = {module: {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            for module, tree in trees.items()}
    found = sorted(f"{module}.py: {field}" for field, modules in declared.items()
                   for module in modules if field not in used[module])
    assert len(found) <= FACTS[package], "\n".join(found)
