"""Options that Megatron-LM and SGLang make of the fields of their configs, under the names that slime gives them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.tools.trainer_keys.reading import arguments, fields
from tests.tools.trainer_keys.sources import Source

Options = dict[str, dict[str, Any]]
_ARGUMENTS = "megatron/training/arguments.py"


def megatron(source: Source) -> Options:
    """Return the options of `megatron.training.arguments`: those it adds, and those it makes of configs."""
    text = source.text(_ARGUMENTS) or ""
    found: Options = {}
    for config, module, excluded in _factories(text):
        for name, entry in _inherited(source, module, config).items():
            if name not in excluded:
                found |= _of_field(name, entry)
    return found | arguments(text)


def _factories(text: str) -> Iterator[tuple[str, str, set[str]]]:
    """Configs that `ArgumentGroupFactory` is given, the module that each is imported from, and what it leaves out."""
    modules: dict[str, str] = {}
    lists: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules |= {one.name: _absolute(_ARGUMENTS[:-3].replace("/", "."), node) for one in node.names}
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List):
            lists[node.targets[0].id] = _texts(node.value)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ArgumentGroupFactory":
            given = next((word.value for word in node.keywords if word.arg == "exclude"), None)
            named = lists.get(given.id, set[str]()) if isinstance(given, ast.Name) else set[str]()
            config = ast.unparse(node.args[0])
            yield config, modules[config], named or (_texts(given) if isinstance(given, ast.List) else set())


def _texts(node: ast.List) -> set[str]:
    return {str(one.value) for one in node.elts if isinstance(one, ast.Constant)}


def _inherited(source: Source, module: str, name: str) -> Options:
    """Fields of the dataclass NAME and of the classes that it extends, its own last."""
    path = module.replace(".", "/")
    text = source.text(f"{path}.py")
    if text is None:
        text, module = source.text(f"{path}/__init__.py") or "", f"{module}.__init__"
    tree = ast.parse(text)
    imports = {
        one.name: _absolute(module, node) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        for one in node.names
    }  # fmt: skip
    own = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if own is None:
        return _inherited(source, imports[name], name) if name in imports else {}
    found: Options = {}
    for base in own.bases:
        found |= _inherited(source, imports.get(ast.unparse(base), module), ast.unparse(base))
    said = fields(text, name)
    for key, meta in _metadata(own).items():
        said[key] = {**said[key], **meta}
    return found | said


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that NODE, in MODULE, imports from."""
    above = module.split(".")[: -node.level] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def _metadata(owner: ast.ClassDef) -> Options:
    """What `argparse_meta` of a field says: its options, and its default."""
    found: Options = {}
    for node in owner.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Dict):
                for key, value in zip(inner.keys, inner.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "argparse_meta" and isinstance(value, ast.Dict):
                        found[node.target.id] = _meta(value)
    return found


def _meta(node: ast.Dict) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant):
            continue
        if key.value == "arg_names" and isinstance(value, ast.List):
            meta["named"] = [str(one.value) for one in value.elts if isinstance(one, ast.Constant)]
        elif key.value == "default" and isinstance(value, ast.Constant):
            meta |= {"default": value.value} | ({"nullable": True} if value.value is None else {})
        elif key.value == "nargs" and isinstance(value, ast.Constant):
            meta["many"] = str(value.value)
        elif key.value in ("type", "choices", "action", "const"):
            meta |= {"types": [], "choices": []}
    return meta


def _of_field(name: str, entry: Mapping[str, Any]) -> Options:
    """The options of one field: a flag of a truth, `--no-` and `--disable-` of one that is true unless it is told."""
    entry = dict(entry)
    named: Sequence[str] = entry.pop("named", [])
    option = name.replace("_", "-")
    if entry["types"] == ["bool"]:
        negates = entry.get("default") is True
        flag: dict[str, Any] = {"types": ["bool"], "default": negates, "flag": True}
        options = named or ([f"--no-{option}", f"--disable-{option}"] if negates else [f"--{option}"])
        if negates:
            flag |= {"negates": True}
        return _aliased([one.removeprefix("--") for one in options], flag)
    entry.pop("required", None)
    if not entry["types"]:
        entry["choices"] = []
    elif entry["types"] == ["list"]:
        entry["types"] = []
    entry = {key: value for key, value in entry.items() if value != []} | {"types": entry["types"]}
    return _aliased([one.removeprefix("--") for one in named or [f"--{option}"]], entry)


def _aliased(options: Sequence[str], entry: dict[str, Any]) -> Options:
    first, *others = options
    return {first: entry} | {other: {**entry, "sets": first} for other in others}


_SERVER = "sglang/srt/server_args.py"


