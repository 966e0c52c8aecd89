"""The map of all modules in docs/architecture.md: `make map` writes it, a test compares it.

Needs nothing but the standard library, so that it runs before anything is installed.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/architecture.md"
PACKAGES = ("engine", "api", "storage", "bench")
BEGIN, END = "<!-- map: written by `make map` -->\n", "<!-- end of the map -->\n"
COLUMN = 30  # where the descriptions begin


def product_modules() -> list[Path]:
    """Every Python file of the product, relative to the checkout."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    own = sorted((ROOT / "mailprobe").glob("*.py"))
    return [path.relative_to(ROOT) for path in (*own, *sorted(found))]


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring; empty where there is none."""
    text = ast.get_docstring(ast.parse((ROOT / path).read_text("utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`\"])", paragraph, maxsplit=1)[0]


def lines() -> Iterator[str]:
    """A line for each folder, and below it a line for each module."""
    modules = product_modules()
    folders = {folder for path in modules for folder in path.parents} - {Path()}
    for path in sorted(folders | set(modules), key=_sort_key):
        if path.name == "__init__.py":
            continue
        is_folder = path in folders
        indent = "  " * (len(path.parts) - 1)
        said = first_sentence(path / "__init__.py" if is_folder else path)
        yield f"{indent}{path.name}{'/' * is_folder}".ljust(COLUMN - 1) + f" {said}"


def _sort_key(path: Path) -> tuple[int, tuple[tuple[bool, str], ...]]:
    """Packages in the order above; in a folder its modules first, then its folders."""
    order = ("mailprobe", *PACKAGES).index(path.parts[0])
    is_module = path.suffix == ".py"
    last = len(path.parts) - 1
    parts = tuple((not (is_module and at == last), name) for at, name in enumerate(path.parts))
    return order, parts


def written() -> str:
    """The block as it should stand in the page, between its two marks."""
    text = "\n".join(line.rstrip() for line in lines())
    return f"```\n{text}\n```\n"


def found() -> str:
    """The block as it stands in the page."""
    return PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


def write() -> None:
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}{written()}{END}{tail}", "utf-8")


if __name__ == "__main__":
    write()
