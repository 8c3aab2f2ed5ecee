"""The first program on another host, which is sent as text and imports nothing of distrun."""

from distrun.runner.protocol import frames, handshake
from distrun.runner.shipping import first_stage


def test_it_speaks_the_protocol_of_agents():
    assert (first_stage.MAGIC, first_stage.HEADER.format) == (handshake.MAGIC, frames.HEADER.format)
    assert (first_stage.HELLO, first_stage.SHIPMENT) == (frames.FrameKind.HELLO, frames.FrameKind.SHIPMENT)


def test_a_distrun_that_cannot_be_read_is_another_one(tmp_path, monkeypatch):
    (tmp_path / "distrun").mkdir()
    (tmp_path / "distrun" / "__init__.py").write_text("")
    wanted = first_stage.digest(str(tmp_path / "distrun"))
    assert first_stage.is_intact(str(tmp_path / "distrun"), wanted)

    def unreadable(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", unreadable)
    assert not first_stage.is_intact(str(tmp_path / "distrun"), wanted)
    monkeypatch.undo()
    assert not first_stage.is_intact(str(tmp_path / "none"), wanted)
