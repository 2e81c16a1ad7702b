"""``gpukit bench code``: loops, groups of instructions and occupancy, and the compiled products."""

import pytest

from bench import code

DISASSEMBLY = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FFMA R4, R5, R6, R4 ;
.L_x_2:
        /*0020*/              @!PT LDS RZ, [RZ] ;
        /*0030*/                   LDS.128 R4, [R9+0x10] ;
        /*0040*/                   FFMA R4, R5.reuse, R6, R4 ;
        /*0050*/              @!P1 FFMA R4, R5, R6, R4 ;
        /*0060*/                   LDGSTS.E.BYPASS.128 [R18], desc[UR6][R2.64], P0 ;
        /*0070*/               @P0 BRA `(.L_x_2) ;
        /*0080*/               @P1 BRA `(.L_x_1) ;
        /*0090*/                   EXIT ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_3);
"""


def test_the_loop_with_the_work_is_found_and_counted():
    loop = code.loop_of(DISASSEMBLY)
    assert len(loop) == 6 and loop[0].startswith("@!PT")
    counts = {group: count for group, count in code.mix(loop).items() if count}
    assert counts == {"multiply-add": 2, "shared, 16 bytes": 1, "copies": 1, "other": 1}
    assert code.loop_of("nothing") == []


def test_occupancy():
    assert code.occupancy(32, 0, 256) == (8, 1)
    assert code.occupancy(33, 0, 256) == (6, 0.75), "registers come in units of 8"
    assert code.occupancy(32, 60 * 1024, 256) == (3, 0.375)
    assert code.occupancy(237, 37248, 256) == (1, 0.125)


@pytest.mark.skipif(not code.find_tool("nvdisasm"), reason="needs nvdisasm")
def test_the_products_need_no_local_memory():
    for record in code.measure(report=lambda text: None):
        assert record["local"] == 0 and record["loop"]["local"] == 0 and record["loop"]["float64"] == 0
        if record["variant"] == "fast":
            assert record["loop"]["shared, less"] == 0


def test_products_on_tensor_cores_are_listed_with_the_kernels_of_their_tiles():
    from gpukit.matmul import loaded, shallow, sliced, small, warpgroups, warps

    groups = warpgroups.GroupTile
    tiles = {"warpgroups": groups, "turned": groups, "warps": warps.WarpTile, "small": small.SmallTile}
    tiles |= {"loaded": loaded.LoadedTile, "shallow": shallow.ShallowTile, "sliced": sliced.SlicedTile}
    found = code.tensor_products()
    assert {name for name, _ in found} == set(tiles) == set(code.TENSOR_PRODUCTS)
    assert all(type(tile) is tiles[name] for name, tile in found)