def sglang(source: Source, skipped: Sequence[str]) -> Options:
    """Return the options of SGLang's server as slime names them, `--sglang-…`, without those that it SKIPPED."""
    text = source.text(_SERVER) or ""
    tree = ast.parse(text)
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ServerArgs")
    plain = fields(text, "ServerArgs")
    found: Options = {}
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            argument = _argument_of(node.annotation)
            if argument is not None and name not in skipped:
                found |= _served(name, plain[name], argument)
    for option, entry in arguments(text).items():
        if option.replace("-", "_") not in skipped:
            found[option] = entry
    return {
        f"sglang-{option}": {**entry, "sets": f"sglang-{str(entry['sets']).replace('_', '-')}"}
        if "sets" in entry else entry for option, entry in found.items()
    }  # fmt: skip


def _argument_of(annotation: ast.expr) -> Mapping[str, ast.expr] | None:
    """Words of `Arg(…)` in `A[type, Arg(…)]`; none for a plain help text; None where the field is no option."""
    if not isinstance(annotation, ast.Subscript) or ast.unparse(annotation.value) not in ("A", "Annotated"):
        return None
    assert isinstance(annotation.slice, ast.Tuple)
    arg = annotation.slice.elts[1]
    words = {word.arg: word.value for word in arg.keywords if word.arg} if isinstance(arg, ast.Call) else {}
    return None if ast.unparse(words.get("no_cli", ast.Constant(False))) == "True" else words


def _served(name: str, entry: dict[str, Any], words: Mapping[str, ast.expr]) -> Options:
    own = [str(ast.literal_eval(words["cli_name"])).removeprefix("--")] if "cli_name" in words else []
    aliases = re.findall(r"'--([\w-]+)'", ast.unparse(words["aliases"])) if "aliases" in words else []
    options = [*(own or [name.replace("_", "-")]), *aliases]
    entry = {key: value for key, value in entry.items() if key != "required"}
    if "action" in words or "type_parser" in words or not entry["types"]:
        entry = {"types": [], "nullable": True, "default": entry.get("default")}
    elif entry["types"] == ["bool"]:
        return _aliased(options, {"types": ["bool"], "default": entry.get("default"), "flag": True})
    elif entry["types"] == ["list"]:
        entry |= {"types": [], "many": "+"}
    if "nargs" in words:
        entry["many"] = str(ast.literal_eval(words["nargs"]))
    if isinstance(words.get("choices"), ast.List):
        entry["choices"] = [str(one) for one in ast.literal_eval(words["choices"])]
    if "action" in words:
        entry["many"] = "?"
    return _aliased(options, entry)


def router(source: Source) -> Options:
    """Return the options of SGLang's router under the prefix that slime has it take."""
    text = source.text("sglang_router/router_args.py") or source.text(
        "bindings/python/src/sglang_router/router_args.py") or ""  # fmt: skip
    found = arguments(text, {"prefix": "router-"})
    return {option: entry for option, entry in found.items() if option not in ("host", "port")}


def patched(text: str) -> tuple[Options, Options]:
    """Return the options that a patch adds: those of a parser, and those of SGLang's server with its prefix."""
    parser: Options = {}
    server: Options = {}
    for part in re.split(r"^diff --git ", text, flags=re.MULTILINE):
        lines = [line[1:] for line in part.splitlines() if line.startswith("+") and not line.startswith("+++")]
        name = part.partition("\n")[0]
        if name.endswith(("transformer_config.py", "model_parallel_config.py")):
            added = [line for line in lines if re.match(r"    \w+: [\w.\[\], |]+ = [^(\[{]+$", line)]
            for field, entry in fields("\n".join(["class Added:", "    pass", *added]), "Added").items():
                parser |= _of_field(field, entry)
        else:
            _added(lines, parser, server)
    return parser, server


def _added(lines: Sequence[str], parser: Options, server: Options) -> None:
    """Put the options that LINES add to a parser or to SGLang's server there."""
    for at, line in enumerate(lines):
        if re.match(r"    \w+: A\[", line) is None and "add_argument(" not in line:
            continue
        found = _statement(lines[at : at + _LONGEST])
        if isinstance(found, ast.AnnAssign):
            argument = _argument_of(found.annotation)
            entry = fields(f"class Added:\n    {ast.unparse(found)}", "Added")[ast.unparse(found.target)]
            served = _served(ast.unparse(found.target), entry, argument or {})
            server |= {f"sglang-{option}": key for option, key in served.items()}
        elif found is not None:
            parser |= arguments(ast.unparse(found))


_LONGEST = 30


def _statement(lines: Sequence[str]) -> ast.stmt | None:
    """The statement that LINES begin with."""
    for length in range(1, len(lines) + 1):
        try:
            return ast.parse(textwrap.dedent("\n".join(lines[:length]))).body[0]
        except SyntaxError:
            continue
    return None
