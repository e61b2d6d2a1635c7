"""A module that is read and not imported: what a hook relies on is there, in the order it relies on."""

from __future__ import annotations

import ast
import re


class Source:
    """A module as text."""

    def __init__(self, path):
        text = path.read_text()
        self.lines = text.splitlines()
        self.tree = ast.parse(text)

    def functions(self, owner=None):
        """Name -> definition, of the module or of one of its classes."""
        body = self.tree.body
        if owner is not None:
            (found,) = (n for n in body if isinstance(n, ast.ClassDef) and n.name == owner)
            body = found.body
        return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}

    def of(self, name, owner=None):
        node = self.functions(owner)[name]
        return "\n".join(self.lines[node.lineno - 1 : node.end_lineno])

    def imports(self, name):
        """Whether the module has a function of this name from elsewhere."""
        return any(
            alias.name == name
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        )


def parameters(node):
    return tuple(each.arg for each in node.args.args)


def order(source, *patterns):
    """Whether the patterns occur in the source in this order."""
    return re.search(".*".join(map(re.escape, patterns)), source, re.DOTALL) is not None
