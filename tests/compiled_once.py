"""Routes and templates are compiled once in a process: each service of a test has the same.

werkzeug parses each of 93 routes and compiles two functions for it, which is three quarters of
what opening a service costs. Most of the time of a dashboard's first pages goes to their templates.
"""

from functools import cache
from types import CodeType

from jinja2 import Environment
from werkzeug.routing import Rule

_compile = Rule.compile
_compiled: dict[tuple[object, ...], Rule] = {}


def _copy_compiled(rule: Rule) -> None:
    """What `Rule.compile` does, with the parts of an equal rule if there is one."""
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
    equal = _compiled.get(key)
    if equal is None:
        _compile(rule)
        _compiled[key] = rule
        return
    rule._parts, rule._trace, rule._converters = equal._parts, equal._trace, equal._converters
    rule.arguments = set(equal.arguments)
    for name in ("_build", "_build_unknown"):
        setattr(rule, name, getattr(equal, name).__func__.__get__(rule))


_environments: dict[type[Environment], Environment] = {}  # each service has an equal one
_compile_template = cache(Environment.compile)


def _compile_once(environment: Environment, *template: str | bool | None) -> str | CodeType:
    equal = _environments.setdefault(type(environment), environment)
    return _compile_template(equal, *template)


def share_compiled() -> None:
    """Have this process compile each route and each template once."""
    for owner, compiles in ((Rule, _copy_compiled), (Environment, _compile_once)):
        setattr(owner, "compile", compiles)  # noqa: B010 - mypy forbids to assign a method
