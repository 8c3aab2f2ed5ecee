"""Parts of a timeline: ranks that begin at once do not take each other's for those of ranks that are gone."""

import fcntl

from distrun.tracing.parts import part
from distrun.tracing.parts.part import PartHeader, PartWriter, parts_in


def test_a_part_is_locked_before_others_can_see_it(tmp_path, monkeypatch):
    seen, lock = [], fcntl.lockf

    def lockf(*arguments):
        seen.append(parts_in(tmp_path))
        lock(*arguments)

    monkeypatch.setattr(part.fcntl, "lockf", lockf)
    header = PartHeader(3, "alpha", "clock", 0, 0, 0)
    first = PartWriter(tmp_path, header)
    assert seen == [[]]
    assert parts_in(tmp_path) == [tmp_path / "rank-000003"]
    assert part.Part(first.path).header == header
    inode = part.inode(first.path)
    second = PartWriter(tmp_path, header)  # that of the next job
    assert part.inode(second.path) not in (0, inode)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-000003"]
    for writer in (first, second):
        writer.end()
