"""Phases move forward only."""

from inferd_server.serving.lifecycle import Lifecycle, Phase


def test_subscribers_hear_each_step_forward_once() -> None:
    lifecycle, heard = Lifecycle(), []
    end = lifecycle.subscribe(heard.append)
    lifecycle.advance(Phase.READY)
    lifecycle.advance(Phase.READY)
    lifecycle.advance(Phase.DRAINING)
    end()
    lifecycle.advance(Phase.STOPPED)
    assert heard == [Phase.READY, Phase.DRAINING]


def test_a_late_ready_does_not_undo_a_drain() -> None:
    lifecycle = Lifecycle()
    lifecycle.advance(Phase.DRAINING)
    lifecycle.advance(Phase.READY)
    assert lifecycle.phase is Phase.DRAINING
