"""Routes and templates are compiled once in a process: each service of a test has the same.

werkzeug parses each of 93 routes and compiles two functions for it, which is three quarters of
what opening a service costs. Most of the time of a dashboard's first pages goes to their templates.
"""

from copy import copy
from functools import cache
from types import CodeType, MethodType
from typing import Any

from jinja2 import Environment
from werkzeug.routing import Rule

_compile = Rule.compile
_compiled: dict[tuple[object, ...], tuple[dict[str, Any], dict[str, Any]]] = {}


def _copied(value: Any) -> Any:
    return copy(value) if isinstance(value, set | list | dict) else value


def _copy_compiled(rule: Rule) -> None:
    """What `Rule.compile` does, with the parts of an equal rule if there is one.

    It sets attributes that nothing changes afterwards, and two methods.
    """
    assert rule.map is not None
    defaults = tuple(sorted((rule.defaults or {}).items()))
    key = (
        rule.rule,
        rule.host,
        rule.subdomain,
        defaults,
        rule.merge_slashes,
        rule.map.host_matching,
    )
    made = _compiled.get(key)
    if made is None:
        before = {name: _copied(value) for name, value in vars(rule).items()}
        _compile(rule)
        made = {}, {}
        for name, value in vars(rule).items():
            if isinstance(value, MethodType):
                made[1][name] = value.__func__
            elif before.get(name) != value:
                made[0][name] = value
        _compiled[key] = made
        return
    vars(rule).update(made[0])
    for name, function in made[1].items():
        setattr(rule, name, function.__get__(rule))


_environments: dict[type[Environment], Environment] = {}  # each service has an equal one
_compile_template = cache(Environment.compile)


def _compile_once(environment: Environment, *template: str | bool | None) -> str | CodeType:
    equal = _environments.setdefault(type(environment), environment)
    return _compile_template(equal, *template)


def share_compiled() -> None:
    """Have this process compile each route and each template once."""
    for owner, compiles in ((Rule, _copy_compiled), (Environment, _compile_once)):
        setattr(owner, "compile", compiles)  # noqa: B010 - mypy forbids to assign a method
