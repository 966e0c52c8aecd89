"""Routes are compiled once in a process: each service of a test makes the same 93 of them.

werkzeug parses each route and compiles two functions for it, which is three quarters of what
opening a service costs.
"""

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


def share_compiled_routes() -> None:
    """Have this process compile each route once."""
    setattr(Rule, "compile", _copy_compiled)  # noqa: B010 - mypy forbids to assign a method
