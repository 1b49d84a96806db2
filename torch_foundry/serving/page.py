"""The page at /docs: what `/openapi.json` says, as HTML that needs nothing else, neither scripts nor other hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

STYLE = """body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-top: 1px solid #8886; padding-top: 1rem } code { font-size: 14px }
h2 b { background: #0a5; color: #fff; border-radius: 4px; padding: 2px 8px; font-size: 13px; margin-right: .6rem }
table { border-collapse: collapse } td, th { text-align: left; vertical-align: top; padding: 2px 1.2rem 2px 0 }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } a { color: #8bf } }"""
HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


def page(schema: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI description."""
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    parts = [*_paths(schema["paths"]), *_objects(schema.get("components", {}).get("schemas", {}))]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    told = '<p>The same for programs: <a href="openapi.json">openapi.json</a></p>'
    body = f"<h1>{title}</h1>{told}{''.join(parts)}"
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>'


def _paths(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in paths.items():
        for method, what in methods.items():
            yield f"<h2><b>{escape(method.upper())}</b><code>{escape(path)}</code></h2>"
            yield f"<p>{escape(what.get('description') or what.get('summary', ''))}</p>"
            for media in what.get("requestBody", {}).get("content", {}).values():
                yield f"<p>Body: {_type(media['schema'])}</p>"


def _objects(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        if "properties" not in schema:
            continue
        yield f'<h2 id="{escape(name)}"><code>{escape(name)}</code></h2><p>{escape(schema.get("description", ""))}</p>'
        yield "<table><tr><th>field</th><th>type</th><th></th></tr>"
        for field, own in schema["properties"].items():
            need = "required" if field in schema.get("required", ()) else ""
            yield f"<tr><td><code>{escape(field)}</code></td><td>{_type(own)}</td><td>{need}</td></tr>"
        yield "</table>"


def _type(schema: Mapping[str, Any]) -> str:
    """HTML of a JSON schema's type."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if some := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(each) for each in some)
    if "const" in schema or "enum" in schema:
        return " or ".join(f"<code>{escape(repr(each))}</code>" for each in schema.get("enum", [schema.get("const")]))
    kind = escape(str(schema.get("type", "any")))
    return f"{kind} of {_type(schema['items'])}" if kind == "array" and schema.get("items") else kind
