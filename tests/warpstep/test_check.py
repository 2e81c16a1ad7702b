"""``gpukit check``: its rules on the examples of its page, on kernels known to be right or wrong, and its command."""

import ast
import json
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from releases import NUMBA_CUDA

import warpstep
from bench.corpus import bugs
from warpstep.check.checking import check_text
from warpstep.check.command import NAMES, main

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text("utf-8")
BLOCK = re.compile(r"```python\n(.*?)```", re.S)
IMPORTS = next(b for b in BLOCK.findall(PAGE) if b.startswith("import"))
EXAMPLES = {code: (name, BLOCK.findall(body)) for code, name, body in re.findall(
    r"^### (GK\d+) (\S+)$(.*?)(?=^### |\Z)", PAGE, re.M | re.S)}  # fmt: skip


def check(text):
    """Return [(line of ``text``, code)]."""
    return [(f.line - IMPORTS.count("\n"), f.code) for f in check_text(IMPORTS + text)]


def kernel(body, launch="kernel[(x.size + 255) // 256, 256](x, out)", parameters="x, out"):
    """Check a kernel of two float32 arrays; returns the codes of the findings."""
    lines = "\n    ".join(body.splitlines())
    arrays = "x = np.ones(1000, np.float32)\nout = np.zeros_like(x)"
    return [code for _, code in check(f"@cuda.jit\ndef kernel({parameters}):\n    {lines}\n\n{arrays}\n{launch}\n")]


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_has_every_rule():
    assert {code: name for code, (name, _) in EXAMPLES.items()} == {c: n for c, n in NAMES.items() if c != "GK000"}


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_findings_are_those_that_the_page_marks(code):
    bad, good = EXAMPLES[code][1]
    marked = [(i, line.rpartition("# ")[2]) for i, line in enumerate(bad.splitlines(), 1) if "  # GK" in line]
    assert check(bad) == marked
    assert {c for _, c in marked} == {code}
    assert check(good) == []


#: What the emulator says of each wrong example: the kind of a finding or of advice, or the class of an error.
EFFECTS = {
    "GK101": "float64", "GK102": "float64", "GK103": "float64", "GK104": "int64-division", "GK201": "out-of-bounds",
    "GK202": "barrier-divergence", "GK203": "race", "GK204": "race", "GK205": "race", "GK301": "TypingError",
    "GK302": "TypingError" if NUMBA_CUDA >= (0, 28) else "UnsupportedError",  # they type np.dot, without code for it
    "GK303": "TypingError", "GK304": "ValueError", "GK305": "LaunchError",
}  # fmt: skip


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_do_what_their_rules_say(code):
    def effects(example):
        program = re.sub(r"^(\S+)(\[.*?\])\((.*)\)", r"trace = warpstep.trace(\1\2, \3)", IMPORTS + example, flags=re.M)
        names = {"warpstep": warpstep}
        try:
            exec(program.replace("from numba import cuda,", "from warpstep import cuda\nfrom numba import"), names)
        except Exception as error:
            return {type(error).__name__}
        return {found.kind for found in (*names["trace"].findings, *names["trace"].advice)}

    bad, good = EXAMPLES[code][1]
    assert EFFECTS[code] in effects(bad)
    assert EFFECTS[code] not in effects(good)


# -- kernels known to be right or wrong --------------------------------------------------------------------------------

CORPUS = Path(bugs.__file__).read_text("utf-8")
KERNELS = {node.name: node for node in ast.walk(ast.parse(CORPUS)) if isinstance(node, ast.FunctionDef)}


def corpus_findings(case):
    node = KERNELS[case.name]
    lines = CORPUS.splitlines()[node.lineno - 1 : node.end_lineno]
    text = "\n".join(["from numba import cuda, float32, int32, uint8", "TILE = 16", "@cuda.jit"]) + "\n"
    found = check_text(text + textwrap.dedent("\n".join(lines)))
    return {(f.line - 4 + node.lineno, f.code) for f in found if f.code.startswith("GK2")}


def test_no_correct_kernel_is_blamed_and_wrong_ones_at_their_lines():
    assert [name for name, case in bugs.CORRECT.items() if corpus_findings(case)] == []
    found = {name: corpus_findings(case) for name, case in bugs.PLANTED.items()}
    found = {name: findings for name, findings in found.items() if findings}
    assert {name: bugs.PLANTED[name].kind for name in found} == {
        "matmul_first_barrier": "race",
        "warp_tail_narrowing": "race",
        "broadcast_without_barrier": "race",
        "barrier_in_if": "barrier-divergence",
        "barrier_in_guard": "barrier-divergence",
        "barrier_in_both_arms": "barrier-divergence",
        "barrier_in_uneven_loop": "barrier-divergence",
    }
    for name, findings in found.items():
        lines = bugs.PLANTED[name].lines("bug") | bugs.PLANTED[name].lines("other")
        assert {line for line, _ in findings} <= lines


