"""Lines of source: where an operation was called, how its operands are written there, and the line with a cast in it.

Conventions: a line is named by a code object and an instruction in it, which is all that is kept while a model runs;
files are read when something is reported. Python 3.11 and later record the columns of each instruction, so that the
very call is known where a line has several. Source that cannot be read (a notebook's, generated code) gives no text.
"""

from __future__ import annotations

import ast
import linecache
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any

from precision_eval.doctor.diagnosis import SourceLine
from precision_eval.trace.dtype_flow import is_internal
from precision_eval.trace.operations import CASTS
from precision_eval.trace.replay import line_of


def short_path(file: str) -> str:
    """Shorten a path: below site-packages, or below the working directory, else its last two parts."""
    path = Path(file)
    for marker in ("site-packages", "dist-packages"):
        if marker in path.parts:
            return Path(*path.parts[path.parts.index(marker) + 1 :]).as_posix()
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return "/".join(path.parts[-2:])


def _span(code: CodeType, instruction: int) -> tuple[int, int, int, int] | None:
    """First and last line, first and last column (in bytes) of an instruction."""
    span = next(islice(code.co_positions(), instruction // 2, None), None)
    if span is None or None in span:
        return None
    return span  # type: ignore[return-value]


def source_line(code: CodeType, instruction: int) -> SourceLine:
    line = line_of(code, instruction)
    text = linecache.getline(code.co_filename, line).strip()
    return SourceLine(file=short_path(code.co_filename), line=line, function=code.co_qualname, text=text)


@lru_cache(maxsize=64)
def _parsed(file: str) -> tuple[list[str], tuple[ast.AST, ...]]:
    """Return a file's lines and all its nodes; nothing where it is no Python."""
    lines = linecache.getlines(file)
    nodes = _nodes_of("".join(lines))[0]
    return (lines, nodes) if nodes else ([], ())


@lru_cache(maxsize=16)
def _nodes_of(text: str) -> tuple[tuple[ast.AST, ...], dict[tuple[int, int, int, int], ast.AST]]:
    """Return all nodes of a text, and by its place each that an instruction may span."""
    nodes: list[ast.AST] = []
    with suppress(SyntaxError):
        nodes.append(ast.parse(text))
    for node in nodes:  # ast.walk takes twice as long
        for value in [getattr(node, name, None) for name in node._fields]:
            nodes += [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST)]
    kinds = ast.Call | ast.BinOp | ast.AugAssign | ast.Subscript | ast.Assign | ast.Attribute
    spanned = [node for node in nodes if isinstance(node, kinds)]
    return tuple(nodes), {(n.lineno, n.end_lineno or 0, n.col_offset, n.end_col_offset or 0): n for n in spanned}


@lru_cache(maxsize=4096)
def node_at(code: CodeType, instruction: int) -> ast.AST | None:
    span = _span(code, instruction)
    if span is None:
        return None
    best = _nodes_of("".join(_parsed(code.co_filename)[0]))[1].get(span)
    if isinstance(best, ast.Subscript):  # an assignment's instruction spans its target
        for node in [node for node in nodes_in(code.co_filename) if isinstance(node, ast.Assign)]:
            if best in node.targets:
                return node
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and best in target.elts:
                return ast.Assign([best], dict(zip(target.elts, node.value.elts, strict=False))[best])
    return best


def nodes_in(file: str) -> tuple[ast.AST, ...]:
    return _parsed(file)[1]


def function_of(code: CodeType) -> ast.FunctionDef | None:
    """Find the definition of a function, whose first line is that of its first decorator."""
    for node in nodes_in(code.co_filename):
        if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
            continue
        if code.co_firstlineno in (node.lineno, *(part.lineno for part in node.decorator_list)):
            return node
    return None


def class_around(file: str, function: ast.FunctionDef) -> str:
    classes = [node for node in nodes_in(file) if isinstance(node, ast.ClassDef) and function in node.body]
    return classes[0].name if classes else ""


def calls_of(file: str, name: str) -> list[ast.Call]:
    calls = [node for node in nodes_in(file) if isinstance(node, ast.Call)]
    return [call for call in calls if name in (getattr(call.func, "id", ""), getattr(call.func, "attr", ""))]


def is_returned(code: CodeType, instruction: int) -> bool:
    """Whether what an instruction makes is what its function returns, by itself or as a part."""
    node = node_at(code, instruction)
    returns = [n for n in _parsed(code.co_filename)[1] if isinstance(n, ast.Return | ast.Lambda)]
    return any(node is part for n in returns for part in _parts_of(n.body if isinstance(n, ast.Lambda) else n.value))


# Where an expression holds what it is as a whole, or has as its parts.
_HOLDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.IfExp: ("body", "orelse"), ast.Tuple: ("elts",), ast.List: ("elts",), ast.Dict: ("values",),
    ast.DictComp: ("value",), ast.ListComp: ("elt",), ast.GeneratorExp: ("elt",),
}  # fmt: skip


