"""Who writes whose state: the two habits that split one class over several modules.

`python tests/state_owners.py` prints both lists. Needs nothing but the standard library.

    foreign writes   an assignment to an attribute of an object whose class another module has
    foreign first    a function whose first parameter is a mutable object of another module's class

A receiver's class is what its annotation or its construction in the same function says. Where
neither is there, an attribute counts as written by its own module if any class there has it.
A class is mutable if it assigns to its own attributes outside of its construction, or is a
dataclass or struct that is not frozen.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct, field

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script

from tests.import_graph import modules, nodes_of, parsed

MAKING = {"__init__", "__post_init__", "__new__", "__enter__", "__aenter__"}
# Made to be handed to functions, as a connection is: one transaction of a database.
SESSIONS = {"TransactionConnection", "Writes"}
# Attributes of others' objects that a class of ours has as well: trio's scopes, Quart's `g`.
NOT_OURS = {"deadline", "session", "file"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class OwnedClass(Struct, frozen=True):
    """A class of the product, as its text shows it."""

    module: str
    name: str
    attributes: frozenset[str]
    is_mutable: bool


class Text(Struct, frozen=True):
    """One module: its tree, its classes, and where its other names come from."""

    module: str
    tree: ast.Module
    classes: Mapping[str, OwnedClass] = field(default_factory=dict)
    imports: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name -> module, name


Texts = Mapping[str, Text]


@cache
def texts() -> Texts:
    return {name: read(name, parsed(path)) for name, path in modules().items()}


def read(module: str, tree: ast.Module) -> Text:
    classes = {
        node.name: _class_of(module, node)
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef)
    }
    imports = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return Text(module, tree, classes, imports)


def _class_of(module: str, node: ast.ClassDef) -> OwnedClass:
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    declared |= {
        target.id
        for each in node.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    in_making: set[str] = set()
    later: set[str] = set()
    for method in node.body:
        if isinstance(method, Function):
            own = {
                each.attr for each in _written(method) if _name_of(each.value) in ("self", "cls")
            }
            (in_making if method.name in MAKING else later).update(own)
    heads = " ".join(ast.unparse(each) for each in (*node.decorator_list, *node.bases))
    options = " ".join(ast.unparse(each) for each in node.keywords)
    is_record = "dataclass" in heads or "Struct" in heads
    is_frozen = "frozen=True" in heads or "frozen=True" in options
    return OwnedClass(
        module,
        node.name,
        frozenset(declared | in_making | later),
        "Protocol" not in heads and (bool(later) or (is_record and not is_frozen)),
    )


def _written(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that are assigned to, whole or by subscript."""
    for each in nodes_of(node):
        match each:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                found: list[ast.expr] = list(targets)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                found = [target]
            case _:
                continue
        while found:
            match found.pop():
                case ast.Tuple(elts=elements) | ast.List(elts=elements):
                    found += elements
                case ast.Starred(value=inner) | ast.Subscript(value=inner):
                    found.append(inner)
                case ast.Attribute() as attribute:
                    yield attribute


def _name_of(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _resolved(known: Texts, text: Text, annotation: ast.expr | None) -> OwnedClass | None:
    """The product's class that an annotation names; None for all others."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp):  # X | None
        return _resolved(known, text, annotation.left) or _resolved(known, text, annotation.right)
    if isinstance(annotation, ast.Subscript):  # X[T]
        annotation = annotation.value
    name = _name_of(annotation) if annotation is not None else None
    if name is None:
        return None
    if name in text.classes:
        return text.classes[name]
    module, own = text.imports.get(name, ("", ""))
    return known[module].classes.get(own) if module in known else None


def _functions(text: Text) -> Iterator[tuple[str, Function, bool]]:
    """Each function that is not nested in another, its qualified name, and whether it is a method."""
    for node in text.tree.body:
        if isinstance(node, Function):
            yield node.name, node, False
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, Function):
                    yield f"{node.name}.{method.name}", method, True


def _classes_of_names(all_texts: Texts, text: Text, function: Function) -> dict[str, OwnedClass]:
    """The classes of parameters and of variables that are constructed or annotated here."""
    found: dict[str, OwnedClass] = {}
    for node in nodes_of(function):
        match node:
            case ast.arg(arg=name, annotation=said):
                kind = _resolved(all_texts, text, said)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=said):
                kind = _resolved(all_texts, text, said)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=said)):
                kind = _resolved(all_texts, text, said)
            case _:
                continue
        if kind is not None:
            found[name] = kind
    return found


def foreign_writes(all_texts: Texts) -> set[str]:
    """`module function: receiver.attribute` of each."""
    owners: dict[str, set[str]] = {}
    for text in all_texts.values():
        for kind in text.classes.values():
            for attribute in kind.attributes:
                owners.setdefault(attribute, set()).add(text.module)
    found = set()
    for text in all_texts.values():
        for name, function, _ in _functions(text):
            known = _classes_of_names(all_texts, text, function)
            for each in _written(function):
                receiver = _name_of(each.value)
                if receiver in ("self", "cls"):
                    continue
                owner = known.get(receiver or "")
                if owner is None and each.attr in NOT_OURS:
                    continue
                of = {owner.module} if owner is not None else owners.get(each.attr, set())
                if of and text.module not in of:
                    found.add(f"{_short(text.module)} {name}: {ast.unparse(each)}")
    return found


def foreign_first(all_texts: Texts) -> set[str]:
    """`module function(Class)` of each."""
    found = set()
    for text in all_texts.values():
        for name, function, is_method in _functions(text):
            parameters = [*function.args.posonlyargs, *function.args.args]
            if is_method or not parameters:
                continue
            kind = _resolved(all_texts, text, parameters[0].annotation)
            if kind is None or kind.module == text.module or kind.name in SESSIONS:
                continue
            if kind.is_mutable:
                found.add(f"{_short(text.module)} {name}({kind.name})")
    return found


def by_folder(entries: set[str]) -> Counter[str]:
    """How many entries each folder has, or each module that stands in none."""
    return Counter(".".join(each.split(" ")[0].split(".")[:2]) for each in entries)


def _short(module: str) -> str:
    return module.removeprefix("mailprobe.")


if __name__ == "__main__":
    for title, find in (("foreign writes", foreign_writes), ("foreign first", foreign_first)):
        entries = find(texts())
        sys.stdout.write("\n".join([title, *(f"  {each}" for each in sorted(entries))]) + "\n")