#: Updates of one element, after `i = cuda.grid(1)`; True where many threads certainly make them.
UPDATES = {
    "out[0] += x[i]": True,
    "out[0] = out[0] + x[i]": True,
    "out[0] = max(x[i], out[0])": True,
    "out[cuda.blockIdx.x] *= x[i]": True,
    "if i >= x.size:\n    return\nout[0] += x[i]": True,
    "if not (i < 0 or i >= x.size):\n    if x[i] > 0.5:\n        out[0] += 1": True,
    "if i == 0:\n    out[1] = 3\nout[0] += x[i]": True,
    "for k in range(3):\n    out[k] += x[i]": True,
    "while i < x.size:\n    out[0] += x[i]\n    i += cuda.gridsize(1)": True,
    "tile = cuda.shared.array(1, float32)\ntile[0] += x[i]": True,
    "out[i] += x[i]": False,
    "out[0] = x[0]": False,
    "out[int(x[i])] += 1": False,
    "sums = cuda.local.array(1, float32)\nsums[0] += x[i]": False,
    "if i == 0:\n    out[0] += x[i]": False,
    "if i != 0:\n    return\nout[0] += x[i]": False,
    "if x.size > 9:\n    if i != 0:\n        return\nout[0] += x[i]": False,
    "if i > 0:\n    pass\nelse:\n    out[0] += x[i]": False,
    "if i < 1 and x.size > 3:\n    out[0] += x[i]": False,
    "if i >= x.size - 1:\n    out[0] += x[i]": False,
    "for k in range(256):\n    if k == i:\n        out[0] += x[i]\n    cuda.syncthreads()": False,
    "while cuda.atomic.cas(out, 1, 0, 1) != 0:\n    pass\nout[0] += x[i]": False,
    "lock(out)\nout[0] += x[i]": False,
    "where = find(out)\nout[int(where)] += x[i]": False,
}


@pytest.mark.parametrize("body", UPDATES)
def test_an_update_by_many_threads(body):
    assert ("GK205" in kernel(f"i = cuda.grid(1)\n{body}")) == UPDATES[body]
    assert "GK205" not in kernel(f"i = cuda.grid(1)\n{body}", "kernel[100, 1](x, out)")
    assert "GK205" not in kernel(f"i = out[1]\n{body}".replace("blockIdx", "blockDim"))


# -- types -------------------------------------------------------------------------------------------------------------

GUARD = "i = cuda.grid(1)\nif i < out.size:\n    "
#: Lines of a float32 kernel in whose PTX the compiler leaves float64, and the rule that says so; None: no float64.
LINES = {
    "out[i] = x[i] * 0.5": None,
    "out[i] = 2 * x[i]": None,
    "out[i] = 1.0 / x[i]": None,
    "out[i] = x[i] ** 2": None,
    "out[i] = x[i] * x[i] * 0.5": None,
    "out[i] = math.sqrt(x[i])": None,
    "out[i] = x[i] if x[i] > 0.0 else 0.1": None,
    "out[i] = float32(0.1) * x[i]": None,
    "out[i] = 2 * x[i] + out[i]": "GK101",
    "out[i] = 0.5 * x[i] + 0.5 * out[i]": "GK101",
    "out[i] += 0.5 * x[i]": "GK101",
    "out[i] = 1.0 / (1.0 + x[i])": "GK101",
    "out[i] = x[i] if x[i] > 0.1 else x[0]": "GK101",
    "out[i] = max(x[i], 0.0)": "GK101",
    "out[i] = x[i] ** 2.0": "GK101",
    "out[i] = x[i] * math.pi": "GK101",
    "s = 0.0\n    for k in range(x.size):\n        s += x[k]\n    out[i] = s": "GK101",
    "out[i] = x[i] * i": "GK102",
    "out[i] = math.sqrt(i)": "GK102",
    "out[i] = i / 3": "GK102",
    "out[i] = float(i) * x[i]": "GK102",
    "out[i] = x[i // 3]": None,
    "out[i] = x[uint32(i) // uint32(out.size)]": None,
    "out[i] = x[i % out.size]": "GK104",
}


@pytest.mark.parametrize("line", LINES)
def test_float64_is_what_the_compiler_leaves_of_it(line):
    assert set(kernel(GUARD + line)) == {LINES[line]} - {None}