def _parts_of(value: ast.AST | None) -> Iterator[ast.AST]:
    if value is None:
        return
    yield value
    makes = isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("tuple", "list", "dict")
    for name in ("args",) if makes else _HOLDS.get(type(value), ()):
        inner = getattr(value, name)
        for part in inner if isinstance(inner, list) else [inner]:
            yield from _parts_of(part)


def names_at(code: CodeType, instruction: int) -> frozenset[str]:
    """Return the names that stand in the expression of an instruction."""
    node = node_at(code, instruction)
    return frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name)) if node else frozenset()


def text_of(file: str, node: ast.AST) -> str:
    last = getattr(node, "end_lineno", None)  # a part of an assignment of several has none
    if last is None or not isinstance(node, ast.expr | ast.stmt | ast.keyword):
        return ""
    lines = [line.encode() for line in _parsed(file)[0][node.lineno - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    return b"".join(lines).decode()


def _operands_of(node: ast.AST | None) -> dict[tuple[int | str, ...], ast.expr]:
    """Operands of a call as written, by position (a method's object is the first) or by keyword."""
    if isinstance(node, ast.BinOp):
        return {(0,): node.left, (1,): node.right}
    if isinstance(node, ast.AugAssign):
        return {(0,): node.target, (1,): node.value}
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return {(0,): node.targets[0].value, (2,): node.value}
    if isinstance(node, ast.Subscript):
        return {(0,): node.value, (1,): node.slice}
    if not isinstance(node, ast.Call):
        return {}
    operands: dict[tuple[int | str, ...], ast.expr] = {}
    for index, part in enumerate(node.args):
        if isinstance(part, ast.Starred):
            break
        operands[(index,)] = part
        if isinstance(part, ast.Tuple | ast.List):
            operands |= {(index, at): inner for at, inner in enumerate(part.elts)}
    return operands | {(word.arg,): word.value for word in node.keywords if word.arg}


@lru_cache(maxsize=64)
def _names_of_torch(file: str) -> frozenset[str]:
    names = {"torch", "F", "functional"}
    for node in _parsed(file)[1]:
        if isinstance(node, ast.Import):
            imported = [alias for alias in node.names if alias.name.partition(".")[0] == "torch"]
            names.update(alias.asname or "torch" for alias in imported)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names.update(alias.asname or alias.name for alias in node.names)
    return frozenset(names)


def _owner_of_method(node: ast.AST | None, op: str, file: str) -> ast.expr | None:
    """The tensor whose method is called, which is the first operand; None where no tensor's is."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != op:
        return None
    owner = root = node.func.value
    while isinstance(root, ast.Attribute):
        root = root.value
    return None if isinstance(root, ast.Name) and root.id in _names_of_torch(file) else owner


def expressions(
    code: CodeType, instruction: int, op: str, keys: list[tuple[int | str, ...]], *, of_module: bool
) -> list[str]:
    """Tell how operands are written at a line."""
    node = node_at(code, instruction)
    written = _operands_of(node)
    if of_module:  # what it is given first; a function behind it is given the layer's weights by position
        places = [(0,) if i == 0 and not op.startswith("embedding") else key for i, key in enumerate(keys)]
        return [text_of(code.co_filename, written[key]) if key in written else "" for key in places]
    if owner := _owner_of_method(node, op, code.co_filename):
        shifted = {((k[0] + 1, *k[1:]) if isinstance(k[0], int) else k): part for k, part in written.items()}
        written = {(0,): owner, **shifted}
    return [text_of(code.co_filename, written[key]) if key in written else "" for key in keys]


def variables(code: CodeType, instruction: int, op: str, keys: list[tuple[int | str, ...]]) -> list[str]:
    """Tell how operands are written at a line, literals left out: ``1 - x`` is ``x.__rsub__(1)`` to torch."""
    node = node_at(code, instruction)
    if keys == [(0,)] and isinstance(node, ast.BinOp) and (op.startswith("__r") or isinstance(node.left, ast.Constant)):
        keys = [(1,)]
    first = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if (0,) in keys and isinstance(first, ast.Constant) and isinstance(first.value, str):  # an equation of einsum
        keys = [(key[0] + 1, *key[1:]) if isinstance(key[0], int) else key for key in keys]
    return [text for text in expressions(code, instruction, op, keys, of_module=False) if text]


def callee(code: CodeType, instruction: int) -> str:
    node = node_at(code, instruction)
    return text_of(code.co_filename, node.func) if isinstance(node, ast.Call) else ""


def _parenthesize(expression: str) -> str:
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return f"({expression})"
    simple = isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    return expression if simple else f"({expression})"


def dtype_of(expression: str) -> str:
    """Write the dtype of an operand: ``x.dtype``, ``(x * 2).dtype``."""
    return f"{_parenthesize(expression)}.dtype"


_LARGEST_HALF = 65504.0
_FILLS = ("masked_fill", "masked_fill_", "fill_")


@dataclass(frozen=True)
class Insertion:
    """Text put into a line of a file, at a column counted in bytes, in the place of so many bytes."""

    file: str
    line: int
    column: int
    text: str
    removed: int = 0


def _parts_to_cast(node: ast.AST, file: str, casts: dict[str, str]) -> list[tuple[str, ast.expr]]:
    """Find the operands to cast, all of them; what is no operand of its own is cast where it first occurs."""
    written = [part for part in _operands_of(node).values() if not isinstance(part, ast.Starred)]
    operands = [(text_of(file, part), part) for part in written]
    parts = [(text, part) for text, part in operands if text in casts]
    rest = set(casts) - {text for text, _ in parts}
    for part in ast.walk(node):
        text = text_of(file, part) if rest and isinstance(part, ast.expr) else ""
        if text in rest:
            parts.append((text, part))  # type: ignore[arg-type]
            rest.discard(text)
    return parts


def with_casts(code: CodeType, instruction: int, casts: dict[str, str]) -> tuple[Insertion, ...]:
    """Write casts around some of a line's operands; nothing where one of them does not stand there.

    `casts` holds the text of each operand and that of the dtype it is cast to.
    """
    return with_calls(code, instruction, {text: f".to({dtype})" for text, dtype in casts.items()})


def with_calls(code: CodeType, instruction: int, calls: dict[str, str], *, result: str = "") -> tuple[Insertion, ...]:
    node, file = node_at(code, instruction), code.co_filename
    parts = _parts_to_cast(node, file, calls) if node is not None else []
    if {text for text, _ in parts} != set(calls):
        return ()
    ends = tuple(inserted for text, part in parts for inserted in append_call(file, part, calls[text]))
    if not result:
        return ends
    if not isinstance(node, ast.expr):
        return ()
    taken = next(
        (n for n in _parsed(file)[1] if isinstance(n, ast.Subscript | ast.Attribute) and n.value is node), None
    )
    if isinstance(taken, ast.Subscript) or (isinstance(taken, ast.Attribute) and taken.attr in _RESULTS):
        node = taken  # one of several results
    return (*ends, *append_call(file, node, result, each=_is_unpacked(file, node)))


# Names of single results of decompositions.
_RESULTS = (
    "Q", "R", "U", "S", "V", "Vh", "L", "P", "LU", "values", "eigenvalues", "eigenvectors", "logabsdet", "solution",
)  # fmt: skip


def _is_unpacked(file: str, node: ast.expr) -> bool:
    given = [n for n in _parsed(file)[1] if isinstance(n, ast.Assign) and n.value is node]
    return any(isinstance(n.targets[0], ast.Tuple) for n in given)


def with_backend(code: CodeType, instruction: int, backend: str) -> tuple[Insertion, ...]:
    """Name another backend where a ``with sdpa_kernel(SDPBackend.MATH)`` of the same file holds a line."""
    span = _span(code, instruction)
    for node in _parsed(code.co_filename)[1] if span else ():
        if not (isinstance(node, ast.With) and span and node.lineno <= span[0] <= (node.end_lineno or 0)):
            continue
        for part in [part for item in node.items for part in ast.walk(item.context_expr)]:
            if isinstance(part, ast.Attribute) and part.attr == "MATH" and part.end_lineno and part.end_col_offset:
                return (Insertion(code.co_filename, part.end_lineno, part.end_col_offset - 4, backend, removed=4),)
    return ()


def with_result_cast(code: CodeType, instruction: int, dtype: str) -> tuple[Insertion, ...]:
    return with_calls(code, instruction, {}, result=f".to({dtype})")


def with_cast_for_numpy(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Cast to float32 what is handed to numpy, and on to a consumer that takes no half: ``x.float().numpy()``."""
    node = node_at(code, instruction)
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)] if isinstance(node, ast.Call) else []
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "numpy" and not call.args:
            return append_call(code.co_filename, call.func.value, ".float()")
    return ()


