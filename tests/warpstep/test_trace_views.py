"""The views of a trace, on records made here by hand: what they say is what the records hold, and can be read."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from math import ceil, prod

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from numba import float32

from gpukit import cuda, plot
from warpstep import trace
from warpstep.report import comparison, facts, plots, text
from warpstep.report import html as page
from warpstep.report.table import Table
from warpstep.tracing import records

matplotlib.use("Agg")

FILE = "/somewhere/kernels.py"
MATMUL = '''\
@cuda.jit
def tiled(a, b, c):
    """c = a @ b, for square matrices of a multiple of 16."""
    tile = cuda.shared.array((16, 16), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + ty, cuda.blockIdx.x * 16 + tx
    total = float32(0)
    for step in range(a.shape[1] // 16):
        tile[tx, ty] = a[row, step * 16 + tx]
        cuda.syncthreads()
        for k in range(16):
            total += tile[k, ty] * b[step * 16 + k, col]
        cuda.syncthreads()
    c[row, col] = total
'''
COPY = """\
@cuda.jit
def copy(x, out, stride):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i * stride]
"""
REDUCE = """\
@cuda.jit
def reduce(x, out):
    partial = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    partial[t] = x[cuda.grid(1)]
    stride = 32
    while stride > 0:
        if t < stride:
            partial[t] += partial[t + stride]
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = partial[0]
"""


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


# -- records ----------------------------------------------------------------------------------------


def wavefronts(addresses, active, itemsize):
    """Passes through the banks of one request, by the rule for 4, 8 and 16 bytes."""
    groups = max(1, itemsize // 4)
    total = 0
    for lanes in np.split(np.arange(32), groups):
        words = {a // 4 + i for a in addresses[lanes][active[lanes]] for i in range(ceil(itemsize / 4))}
        total += max(np.bincount([word % 32 for word in words], minlength=1))
    return total


def request(array, space, positions, shape, dtype=np.float32, active=None, origin=0, warp=0):
    """One warp's access to these elements of an array."""
    dtype = np.dtype(dtype)
    active = np.ones(32, bool) if active is None else active
    addresses = origin + np.asarray(positions, np.int64) * dtype.itemsize
    shared = space == "shared"
    used = addresses[active]
    span = len(np.unique(used)) * dtype.itemsize
    return records.Request(
        block=(0, 0, 0),
        warp=warp,
        active=active,
        addresses=addresses,
        itemsize=dtype.itemsize,
        array=array,
        origin=origin,
        shape=shape,
        dtype=dtype,
        wavefronts=wavefronts(addresses, active, dtype.itemsize) if shared else 0,
        ideal_wavefronts=max(1, dtype.itemsize // 4) if shared else 0,
        sectors=0 if shared else len(np.unique(used // 32)),
        ideal_sectors=0 if shared else ceil(span / 32),
    )


def access(source, line, op, space, worst, requests=1):
    """The record of a line all of whose requests are like ``worst``."""
    return records.Access(
        line=line,
        filename=FILE,
        code=source.splitlines()[line - 1].strip(),
        array=worst.array,
        space=space,
        op=op,
        itemsize=worst.itemsize,
        requests=requests,
        wavefronts=requests * worst.wavefronts,
        ideal_wavefronts=requests * worst.ideal_wavefronts,
        bank_conflicts=requests * (worst.wavefronts - worst.ideal_wavefronts),
        sectors=requests * worst.sectors,
        ideal_sectors=requests * worst.ideal_sectors,
        active_lanes=float(worst.active.sum()),
        worst=worst,
    )


def at(source, line):
    return {"line": line, "filename": FILE, "code": source.splitlines()[line - 1].strip()}


def recording(kernel, source, grid, block, accesses, **more):
    values = {
        "kernel": kernel,
        "filename": FILE,
        "source": (1, source),
        "grid": grid,
        "block": block,
        "shared_bytes": 0,
        "blocks": prod(grid),
        "accesses": accesses,
        "branches": [],
        "barriers": [],
        "operations": [],
        "overhead": 0,
        "shared_overhead": 0,
        "findings": [],
        "advice": [],
        "coverage": [],
        "occupancy": records.Occupancy("NVIDIA H200", 64, 64, 8, None, 0, "threads"),
        "traffic": records.Traffic(0, 0, 0),
    }
    return records.Recording(**values | more)


T = np.arange(32)


def matmul(conflict=True):
    """The tiled product of 64x64 matrices, its tile written by column or by row."""
    source = MATMUL if conflict else MATMUL.replace("tile[tx, ty]", "tile[ty, tx]")
    tx, ty, shape = T % 16, T // 16, (16, 16)
    written = tx * 16 + ty if conflict else ty * 16 + tx
    counts = {"fp16": 0, "fp32": 524288, "fp64": 0, "int32": 0, "int64": 65536, "int64_divisions": 0}
    operations = records.Operations(**at(source, 12), **counts, fp64_conversions=0, threads=262144, active_lanes=32.0)
    return recording(
        "tiled",
        source,
        (4, 4, 1),
        (16, 16, 1),
        [
            access(source, 9, "load", "global", request("a", "global", ty * 64 + tx, (64, 64)), 512),
            access(source, 9, "store", "shared", request("tile", "shared", written, shape), 512),
            access(source, 12, "load", "shared", request("tile", "shared", 3 * 16 + ty, shape), 8192),
            access(source, 12, "load", "global", request("b", "global", tx, (64, 64), origin=65536), 8192),
            access(source, 14, "store", "global", request("c", "global", ty * 64 + tx, (64, 64), origin=131072), 128),
        ],
        barriers=[records.Barrier(**at(source, line), kind="block", passed=64) for line in (10, 13)],
        operations=[operations],
        advice=[
            records.Advice(
                **at(source, 9),
                kind="bank-conflicts",
                message="Stores take 8 wavefronts where 1 would do.",
                cure="Swap the indices, or pad the rows of tile.",
            )
        ]
        * conflict,
        coverage=[
            records.Coverage("a", (64, 64), np.dtype(np.float32), 4096, 4096, 0, (0, 0)),
            records.Coverage("c", (64, 64), np.dtype(np.float32), 4096, 0, 4096, None),
        ],
        occupancy=records.Occupancy("NVIDIA H200", 64, 64, 8, None, 1024, "threads"),
        traffic=records.Traffic(49152, 600 * 1024, 524288),
    )


def copy(stride=8):
    worst = request("x", "global", T * stride, (4096,), origin=512)
    whole = request("out", "global", T, (1000,), origin=65536)
    some = replace(whole, active=T < 8)
    return recording(
        "copy",
        COPY,
        (4, 1, 1),
        (256, 1, 1),
        [
            access(COPY, 5, "load", "global", worst, 32),
            replace(access(COPY, 5, "store", "global", some, 32), active_lanes=31.25),
        ],
        branches=[records.Branch(**at(COPY, 4), warps=32, split=1, waiting_lanes=24.0)],
        coverage=[records.Coverage("out", (1024,), np.dtype(np.float32), 1024, 0, 1000, (1000,))],
        traffic=records.Traffic(8000, 36 * 1024, 0),
    )


def race():
    both = at(REDUCE, 9)
    return recording(
        "reduce",
        REDUCE,
        (100, 1, 1),
        (64, 1, 1),
        [
            access(REDUCE, 5, "load", "global", request("x", "global", T, (6400,)), 200),
            access(REDUCE, 5, "store", "shared", request("partial", "shared", T, (64,)), 200),
            access(REDUCE, 9, "load", "shared", request("partial", "shared", T + 32, (64,)), 200),
            access(REDUCE, 12, "store", "global", request("out", "global", T, (100,), active=T == 0), 100),
        ],
        blocks=10,
        findings=[
            records.Finding(
                **both,
                kind="race",
                message="Thread 32 writes partial[32] at line 5 and thread 0 reads "
                "it here, <without> a barrier between.",
                cure="Put cuda.syncthreads() between them.",
                array="partial",
                block=(0, 0, 0),
                threads=((0, 0, 0), (32, 0, 0)),
                count=320,
            )
        ],
    )


def elsewhere():
    """``matmul`` with its store to c in a device function of another file, and one in the kernel's file."""
    made = matmul()
    other = {"filename": "/somewhere/helpers.py", "line": 3, "code": "out[i, j] = value"}
    own = {"line": 40, "code": "return x[i]"}
    accesses = [*made.accesses[:4], replace(made.accesses[0], **own), replace(made.accesses[4], **other)]
    return replace(made, accesses=accesses)


def without_source():
    return replace(copy(), source=(0, ""), filename="")


RECORDINGS = {"matmul": matmul, "copy": copy, "race": race, "elsewhere": elsewhere, "without source": without_source}
every_recording = pytest.mark.parametrize("made", [make() for make in RECORDINGS.values()], ids=RECORDINGS)


def figures(access):
    """What stands beside the source for an access, by column."""
    shared = access.space == "shared"
    return {
        "access": f"{access.op} {access.array}",
        "requests": f"{access.requests:,}",
        "wavefronts": f"{access.wavefronts:,}" if shared else "",
        "sectors": "" if shared else f"{access.sectors:,}",
        "ideal": f"{access.ideal_wavefronts if shared else access.ideal_sectors:,}",
        "conflicts": f"{access.bank_conflicts:,}" if access.bank_conflicts else "",
        "lanes": f"{access.active_lanes:.1f}".removesuffix(".0"),
    }


def in_order(made):
    """Accesses in the order of a listing: those of the kernel's source first."""
    return sorted(made.accesses, key=lambda a: (a.filename != made.filename, a.line))


# -- text -------------------------------------------------------------------------------------------


def listing(report):
    """The listing of a report: for each row with counts the line it belongs to, and its cells by column."""
    lines = report.splitlines()
    top = next(i for i, line in enumerate(lines) if re.match(r"\s*line +source", line))
    header = lines[top]
    start = header.index("access")
    names = header[start:].split()
    rows, number = [], None
    for line in lines[top + 1 : lines.index("", top)]:
        found = re.match(r"[!> ]{2} *(\d+)  ", line)
        number = int(found[1]) if found else number
        access_ = re.match(r"(load|store|atomic) \w+", line[start:])
        if access_:
            # Figures end where the name of their column ends.
            edges = [start + access_.end(), *(header.index(f" {name}") + 1 + len(name) for name in names[1:])]
            figures_ = [line[left:right].strip() for left, right in zip(edges, edges[1:], strict=False)]
            rows.append((number, dict(zip(names, [access_[0], *figures_], strict=True))))
    return rows


@every_recording
def test_the_report_has_every_count_beside_its_line(made):
    report = text.render(made)
    assert max(map(len, report.splitlines())) <= 120
    rows = listing(report)
    assert [number for number, _ in rows] == [access.line for access in in_order(made)]
    for (_, row), access in zip(rows, in_order(made), strict=True):
        wanted = figures(access)
        assert row == {name: wanted[name] for name in row}
        assert not any(cell for name, cell in wanted.items() if name not in row)
    for number, line in enumerate(made.source[1].splitlines(), 1):
        assert re.search(rf"^[!>]{{0,2}} *{number}  {re.escape(line[:30])}", report, re.MULTILINE)


def test_the_report_says_first_what_is_wrong_and_what_else_there_is():
    report = text.render(race())
    assert report.index("FINDING") < report.index("source")
    for words in ("race, line 9:", "<without> a barrier", "block 0, threads 0 and 32; 320 cases", "-> Put cuda.sync"):
        assert words in " ".join(report.split())
    assert "10 of 100 blocks traced, counts scaled to all" in report
    assert re.search(r"^!  +9  ", report, re.MULTILINE)
    report = text.render(matmul())
    assert "FINDING" not in report and "all blocks traced" in report and "1,024 bytes of shared memory" in report
    assert re.search(r"^>  +9  ", report, re.MULTILINE)
    assert "line 9 wastes most: 3,584 of 4,096 wavefronts more than needed" in report
    assert re.search(r"line +code +FP32 +int64 +lanes\n", report), "columns of nothing but zeros are left out"
    assert "bank-conflicts, line 9:" in report and "64 times by a block" in report
    report = text.render(copy())
    assert "1 of 32" in report and "out[1000]" in report and "1,000 of 1,024" in report
    assert not any(title in report for title in ("Barriers", "Arithmetic", "Advice", "wavefronts"))


def test_long_stretches_without_counts_are_cut():
    lines = ["def kernel(x):", '    """Words."""', *(f"    a{i} = {i}" for i in range(40)), "    x[0] = a1"]
    store = replace(copy().accesses[1], line=len(lines), code="x[0] = a1")
    report = text.render(replace(copy(), source=(1, "\n".join(lines)), accesses=[store], branches=[]))
    assert "⋮  38 lines" in report and len(report.splitlines()) < 20


def test_of_a_long_docstring_only_the_first_line_is_shown():
    source = MATMUL.replace("multiple of 16.", "multiple\n    of\n    16.\n    ")
    assert '"""c = a @ b, for square matrices of a multiple\n      ⋮  3 lines\n   7' in text.render(
        replace(matmul(), source=(1, source))
    )


def test_remarks_with_one_cure_stand_together():
    made = race()
    first = made.findings[0]
    more = [first, replace(first, message="The same place."), replace(first, line=5, message="The other one.")]
    for shown in (text.render(replace(made, findings=more)), page.render(replace(made, findings=more))):
        assert shown.index("same place") < shown.index("other one") < shown.index("Put cuda.syncthreads() between")
        assert [shown.count(words) for words in ("Put cuda.sync", ", line 9:", ", line 5:")] == [1, 1, 1]
    assert "3 FINDINGS" in text.render(replace(made, findings=more))


def test_wide_accesses_say_their_width():
    made = copy()
    wide = replace(made.accesses[0], itemsize=16)
    for show in (text.render, page.render):
        assert "load x (16 B)" in show(replace(made, accesses=[wide])) and "16 B" not in show(made)


def test_branches_that_do_not_split_are_not_listed():
    made = copy()
    assert "Branches" not in text.render(replace(made, branches=[replace(made.branches[0], split=0)]))


# -- HTML -------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that tags nest; collects tables as rows of (class of the row, cells), and all text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.words, self.tables, self.attributes = [], [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attributes]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append((dict(attributes).get("class") or "", []))
        elif tag in ("td", "th"):
            self.tables[-1][-1][1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][1][-1] += data.replace(page.NO_BREAK, " ")


@every_recording
def test_the_page_stands_alone_and_has_every_count_beside_its_line(made):
    shown = Page(page.render(made))
    assert not {"id", "src", "href", "onclick"} & {name for _, name, _ in shown.attributes}
    assert "script" not in {tag for tag, _, _ in shown.attributes}
    assert "http" not in page.render(made) and "@import" not in page.render(made)
    (_, header), *rows = shown.tables[1]  # after the totals
    names = [name for name in header if name not in ("", "source")]
    counted = [cells[-len(header) + 2 :] for _, cells in rows if len(cells) >= len(header) - 2]
    assert len(counted) == len(made.accesses)
    for cells, access in zip(counted, in_order(made), strict=True):
        got = dict(zip(header[2:], cells, strict=True))
        assert {name: got[name] for name in names} == {name: figures(access)[name] for name in names}
    code = "\n".join(cells[1] for _, cells in rows if len(cells) in (2, len(header)))
    assert made.source[1].rstrip() in code


def test_the_page_marks_what_is_wrong_and_what_is_worst():
    rows = Page(page.render(race())).tables[1]
    assert [cells[0] for look, cells in rows if "finding" in look] == ["9"]
    words = " ".join(Page(page.render(race())).words)
    assert words.index("1 finding") < words.index("source") and "<without>" in words and "320 cases" in words
    rows = Page(page.render(matmul())).tables[1]
    assert [cells[0] for look, cells in rows if "worst" in look] == ["9", "store tile"]


def test_the_page_keeps_its_indentation_where_nbconvert_rewrites_it():
    """nbconvert passes HTML through a parser that joins blanks, other than those in ``pre``."""
    bs4 = pytest.importorskip("bs4")
    html = str(bs4.BeautifulSoup(page.render(race()), features="html.parser")).replace(page.NO_BREAK, " ")
    code = [cells[1] for _, cells in Page(html).tables[1][1:] if cells[0].isdigit()]
    assert "\n".join(line for line in code if not line.isdigit()) == REDUCE.rstrip()


def test_the_page_keeps_its_columns_and_bars_where_style_sheets_are_removed():
    """As code hosts do; a notebook that is not trusted keeps plain style attributes: no variables, no functions."""
    html = page.render(matmul())
    assert not re.search(r'style="[^"]*(var|calc|flex|ch)\b', html)
    bare = re.sub(r"<style>.*?</style>| (style|class)=\"[^\"]*\"", "", html, flags=re.DOTALL)
    totals, listing, *_ = Page(bare).tables
    assert len(totals) == 1 and len(totals[0][1]) == len(facts.totals(matmul()))
    for line in facts.listing(matmul()):
        assert not line.accesses or re.search(rf"<b>{line.number}</b>|<td[^>]*>{line.number}<", bare)
    source = re.findall(r'<td[^>]*><div align="left"><code>(.*?)</code></div></td>', bare)
    assert re.sub("<[^>]*>", "", source[0]) == facts.listing(matmul())[0].code and len(source) > 8
    bars = [re.fullmatch("(█*)(▒*)", cell) for _, cells in listing for cell in cells if "█" in cell]
    assert max(len(bar[0]) for bar in bars) == page.BARS and len(bars) == len(matmul().accesses)
    store = next(cells for _, cells in listing if "store tile" in cells)
    assert "█▒▒▒▒" in store, "4,096 wavefronts where 512 would do, and the loads take 8,192"


def test_keywords_are_marked_also_where_a_docstring_is_cut():
    source = MATMUL.replace("multiple of 16.", "multiple\n    of\n    16.\n    ")
    html = page.render(replace(matmul(), source=(1, source)))
    assert '<span style="color: #9965d8">def</span> tiled(a, b, c):' in html
    assert '<span style="color: #b0672e">&quot;&quot;&quot;c = a' in html


def test_the_page_escapes_everything():
    evil = '<b onclick="x">&amp;'
    made = replace(
        race(),
        kernel=evil,
        filename=evil,
        source=(1, f"def f(): # {evil}\n  x = '{evil}'\n  unclosed = ("),
        accesses=[replace(a, array=evil, code=evil, filename=evil, line=2) for a in race().accesses],
        findings=[replace(race().findings[0], message=evil, cure=evil, code=evil)],
        advice=[replace(matmul().advice[0], message=evil, cure=evil, code=evil)],
        coverage=[replace(copy().coverage[0], array=evil)],
    )
    for html in (page.render(made), comparison.compare(made, made)._repr_html_()):
        shown = Page(html)
        assert "b" not in {tag for tag, name, _ in shown.attributes if name == "onclick"}
        assert "".join(shown.words).count(evil) >= 3


# -- figures ----------------------------------------------------------------------------------------


def marked(ax, gid):
    return [written for written in ax.texts if written.get_gid() == gid]


def one(space, worst, op="load"):
    return recording("kernel", MATMUL, (4, 4, 1), (16, 16, 1), [access(MATMUL, 9, op, space, worst)])


def random_request(seed, space, dtype, spread):
    rng = np.random.default_rng(seed)
    return request("x", space, rng.integers(0, spread, 32), (spread,), dtype, rng.random(32) < 0.8, origin=256)


DTYPES = (np.uint8, np.float16, np.float32, np.float64, np.complex128)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [8, 100, 2000])
def test_banks_show_each_lane_in_its_banks_and_each_wavefront(dtype, spread):
    worst = random_request(spread, "shared", dtype, spread)
    ax = plots.banks(one("shared", worst))
    groups = max(1, worst.itemsize // 4)
    heads = {}
    for written in marked(ax, "words"):
        heads.setdefault(written.get_position()[1], []).append(int(written.get_text()))
    # A group without a conflict has no heads, and takes one wavefront if a lane of it is active.
    quiet = sum(worst.active.reshape(groups, -1).any(axis=1)) - len(heads)
    assert sum(max(words) for words in heads.values()) + quiet == worst.wavefronts
    turns = {}
    for written in marked(ax, "turn"):
        x, y = written.get_position()
        turns[round(x - 0.5), round(y, 2)] = int(written.get_text())
    assert [label.get_text() for label in marked(ax, "label")] == [
        worst.label(address) for address in worst.addresses[worst.active]
    ]
    rows = {
        lane: label.get_position()[1]
        for lane, label in zip(np.flatnonzero(worst.active), marked(ax, "label"), strict=True)
    }
    for lane, y in rows.items():
        for word in {(int(worst.addresses[lane]) + i) // 4 for i in range(worst.itemsize)}:
            mates = [m for m in rows if m // (32 // groups) == lane // (32 // groups)]
            words = list(dict.fromkeys(w for m in mates for w in _words(worst, m) if w % 32 == word % 32))
            assert turns.get((word % 32, round(y + 0.03, 2))) == (words.index(word) + 1 if len(words) > 1 else None)
    cells = next(c for c in ax.collections if c.get_gid() == "cells")
    assert len(cells.get_paths()) == sum(len(_words(worst, lane)) for lane in rows)


def _words(worst, lane):
    return list(dict.fromkeys((int(worst.addresses[lane]) + i) // 4 for i in range(worst.itemsize)))


def test_banks_tell_sharing_from_colliding():
    def faces(positions):
        ax = plots.banks(one("shared", request("s", "shared", positions, (2048,))))
        colors = [matplotlib.colors.to_hex(c).upper() for c in ax.collections[-1].get_facecolors()]
        return [colors.count(color) for color in (plots.ALONE, plots.SHARED, plots.COLLIDES)], ax

    assert faces(T)[0] == [32, 0, 0]
    assert faces(T * 0 + 5)[0] == [0, 32, 0]
    assert faces(T * 32)[0] == [0, 0, 32]
    counts, ax = faces(np.where(T < 16, T // 2 * 32, T))
    assert counts == [16, 0, 16]
    assert [written.get_text() for written in marked(ax, "turn")] == [str(t // 2 + 1) for t in range(16)]
    assert "8 wavefronts where 1 would do" in ax.get_title(loc="left")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [8, 100, 300, 100_000])
def test_sectors_show_what_is_moved_and_used(dtype, spread):
    worst = random_request(spread, "global", dtype, spread)
    ax = plots.sectors(one("global", worst))
    used = [int(written.get_text().split()[0]) for written in marked(ax, "used")]
    moved = len([patch for patch in ax.patches if patch.get_gid() == "sector"])
    assert len(used) == moved
    left_out = [re.findall(r"\d+", t.get_text()) for t in ax.texts if "more line" in t.get_text()]
    for _, sectors_, bytes_, of in left_out:
        assert int(of) == 32 * int(sectors_)
        moved, used = moved + int(sectors_), [*used, int(bytes_)]
    assert moved == worst.sectors
    assert sum(used) == len(np.unique(worst.addresses[worst.active])) * worst.itemsize
    assert len(marked(ax, "label")) <= plots.MAX_MEMORY_LINES
    assert f"{worst.sectors} sector" in ax.get_title(loc="left")


def test_sectors_of_one_element_off_and_of_elements_that_cross_lines():
    ax = plots.sectors(one("global", request("x", "global", T + 1, (1000,))))
    assert [written.get_text() for written in marked(ax, "lanes")] == [str(lane) for lane in T]
    assert [written.get_text() for written in marked(ax, "label")] == ["x[1] … [31]", "x[32]"]
    odd = request("x", "global", T, (1000,))
    odd = replace(odd, addresses=odd.addresses + 2, sectors=5)
    assert [
        t.get_text().split()[0] for t in marked(plots.sectors(one("global", odd)), "used")
    ] == "30 32 32 32 2".split()


def test_sectors_of_local_memory_lie_side_by_side_for_the_lanes():
    same = replace(request("mine", "local", T * 0 + 3, (8,)), sectors=4, ideal_sectors=4)
    ax = plots.sectors(one("local", same))
    assert [written.get_text() for written in marked(ax, "lanes")] == [str(lane) for lane in T]
    assert [written.get_text() for written in marked(ax, "label")] == ["mine[3]"]
    apart = replace(request("mine", "local", T % 8, (8,), np.float64), sectors=64, ideal_sectors=8)
    ax = plots.sectors(one("local", apart))
    assert len([patch for patch in ax.patches if patch.get_gid() == "sector"]) + 4 * 11 == 64


DRAWINGS = {
    "banks": lambda: plots.banks(matmul()),
    "banks, 16 bytes": lambda: plots.banks(one("shared", request("s", "shared", T, (64,), complex))),
    "sectors": lambda: plots.sectors(copy()),
    "sectors, scattered": lambda: plots.sectors(copy(1234)),
}


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_figures_keep_inside_of_their_edges_and_say_that_counts_are_emulated(draw, monkeypatch):
    ax = draw()
    made = ax.get_figure(root=True)
    made.canvas.draw()
    for written in (*ax.texts, ax._left_title, *ax.get_legend().get_texts()):
        box = written.get_window_extent()
        assert box.x0 >= -1 and box.y0 >= 0 and box.x1 <= made.bbox.x1 and box.y1 <= made.bbox.y1, written
    assert made.get_supxlabel() == plot.EMULATED
    monkeypatch.setattr(plot.style, "on_gpu", lambda: True)
    monkeypatch.setattr(plot.style.device, "info", lambda: type("Info", (), {"name": "NVIDIA H200"}))
    assert draw().get_figure().get_supxlabel() == plot.EMULATED
    assert plots.lines(matmul())[0].get_figure().get_supxlabel() == plot.EMULATED


def test_lines_show_the_cost_of_each_line_over_the_ideal():
    shared, others = plots.lines(matmul())
    assert [t.get_text() for t in shared.get_yticklabels()] == [
        "9  tile[tx, ty] = a[row, step * 16 + tx]",
        "12  total += tile[k, ty] * b[step * 16 + k, col]",
    ]
    ideal, more = shared.containers
    assert [bar.get_width() for bar in ideal] == [512, 8192] and [bar.get_width() for bar in more] == [3584, 0]
    assert [bar.get_width() for bar in others.containers[0]] == [2048, 16384, 512]
    assert len(others.containers) == 1, "nothing is wasted"
    assert [segment[0, 0] for segment in others.collections[0].get_segments()] == [512, 8192, 128]
    assert len(plots.lines(copy())) == 1


def test_the_request_to_draw_can_be_chosen():
    made = matmul()
    assert "line 9, store tile" in plots.banks(made).get_title(loc="left")
    assert "line 12, load tile: 1 wavefront, no conflict" in plots.banks(made, 12).get_title(loc="left")
    assert "line 12, load b" in plots.sectors(made, line=np.int64(12)).get_title(loc="left")
    assert "store out" in plots.sectors(copy(), 5, array="out").get_title(loc="left")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: plots.banks(matmul(), 14),
            ValueError,
            "line is 14, which has no access to shared memory; .*: 9 and 12",
        ),
        (lambda: plots.banks(copy()), ValueError, "copy has no access to shared memory"),
        (
            lambda: plots.banks(matmul(), 9, "b"),
            ValueError,
            "array is 'b'; arrays in shared memory that line 9 .*: tile",
        ),
        (lambda: plots.sectors(copy(), array="y"), ValueError, "array is 'y'.* the kernel accesses: out, x"),
        (lambda: plots.sectors(matmul(), 3), ValueError, "line is 3, which has no access to global or local"),
        (lambda: plots.sectors(matmul(), "9"), TypeError, "line is '9'"),
        (lambda: plots.banks(matmul(), True), TypeError, "line is True"),
        (lambda: plots.banks(matmul(), 9, 1), TypeError, "array is 1"),
        (lambda: plots.lines(replace(copy(), accesses=[])), ValueError, "accesses no memory"),
        (lambda: plots.lines(3), TypeError, "trace is 3; it must be a trace"),
        (lambda: plots.banks(None), TypeError, "trace is None"),
        (lambda: text.render("x"), TypeError, "trace is 'x'"),
        (lambda: page.render(copy), TypeError, "trace is <function copy"),
        (lambda: comparison.compare(copy(), 1), TypeError, "second is 1; it must be a trace"),
        (lambda: comparison.compare([], copy()), TypeError, r"first is \[\]"),
    ],
)
def test_errors_say_what_is_allowed(call, error, words):
    with pytest.raises(error, match=words):
        call()
    assert not plt.get_fignums()


# -- comparison -------------------------------------------------------------------------------------


def rows(section):
    return {row[0]: row[1:] for row in section.rows}


def test_compare_lays_totals_and_lines_side_by_side():
    both = comparison.compare(matmul(), matmul(conflict=False))
    totals, lines = both.tables
    assert rows(totals)["shared store: wavefronts"] == ["4,096", "512", "0.125 x"]
    assert rows(totals)["shared store: wavefronts more than needed"] == ["3,584", "0", "gone"]
    assert rows(totals)["global load: sectors"] == ["18,432", "18,432", "="]
    assert rows(totals)["FP32"] == ["524,288", "524,288", "="]
    changed = next(row for row in lines.rows if row[3] == "store tile")
    assert changed[4:] == ["4,096", "512", "512", "512", "0.125 x"]
    assert [row[2] for row in lines.rows[:2]] == [
        "tile[tx, ty] = a[row, step * 16 + tx]",
        "→ tile[ty, tx] = a[row, step * 16 + tx]",
    ]
    assert len(lines.rows) == 5
    assert both.names == ("first", "second") and lines.header[4:6] == ["first", "second"]
    printed = str(both)
    assert max(map(len, printed.splitlines())) <= 120 and "0.125 x" in printed
    tables = Page(both._repr_html_()).tables
    assert [[cells for _, cells in table[1:]] for table in tables] == [totals.rows, lines.rows]


def test_compare_of_different_kernels_has_no_lines():
    both = comparison.compare(race(), copy())
    (totals,) = both.tables
    assert totals.header == ["", race().kernel, copy().kernel, "ratio"]
    assert str(both).startswith(f"{race().kernel}[")
    assert rows(totals)["findings"] == ["1", "0", "gone"]
    assert rows(totals)["global load: sectors"] == ["800", "1,024", "1.28 x"]
    assert rows(totals)["branches: warps split"] == ["0", "1", "new"]


def test_compare_pairs_lines_that_were_moved_apart():
    before = matmul()
    shifted = [replace(a, line=a.line + 7 * (a.line > 10)) for a in before.accesses]
    lines = comparison.compare(before, replace(before, accesses=shifted)).tables[1]
    assert [(row[0], row[1]) for row in lines.rows] == [("9", "9"), ("", ""), ("12", "19"), ("", ""), ("14", "21")]
    fewer = comparison.compare(before, replace(before, accesses=before.accesses[:4])).tables[1]
    assert fewer.rows[-1][:2] == ["14", ""] and fewer.rows[-1][4:] == ["512", "", "512", "", "gone"]


# -- tables -----------------------------------------------------------------------------------------


def test_a_table_wraps_its_widest_column_of_words_and_no_figures():
    rows = [["copy", "word " * 40, "12,345"], ["", "short", ""]]
    table = Table(["kernel", "remark", "us"], rows, "Times", code=["kernel"])
    lines = str(table).splitlines()
    assert lines[0] == "Times" and max(map(len, lines)) == 120 and len(lines) == 5
    assert lines[1].startswith("  kernel  remark") and lines[1].endswith("    us") and lines[2].endswith("12,345")
    assert " ".join(" ".join(lines[2:4]).split()) == f"copy {'word ' * 20}12,345 {'word ' * 20}".strip()
    assert "<code>copy</code>" in table.html() and "Times" not in table.html()
    assert table._repr_html_().startswith("<p><b>Times</b></p><table>")
    assert str(Table(["n"], [])) == "n" and "-" not in str(Table(["a", "b"], [["1", "2"]], words=["b"]))


# -- a real trace -----------------------------------------------------------------------------------


@cuda.jit
def transpose(x, out):
    tile = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    mine = cuda.local.array(2, float32)
    mine[tx % 2] = x[ty, tx]
    tile[tx, ty] = mine[tx % 2]
    out[ty, tx] = tile[ty, tx]


def test_views_of_what_the_emulator_records():
    x = np.arange(1024, dtype=np.float32).reshape(32, 32)
    made = trace(transpose[1, (32, 32)], x, np.zeros_like(x))
    report = str(made)
    first = made.source[0]
    assert "race, line" in report and max(map(len, report.splitlines())) <= 120
    assert [number - first for number, _ in listing(report)] == [5, 5, 6, 6, 7, 7]
    assert len(Page(made._repr_html_()).tables[1]) > len(made.accesses)
    ax = made.plot_banks(first + 6)
    assert "32 wavefronts where 1 would do" in ax.get_title(loc="left")
    assert [written.get_text() for written in marked(ax, "label")] == [f"tile[{t}, 0]" for t in T]
    for line, array in ((5, "x"), (5, "mine"), (6, "mine"), (7, "out")):
        ax = made.plot_sectors(first + line, array)
        chosen = max((a for a in made.accesses if a.line == first + line and a.array == array), key=facts.wasted)
        assert len([patch for patch in ax.patches if patch.get_gid() == "sector"]) == chosen.worst.sectors
    assert len(made.plot_lines()) == 2
    assert str(made.compare(made)).count(" =\n") > 8