@pytest.mark.parametrize("types", ["np.float64", "float", "'f8'"])
def test_a_float64_kernel_is_left_alone(types):
    launch = f"x = np.ones(9, {types})\nkernel[1, 9](x, x)"
    text = "@cuda.jit\ndef kernel(x, out):\n    i = cuda.grid(1)\n    out[i] = 0.1 * x[i] + i / 3\n\n"
    assert check(text + launch) == []
    assert check(text.replace("jit", "jit('void(f8[:], f8[:])')")) == []
    assert {c for _, c in check(text.replace("jit", "jit('void(f4[:], f4[:])')"))} == {"GK101", "GK102"}


def test_a_range_of_its_own_for_each_thread():
    body = "i = cuda.grid(1)\nend = min((i + 1) * 8, x.size)\nfor k in range({}, {}):\n    out[k] = x[k] + out[k]"
    assert "GK203" not in kernel(body.format("i * 8", "end"))
    assert "GK203" not in kernel(body.format("i * 8", "(i + 1) * 8"))
    assert "GK203" in kernel("i = cuda.grid(1)\nfor k in range(i * 8, x.size):\n    out[k] = x[k] + out[k]")


# -- bounds, threads, constants ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "i = cuda.grid(1)\nif i >= x.size:\n    return\nout[i] = x[i]",
        "i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x\nwhile i < x.size:\n    out[i] = x[i]\n    i += 1024",
        "for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):\n    out[i] = x[i]",
        "i = min(cuda.grid(1), x.size - 1)\nout[i] = x[i]",
        "i = cuda.grid(1)\ninside = i < x.size and x[0] > 0\nif inside:\n    out[i] = x[i]",
        "i = cuda.grid(1)\nif i >= x.size:\n    i = 0\nout[i] = x[i]",
        "i = cuda.grid(1)\nout[i % x.size] = x[i] if i < x.size else float32(0)",
        "i = cuda.grid(1)\nif math.sqrt(i) + 1 < x.size:\n    out[i] = x[i]",
        "out[cuda.blockIdx.x] = x[cuda.threadIdx.x]",
    ],
)
def test_an_index_with_a_bound_is_guarded(body):
    assert "GK201" not in kernel(body)


def test_an_index_without_one_is_reported_where_blocks_are_rounded_up():
    body = "i = cuda.grid(1)\nif x[0] > 0:\n    out[i] = x[i]\n    out[i] = 1"
    assert kernel(body) == ["GK201"]
    assert kernel(body, "kernel.forall(x.size)(x, out)") == ["GK201"]
    assert kernel(body, "blocks = -(-x.size // 256)\nkernel[blocks, 256](x, out)") == ["GK201"]
    assert kernel(body, "kernel[4, 250](x, out)") == kernel(body, "kernel[x.size // 250, 250](x, out)") == []


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("if cuda.blockIdx.x == 0:\n    cuda.syncthreads()", []),
        ("n = 8\nwhile n > 0:\n    cuda.syncthreads()\n    n //= 2", []),
        ("flag = 0\nif cuda.threadIdx.x == 0:\n    flag = 1\nif flag:\n    cuda.syncthreads()", ["GK202"]),
        ("s = cuda.shared.array(32, float32)\nt = cuda.threadIdx.x\ns[t] = 1\nout[t] = s[cuda.threadIdx.x]", []),
        ("s = cuda.shared.array(32, float32)\nt = cuda.threadIdx.x\ns[t] = 1\nout[t] = s[t + 1]", ["GK204"]),
        ("s = cuda.shared.array(32, float32)\nt = cuda.threadIdx.x\ns[t] = 1\nout[t] = s[31 - t]", ["GK204"]),
        ("s = cuda.shared.array(32, float32)\nt = cuda.threadIdx.x\ns[t] = 1\nif t == 0:\n    out[t] = s[0 - t]", []),
        (
            "s = cuda.shared.array((8, 4), float32)\nx, y = cuda.threadIdx.x, cuda.threadIdx.y\ns[y, x] = 1\n"
            "out[x] = s[y, cuda.blockDim.x - 1 - x]",
            ["GK204"],
        ),
        ("s = cuda.shared.array(1, float32)\nif cuda.threadIdx.x == 0:\n    s[0] = 1\nout[0] = s[0]", ["GK204"]),
        ("s = cuda.shared.array(8 * 4, float32)\nn = 32\nt = cuda.local.array(n, float32)", []),
        ("n = x.shape[0]\ns = cuda.shared.array(n, float32)", ["GK301"]),
        ("n = 16\ns = cuda.shared.array((n, n + 1), float32)", ["GK301"]),
        ("for j in range(cuda.grid(1), x.size):\n    s = x[j]", []),
        ("i = cuda.grid(1)\nfor j in range(i, x.size):\n    out[j] = x[i]", []),
        ("out[0] = x[0] + x.copy()[0]\nout[1] = np.float32(1)", ["GK302"]),
    ],
)
def test_other_rules(body, codes):
    assert kernel(body, "kernel[1, 32](x, out)") == codes