def with_number_that_fits(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Write the end of a tensor's format in place of a number beyond it: ``x.masked_fill(mask, -1e9)``."""
    node, file = node_at(code, instruction), code.co_filename
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _FILLS:
        return ()
    number = node.args[-1] if node.args else None
    negative = isinstance(number, ast.UnaryOp) and isinstance(number.op, ast.USub)
    literal = number.operand if isinstance(number, ast.UnaryOp) else number
    if number is None or not imports_torch(file):
        return ()
    text = f"torch.finfo({_parenthesize(text_of(file, node.func.value))}.dtype).{'min' if negative else 'max'}"
    if isinstance(literal, ast.Name | ast.Attribute):
        text = f"max({text_of(file, number)}, {text.removesuffix('max').removesuffix('min')}min)"
    else:
        value = literal.value if isinstance(literal, ast.Constant) else 0
        if not isinstance(value, int | float) or abs(value) <= _LARGEST_HALF:
            return ()
    return replace_text(file, number, text)


def with_small_fill(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Write −1e4 in place of a negative number beyond float16: ``-1e9``, ``torch.finfo(torch.float32).min``."""
    node, file = node_at(code, instruction), code.co_filename
    for part in ast.walk(node) if node is not None else ():
        text = text_of(file, part) if isinstance(part, ast.UnaryOp | ast.Attribute) else ""
        beyond: Any = re.fullmatch(r"\S*finfo\((torch\.)?(float|float32|float64|double)\)\.min", text)
        with suppress(ValueError):
            beyond = beyond or -math.inf < float(text) < -_LARGEST_HALF
        if beyond and isinstance(part, ast.expr) and (fill := replace_text(file, part, "-1e4")):
            return fill
    return ()


def without_call(code: CodeType, instruction: int, names: tuple[str, ...] = CASTS) -> tuple[Insertion, ...]:
    """Take a cast, or another method's call, out: ``x.half()`` becomes ``x``."""
    node = node_at(code, instruction)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in names:
        return ()
    inner, file = node.func.value, code.co_filename
    if len(node.args) + len(node.keywords) > 1 or not inner.end_lineno == node.end_lineno == node.func.end_lineno:
        return ()  # `to(device, dtype)` does more than cast
    assert inner.end_lineno is not None
    assert inner.end_col_offset is not None
    assert node.end_col_offset is not None
    raw = linecache.getline(file, inner.end_lineno).encode()
    start = raw.index(b".", inner.end_col_offset)  # behind the parentheses around what is cast
    return (Insertion(file, inner.end_lineno, start, "", removed=node.end_col_offset - start),)


def with_cast_on_the_right(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Move a cast from what turns out to be a number to the tensor on its right: ``gain.to(torch.float32) * x``."""
    at, file = node_at(code, instruction), code.co_filename
    for node in _parsed(file)[1]:
        cast = node.left if isinstance(node, ast.BinOp) else None
        if not (isinstance(cast, ast.Call) and isinstance(cast.func, ast.Attribute) and at in (cast, cast.func)):
            continue
        end, start = cast.end_col_offset, cast.func.value.end_col_offset
        if at is not None and cast.args and end and start and cast.lineno == cast.end_lineno:
            assert isinstance(node, ast.BinOp)
            cut = Insertion(file, cast.lineno, start, "", removed=end - start)
            return (cut, *append_call(file, node.right, f".to({text_of(file, cast.args[0])})"))
    return ()


def with_argument(code: CodeType, instruction: int, text: str) -> tuple[Insertion, ...]:
    """Write something else for a call's only argument: ``finfo(x.dtype)`` becomes ``finfo(torch.float32)``."""
    node, file = node_at(code, instruction), code.co_filename
    if not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) != 1 or not imports_torch(file):
        return ()
    part = node.args[0] if node.args else node.keywords[0].value
    return replace_text(file, part, text)


def with_device(code: CodeType, instruction: int, device: str) -> tuple[Insertion, ...]:
    """Name another device in ``torch.autocast("cuda", …)``; nothing where it is named already."""
    node, file = node_at(code, instruction), code.co_filename
    if not isinstance(node, ast.Call):
        return ()
    part = next((word.value for word in node.keywords if word.arg == "device_type"), None) or next(
        iter(node.args), None
    )
    if not isinstance(part, ast.Constant) or part.value == device or not isinstance(part.value, str):
        return ()
    return replace_text(file, part, f'"{device}"')


def without_function(code: CodeType, instruction: int, names: tuple[str, ...]) -> tuple[Insertion, ...]:
    """Take a function of one argument out: ``float(x)`` becomes ``(x)``."""
    node, file = node_at(code, instruction), code.co_filename
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in names:
        return ()
    return (Insertion(file, node.lineno, node.col_offset, "", removed=len(node.func.id.encode())),)


def with_fill(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Write an assignment of a number to one element so that the device makes it: ``x[-1].fill_(False)``."""
    node, file = node_at(code, instruction), code.co_filename
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or getattr(node, "lineno", 0) != node.end_lineno:
        return ()
    (target,), value = node.targets, node.value
    if not isinstance(target, ast.Subscript) or target.end_col_offset is None or node.end_col_offset is None:
        return ()
    between = value.col_offset - target.end_col_offset
    if not re.fullmatch(
        r"\s*=\s*", linecache.getline(file, node.lineno).encode()[target.end_col_offset :][:between].decode()
    ):
        return ()  # parentheses around the value
    return (
        Insertion(file, node.lineno, target.end_col_offset, ".fill_(", removed=between),
        Insertion(file, node.lineno, node.end_col_offset, ")"),
    )


def without_autocast(code: CodeType, instruction: int, device: str) -> tuple[Insertion, ...]:
    """Have the statement of a line run with autocast switched off."""
    return within(code, instruction, f'torch.autocast("{device}", enabled=False)')


def within(code: CodeType, instruction: int, context: str) -> tuple[Insertion, ...]:
    """Have the statement of a line run in a context."""
    at, file = node_at(code, instruction), code.co_filename
    simple = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return
    around = [n for n in _parsed(file)[1] if isinstance(n, simple) and any(part is at for part in ast.walk(n))]
    if at is None or not around or not imports_torch(file):
        return ()
    insertion = Insertion(file, around[0].lineno, around[0].col_offset, f"with {context}: ")
    return () if is_written_there(insertion) else (insertion,)


def autocasts_elsewhere(code: CodeType) -> list[str]:
    """List the autocasts that other methods of a method's class run something under, as written."""
    function, file = function_of(code), code.co_filename
    around = [n for n in nodes_in(file) if isinstance(n, ast.ClassDef) and function in n.body]
    others = [part for n in around for method in n.body if method is not function for part in ast.walk(method)]
    calls = [call for call in calls_of(file, "autocast") if call in others]
    return [text for call in calls if "enabled=False" not in (text := text_of(file, call))]


def with_full(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Write ``torch.full((), 0.5, …)``, which the device makes, for ``torch.tensor(0.5, …)``."""
    node, file = node_at(code, instruction), code.co_filename
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return ()
    name, first = node.func, node.args[0]
    if name.attr != "tensor" or name.end_lineno is None or name.end_col_offset is None:
        return ()
    return (
        Insertion(file, name.end_lineno, name.end_col_offset - len("tensor"), "full", removed=len("tensor")),
        Insertion(file, first.lineno, first.col_offset, "(), "),
    )


def with_scale_first(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Scale a factor before the product in place of the product: ``(q @ k) / s`` becomes ``((q / s) @ k)``."""
    node, file = node_at(code, instruction), code.co_filename
    scaling = None if node is None else _scaling_of(node, file)
    first = None if node is None else _first_factor(node, file)
    if node is None or scaling is None or first is None or first.end_lineno is None or first.end_col_offset is None:
        return ()
    sign = "*" if isinstance(scaling.op, ast.Mult) else "/"
    if isinstance(scaling, ast.AugAssign):
        scale, removed = scaling.value, _as_nothing(scaling, file)
    else:
        product, scale = scaling.left, scaling.right
        product, scale = (scale, product) if scale is node else (product, scale)
        removed = _without_factor(scaling, product, scale, sign, file)
    is_simple = isinstance(first, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    around = first not in getattr(node, "args", ())
    number = text_of(file, scale) if isinstance(scale, ast.Constant) else _parenthesize(text_of(file, scale))
    text = f"{'' if is_simple else ')'} {sign} {number}{')' if around else ''}"
    opened = "(" * ((not is_simple) + around)
    starts = (Insertion(file, first.lineno, first.col_offset, opened),) if opened else ()
    return removed and (*starts, Insertion(file, first.end_lineno, first.end_col_offset, text), *removed)


def _first_factor(node: ast.AST, file: str) -> ast.expr | None:
    """Find the first factor of a product of matrices."""
    if isinstance(node, ast.BinOp):
        return node.left if isinstance(node.op, ast.MatMult) else None
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    owner = _owner_of_method(node, name, file)
    factors = [part for part in node.args if not isinstance(part, ast.Constant)]
    first = owner or (factors[0] if factors else None)
    return first if name in ("matmul", "bmm", "mm", "einsum") and not isinstance(first, ast.Starred) else None


def _scaling_of(node: ast.AST, file: str) -> ast.BinOp | ast.AugAssign | None:
    """Find where a product is multiplied or divided: around it, or where the name stands that it is given to."""
    nodes = _parsed(file)[1]
    scalings = [n for n in nodes if isinstance(n, ast.BinOp | ast.AugAssign) and isinstance(n.op, ast.Mult | ast.Div)]
    for scaling in scalings:
        if isinstance(scaling, ast.BinOp) and (
            scaling.left is node or (scaling.right is node and isinstance(scaling.op, ast.Mult))
        ):
            return scaling
    given = [n for n in nodes if isinstance(n, ast.Assign) and n.value is node and isinstance(n.targets[0], ast.Name)]
    if not given:
        return None
    inside = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.lineno <= given[0].lineno <= (n.end_lineno or 0)]
    last = min((n.end_lineno or 0 for n in inside), default=0)
    name = text_of(file, given[0].targets[0])
    after = [n for n in scalings if given[0].lineno < n.lineno <= last]
    scaled = [n for n in after if text_of(file, n.target if isinstance(n, ast.AugAssign) else n.left) == name]
    return min(scaled, key=lambda n: n.lineno, default=None)


def factor_and_inverse(code: CodeType, instruction: int) -> tuple[str, int, int] | None:
    """Find what a function multiplies by at a line or before it, and divides by again at it or after."""
    nodes, at = _parsed(code.co_filename)[1], line_of(code, instruction)
    owners = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.lineno <= at <= (n.end_lineno or 0)]
    inside = list(ast.walk(max(owners, key=lambda n: n.lineno))) if owners else []
    scalings = [n for n in inside if isinstance(n, ast.BinOp | ast.AugAssign)]
    factors: dict[str, int] = {}
    for node in scalings:
        parts = [node.value] if isinstance(node, ast.AugAssign) else [node.left, node.right]
        if isinstance(node.op, ast.Mult) and node.lineno <= at:
            factors |= {ast.unparse(p): node.lineno for p in parts if isinstance(p, ast.Name | ast.Attribute)}
    for node in scalings:
        divisor = node.value if isinstance(node, ast.AugAssign) else node.right
        inner = divisor.operand if isinstance(divisor, ast.UnaryOp) else divisor
        if isinstance(node.op, ast.Div) and node.lineno >= at and (text := ast.unparse(inner)) in factors:
            return text, factors[text], node.lineno
    return None


def with_factor(code: CodeType, instruction: int, factor: float, *, undone: bool) -> tuple[Insertion, ...]:
    """Scale the first factor of a product; undone, also what comes of the call that is given the product."""
    node, file = node_at(code, instruction), code.co_filename
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return ()
    scaled = append_call(file, node.left, f" * {factor:g}")
    call = next((n for n in _parsed(file)[1] if isinstance(n, ast.Call) and node in n.args), None)
    if not undone or call is None or call.end_lineno is None or call.end_col_offset is None:
        return () if undone else scaled
    opened, closed = Insertion(file, call.lineno, call.col_offset, "("), f" / {factor:g})"
    return (opened, *scaled, Insertion(file, call.end_lineno, call.end_col_offset, closed))


def _as_nothing(statement: ast.AugAssign, file: str) -> tuple[Insertion, ...]:
    """Have a statement give its target to itself."""
    if statement.end_lineno != statement.lineno or statement.end_col_offset is None:
        return ()
    target = text_of(file, statement.target)
    length = statement.end_col_offset - statement.col_offset
    return (Insertion(file, statement.lineno, statement.col_offset, f"{target} = {target}", removed=length),)


def _without_factor(
    scaling: ast.BinOp, product: ast.expr, scale: ast.expr, sign: str, file: str
) -> tuple[Insertion, ...]:
    """Take the scale out of ``(q @ k) * scale`` or ``scale * (q @ k)``, and leave the parentheses of the product."""
    line = linecache.getline(file, scaling.lineno if scale is scaling.left else scaling.end_lineno or 0).encode()
    assert scaling.end_col_offset is not None
    assert product.end_col_offset is not None
    if scale is scaling.left and scaling.lineno == product.lineno:
        end = line.index(sign.encode(), scale.end_col_offset) + 1
        end += len(line[end:]) - len(line[end:].lstrip())
        return (Insertion(file, scaling.lineno, scaling.col_offset, "", removed=end - scaling.col_offset),)
    if scale is scaling.right and scaling.end_lineno == product.end_lineno == scale.lineno:
        start = len(line[: line.index(sign.encode(), product.end_col_offset)].rstrip())
        return (Insertion(file, scale.lineno, start, "", removed=scaling.end_col_offset - start),)
    return ()


def dtype_node(code: CodeType, instruction: int) -> ast.expr | None:
    """Find the dtype that a call names: of ``zeros(n, dtype=x.dtype)``, ``x.to(device, dtype)``, ``x.type(dtype)``."""
    node = node_at(code, instruction)
    if not isinstance(node, ast.Call):
        return None
    is_cast = isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "type")
    words = [word.value for word in node.keywords if word.arg == "dtype"]
    return next(iter([*words, *(node.args[-1:] if is_cast else ())]), None)


def replace_text(file: str, part: ast.expr, text: str) -> tuple[Insertion, ...]:
    if part.end_lineno != part.lineno or part.end_col_offset is None:
        return ()
    return (Insertion(file, part.lineno, part.col_offset, text, removed=part.end_col_offset - part.col_offset),)


def with_dtype(code: CodeType, instruction: int, dtype: str) -> tuple[Insertion, ...]:
    """Write another dtype where a call names one by keyword, or behind a device."""
    node, part = node_at(code, instruction), dtype_node(code, instruction)
    behind = isinstance(node, ast.Call) and part in node.args and len(node.args) != 2
    return () if part is None or behind else replace_text(code.co_filename, part, dtype)


def _only_dtype(code: CodeType, instruction: int) -> ast.expr | None:
    """Find the dtype of a cast that is given by position and alone, as in ``x.to(torch.float16, copy=True)``."""
    node, part = node_at(code, instruction), dtype_node(code, instruction)
    return part if isinstance(node, ast.Call) and node.args == [part] else None


def with_cast_to(code: CodeType, instruction: int, dtype: str) -> tuple[Insertion, ...]:
    """Write another dtype where a line casts to one that it names: ``x.to(torch.bfloat16)``."""
    part, file = _only_dtype(code, instruction), code.co_filename
    is_literal = part is not None and re.fullmatch(r"torch\.\w+", text_of(file, part))
    return replace_text(file, part, dtype) if part is not None and is_literal else ()


def with_wide_cast(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Write float32 where a line casts: ``x.type(dtype)`` becomes ``x.type(torch.float32)``."""
    if part := _only_dtype(code, instruction):
        return replace_text(code.co_filename, part, "torch.float32")
    return without_call(code, instruction) or with_dtype(code, instruction, "torch.float32")


def with_single(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Cast to float32 where a line casts to float64 by name: ``x.double()`` becomes ``x.float()``."""
    node = node_at(code, instruction)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "double":
        return with_cast_to(code, instruction, "torch.float32")
    return tuple(replace(insertion, text=".float()") for insertion in without_call(code, instruction))


def cast_target(code: CodeType, instruction: int) -> str:
    """Write the dtype that a cast names: ``self.compute_dtype`` of ``x.to(self.compute_dtype)``."""
    node = node_at(code, instruction)
    return text_of(code.co_filename, node.args[0]) if isinstance(node, ast.Call) and len(node.args) == 1 else ""


def keyword_argument(code: CodeType, instruction: int, name: str) -> str:
    """Write a keyword argument of a call and, of an attribute, the expression that the file gives it."""
    node, file = node_at(code, instruction), code.co_filename
    words = node.keywords if isinstance(node, ast.Call) else []
    written = next((text_of(file, word.value) for word in words if word.arg == name), "")
    if not written.startswith("self."):
        return f"{name}={written}" if written else ""
    for part in _parsed(file)[1]:
        if isinstance(part, ast.Assign) and text_of(file, part.targets[0]) == written:
            return f"{name}={written}, set to {text_of(file, part.value)} at {short_path(file)}:{part.lineno}"
    return f"{name}={written}"


def with_gradient_cast(code: CodeType, instruction: int) -> tuple[Insertion, ...]:
    """Cast what a tensor is given as its gradient: ``p.grad = g`` becomes ``p.grad = g.to(p.dtype)``."""
    node, file = node_at(code, instruction), code.co_filename
    if not isinstance(node, ast.Attribute) or node.attr != "grad":
        return ()
    assigned = next((n for n in _parsed(file)[1] if isinstance(n, ast.Assign) and node in n.targets), None)
    return append_call(file, assigned.value, f".to({dtype_of(text_of(file, node.value))})") if assigned else ()


def with_keyword_cast(code: CodeType, instruction: int, words: tuple[str, ...], dtype: str) -> tuple[Insertion, ...]:
    node = node_at(code, instruction)
    given = [word.value for word in node.keywords if word.arg in words] if isinstance(node, ast.Call) else []
    return tuple(inserted for part in given for inserted in append_call(code.co_filename, part, f".to({dtype})"))


def imports_torch(file: str) -> bool:
    imports = [node for node in _parsed(file)[1] if isinstance(node, ast.Import)]
    return any(alias.name == "torch" and alias.asname is None for node in imports for alias in node.names)


def is_written_there(insertion: Insertion) -> bool:
    """Whether a text stands already where it is to be put."""
    before = linecache.getline(insertion.file, insertion.line).encode()[: insertion.column]
    return len(insertion.text) > 1 and before.endswith(insertion.text.encode())


def append_call(file: str, part: ast.expr, call: str, *, each: bool = False) -> tuple[Insertion, ...]:
    assert part.end_lineno is not None
    assert part.end_col_offset is not None
    if each:
        return (
            Insertion(file, part.lineno, part.col_offset, f"(part{call} for part in "),
            Insertion(file, part.end_lineno, part.end_col_offset, ")"),
        )
    if isinstance(part, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
        return (Insertion(file, part.end_lineno, part.end_col_offset, call),)
    return (
        Insertion(file, part.lineno, part.col_offset, "("),
        Insertion(file, part.end_lineno, part.end_col_offset, f"){call}"),
    )


def forget_source() -> None:
    """Forget what was read of files, since one was changed in memory."""
    _parsed.cache_clear()
    node_at.cache_clear()
    _names_of_torch.cache_clear()


def python_frames(error: BaseException) -> list[tuple[CodeType, int]]:
    """List the lines of an error outside torch, outermost first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if not is_internal(frame.f_code.co_filename):
            frames.append((frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    return frames
