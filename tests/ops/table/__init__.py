"""Every public function and method of ops beside its reference. tests/ops/test_table.py runs them all."""

from tests.ops.table import actions, distributions, exploration, losses, returns, rows, td, transforms, trees
from tests.ops.world import Entry

PARTS: dict[str, dict[str, Entry]] = {
    part.__name__.rsplit(".", 1)[1]: part.TABLE
    for part in (returns, td, losses, rows, transforms, exploration, distributions, actions, trees)
}
TABLE: dict[str, Entry] = {name: entry for part in PARTS.values() for name, entry in part.items()}
assert len(TABLE) == sum(len(part) for part in PARTS.values())