def test_launches():
    text = (
        "@cuda.jit\ndef kernel(x):\n    x[0] = 1\n\n@cuda.jit\ndef other(x):\n    kernel(x)\n\nthreads, blocks = 9, 1\n"
    )
    assert check(text + "kernel[threads, blocks](x)") == [(10, "GK305")]
    assert check(text + "kernel[blocks, (64, 32)](x)") == [(10, "GK305")]
    assert check(text + "kernel[blocks, threads](x)") == []
    assert check("def f(x):\n    x[0] = 1\n\nkernel = cuda.jit(f)\nf(x)\nkernel(x)") == []


@pytest.mark.parametrize(
    "call", ["np.zeros(4)", "np.where(x > 0, x, x)", "np.clip(x[0], 0, 1)", "np.dot(x, x)", "x.copy()"]
)
def test_numba_has_none_of_the_missing_functions(call):
    names = {}
    exec(f"import numpy as np\ndef kernel(x):\n    v = {call}\n    x[0] = 1", names)
    with pytest.raises(Exception, match=r"No implementation|allocates|cannot be emulated") as error:
        warpstep.cuda.jit(names["kernel"])[1, 1](np.zeros(4, np.float32))
    assert type(error.value).__name__ in ("TypingError", "UnsupportedError")
    assert kernel(f"x[0] = out[0]\nv = {call}", "kernel[1, 1](x, out)") == ["GK302"]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(IMPORTS + EXAMPLES["GK304"][1][0])
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "b.py").write_text("from numba import cuda\ncuda.jit(")
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    return tmp_path


def test_formats_and_exit_status(project, capsys):
    line = IMPORTS.count("\n") + 9
    assert main([]) == 1
    assert capsys.readouterr().out.startswith(f"a.py:{line}:1: GK304 kernel is launched without a configuration")
    assert main(["--format=github", "a.py"]) == 1
    assert capsys.readouterr().out.startswith(f"::error file=a.py,line={line},col=1,title=gpukit GK304::")
    assert main(["--format=json", str(project)]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["line"], row["column"], row["code"], row["name"]) == (line, 1, "GK304", "launch-without-configuration")
    assert main(["--ignore=GK3"]) == main(["--select=GK1,GK301"]) == 0
    (project / "a.py").write_text("from numba import cuda\ncuda.jit(\n")
    assert main(["a.py"]) == 1
    assert "GK000 cannot be parsed" in capsys.readouterr().out


def test_settings_and_comments(project, capsys):
    settings = project / "pyproject.toml"
    settings.write_text('[tool.gpukit.check]\nignore = ["GK304"]\n')
    assert main([]) == 0
    assert main(["--ignore=GK1"]) == 1
    settings.write_text('[tool.gpukit.check]\nignore = ["GK9"]\n')
    with pytest.raises(SystemExit, match="2"):
        main([])
    settings.write_text("")
    text = (project / "a.py").read_text()
    for comment, status in (("gpukit: ignore", 0), ("gpukit: ignore[GK101, GK304]", 0), ("gpukit: ignore[GK101]", 1)):
        (project / "a.py").write_text(text.replace("# GK304", f"# {comment}"))
        assert main(["a.py"]) == status
    with pytest.raises(SystemExit, match="2"):
        main(["missing.py"])


def test_a_notebook_is_one_program(project, capsys):
    cells = [
        "%matplotlib inline\n" + IMPORTS,
        "this is no Python",
        EXAMPLES["GK304"][1][0].replace("\nkernel(x", "\n%time kernel(x"),
    ]
    rows = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    (project / "n.ipynb").write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": []}, *rows]}))
    assert main(["n.ipynb"]) == 1
    assert capsys.readouterr().out.startswith("n.ipynb:cell 4:9:1: GK304 ")
    rows[-1]["source"] = EXAMPLES["GK101"][1][0].splitlines(keepends=True)
    (project / "n.ipynb").write_text(json.dumps({"cells": rows}))
    assert main(["n.ipynb"]) == 1
    assert "n.ipynb:cell 3:5:18: GK101 0.1 is float64, so line 5 computes in float64" in capsys.readouterr().out
