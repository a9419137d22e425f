"""What a view shows (views.md), byte by byte: slow, and told as the page tells it."""
from __future__ import annotations

from itertools import product
from types import SimpleNamespace as Record
from typing import Iterable, List, NamedTuple, Sequence, Tuple

from . import wire
from .wire import Extent


class Tile(NamedTuple):
    """The offset of each byte of data, in the order of the data, and the bounds."""

    data: List[int]
    lower: int
    upper: int

    @property
    def extent(self) -> int:
        """Tell how far it is from one tile to the next."""
        return self.upper - self.lower


def tile_of(nodes: Sequence[Record]) -> Tile:
    """Lay out all nodes; the last is the view."""
    tiles: List[Tile] = []
    for item in nodes:
        tiles.append(_lay_out(item, tiles))
    return tiles[-1]


def _lay_out(item: Record, tiles: List[Tile]) -> Tile:
    """Lay out a node, whose children are laid out already ([VIEW-3])."""
    if item.kind == wire.BYTES_NODE:
        return Tile(list(range(item.length)), 0, item.length)
    if item.kind == wire.STRUCT:
        return _copies((tiles[entry.of], entry.block_length, entry.displacement) for entry in item.entries)
    of = tiles[item.of]
    if item.kind == wire.CONTIGUOUS:
        return _copies([(of, item.count, 0)])
    if item.kind in (wire.VECTOR, wire.HVECTOR):
        stride = item.stride * (of.extent if item.kind == wire.VECTOR else 1)
        return _copies((of, item.block_length, number * stride) for number in range(item.count))
    if item.kind in (wire.INDEXED, wire.HINDEXED, wire.INDEXED_BLOCK, wire.HINDEXED_BLOCK):
        unit = of.extent if item.kind in (wire.INDEXED, wire.INDEXED_BLOCK) else 1
        of_node = getattr(item, "block_length", 0)
        return _copies((of, getattr(entry, "block_length", of_node), entry.displacement * unit)
                       for entry in item.entries)
    if item.kind == wire.RESIZED:
        return Tile(of.data, item.lower, item.lower + item.extent)
    return _array(item, of)


def _copies(blocks: Iterable[Tuple[Tile, int, int]]) -> Tile:
    """Put blocks of copies together: what, how many, where; blocks of nothing have no bounds."""
    copies = [(of, at + number * of.extent) for of, count, at in blocks for number in range(count)]
    data = [at + offset for of, at in copies for offset in of.data]
    return Tile(data, min((at + of.lower for of, at in copies), default=0),
                max((at + of.upper for of, at in copies), default=0))


def _array(item: Record, of: Tile) -> Tile:
    """Take the elements that a part, or a process, has of an array. The tile is all of the array."""
    chosen = _dealt(item) if item.kind == wire.DARRAY else [
        range(entry.start, entry.start + entry.subsize) for entry in item.entries]
    sizes = [entry.size for entry in item.entries]
    if item.order == wire.ORDER_FORTRAN:
        chosen, sizes = chosen[::-1], sizes[::-1]
    elements = []
    for indexes in product(*chosen):
        element = 0
        for index, size in zip(indexes, sizes):
            element = element * size + index
        elements.append((of, 1, element * of.extent))
    whole = of.extent
    for size in sizes:
        whole *= size
    return Tile(_copies(elements).data, 0, whole)


def _dealt(item: Record) -> List[List[int]]:
    """Deal each dimension out: the elements that the process has. The grid is in the order of C."""
    coordinates, rest = [], item.process
    for entry in reversed(item.entries):
        coordinates.append(rest % entry.grid_processes)
        rest //= entry.grid_processes
    chosen = []
    for entry, coordinate in zip(item.entries, reversed(coordinates)):
        default = {wire.NOT_DEALT: entry.size, wire.BLOCK: -(-entry.size // entry.grid_processes), wire.CYCLIC: 1}
        block = entry.block or default[entry.distribution] or 1
        chosen.append([index for index in range(entry.size) if index // block % entry.grid_processes == coordinate])
    return chosen


def extents(nodes: Sequence[Record], displacement: int, place: int, length: int) -> List[Extent]:
    """Expand a range of the data of all tiles to extents of the file ([VIEW-1], [VIEW-2])."""
    tile, found = tile_of(nodes), []
    for byte in range(place, place + length):
        number, within = divmod(byte, len(tile.data))
        offset = displacement + number * tile.extent + tile.data[within]
        if found and found[-1].offset + found[-1].length == offset:
            found[-1] = Extent(found[-1].offset, found[-1].length + 1)
        else:
            found.append(Extent(offset, 1))
    return found
