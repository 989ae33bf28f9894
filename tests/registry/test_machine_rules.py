"""The machine under random histories: every promise of World.check holds after every input, and nobody is forgotten."""

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from registry.world import World

from fakes.resident import MIB, entry
from inferd_server.core.errors import engine_failed, model_load_failed
from inferd_server.core.model import ContentionPolicy, Strategy, UnloadMode
from inferd_server.registry import inputs
from inferd_server.registry.lease import LeaseRequest
from inferd_server.registry.policy import RegistryLimits

NAMES = ("a", "b", "c", "d", "e", "f")
SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 7, "f": 10}
names = st.sampled_from(NAMES)
policies = st.builds(
    ContentionPolicy,
    st.sampled_from(Strategy),
    st.sampled_from([0.5, 3.0, 20.0]),
    st.sampled_from([0.0, 0.25, 6.0]),
)


class MachineRules(RuleBasedStateMachine):
    """Requests, cancels, loads, unloads, reloads, deaths, failures and time, in any order."""

    @initialize(
        residency=st.sampled_from([0.0, 2.0]),
        drain=st.sampled_from([0.0, 1.0, 5.0]),
        pinned=st.sets(st.sampled_from(("a", "b")), max_size=1),
        idle=st.sampled_from([0.0, 4.0]),
    )
    def begin(self, residency: float, drain: float, pinned: set[str], idle: float) -> None:
        limits = RegistryLimits(
            10 * MIB,
            ContentionPolicy(Strategy.WAIT),
            min_residency_seconds=residency,
            drain_busy_after_seconds=drain,
            load_timeout_seconds=30.0,
        )
        entries = [
            entry(
                name,
                mib,
                pinned=name in pinned,
                idle_unload_seconds=idle if name in "ac" else 0.0,
                is_estimate_stated=name in "ad",
            )
            for name, mib in SIZES.items()
        ]
        self.world = World(entries, limits)

    @rule(
        name=names,
        policy=policies,
        priority=st.sampled_from([0, 0, 0, 5, -100, 100]),
        preemptible=st.sampled_from([True, True, True, False]),
        interrupted=st.sampled_from([False, False, False, True]),
        load_if_needed=st.sampled_from([True, True, True, False]),
        work=st.integers(0, 3),
    )
    def ask(self, name, policy, priority, preemptible, interrupted, load_if_needed, work) -> None:
        self.world.ask(LeaseRequest(name, policy, priority, preemptible, load_if_needed, interrupted, lambda: work))

    @precondition(lambda self: self.world.leases)
    @rule(data=st.data())
    def release(self, data) -> None:
        self.world.release(data.draw(st.sampled_from(sorted(self.world.leases))))

    @precondition(lambda self: self.world.leases and self.world.interrupted)
    @rule()
    def interrupted_requests_come_back(self) -> None:
        """As serving does: the lease is given back, and a ticket taken that waits whatever its strategy."""
        for number, (key, request) in list(self.world.leases.items()):
            if key in self.world.interrupted:
                record = self.world.granted[number].record
                self.world.release(number)
                again = LeaseRequest(
                    request.model, request.policy, request.priority, interrupted=True, preemptions=record.preemptions
                )
                self.world.ask(again)

    @precondition(lambda self: self.world.asked)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.asked))))

    @precondition(lambda self: self.world.checks)
    @rule(data=st.data(), ok=st.sampled_from([True, True, True, False]), mib=st.sampled_from([0, 0, 0, 1, 4, 8, 12]))
    def finish_check(self, data, ok, mib) -> None:
        number = data.draw(st.sampled_from(sorted(self.world.checks)))
        self.world.finish_check(number, None if ok else model_load_failed("x", "a check"), mib * MIB or None)

    @precondition(lambda self: self.world.loads)
    @rule(data=st.data(), outcome=st.sampled_from(["ok", "ok", "ok", "larger", "fails"]))
    def end_load(self, data, outcome) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.loads)))
        if outcome == "fails" or (self.world.loads[key] and data.draw(st.booleans())):
            self.world.fail_load(key, model_load_failed(key[0], "a load") if outcome == "fails" else None)
        else:
            more = MIB if outcome == "larger" else 0
            self.world.finish_load(key, self.world.machine.residency.ledger.charged_nbytes(key) + more)

    @precondition(lambda self: self.world.unloads)
    @rule(data=st.data())
    def end_unload(self, data) -> None:
        self.world.finish_unload(data.draw(st.sampled_from(sorted(self.world.unloads))))

    @precondition(lambda self: self.world.residents)
    @rule(data=st.data())
    def die(self, data) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.residents)))
        self.world.die(key, engine_failed(key[0]))

    @rule(
        name=names,
        policy=policies,
        pin=st.sampled_from([None, None, True, False]),
        reload=st.booleans(),
        detached=st.booleans(),
    )
    def load(self, name, policy, pin, reload, detached) -> None:
        self.world.load(name, policy, pin=pin, reload=reload, detached=detached)

    @rule(name=names, mode=st.sampled_from(UnloadMode), seconds=st.sampled_from([None, 0.5, 3.0]))
    def unload(self, name, mode, seconds) -> None:
        self.world.unload(name, mode, seconds)

    @rule(removed=st.sets(names, max_size=2))
    def replace_entries(self, removed) -> None:
        """A new configuration without some of the models; the next one has them again."""
        entries = [entry(name, mib) for name, mib in SIZES.items() if name not in removed]
        self.world.tell(inputs.EntriesReplaced(tuple(entries)))

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0, 30.0, 61.0]))
    def advance(self, seconds) -> None:
        self.world.advance(seconds)

    @rule()
    def finish_all_that_is_under_way(self) -> None:
        self.world.run()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle_down()


# Shrinking takes long, and whoever plants bugs only wants to know whether they are caught.
PHASES = (Phase.generate,) if os.environ.get("INFERD_TESTS_SHRINK") == "no" else tuple(Phase)

MachineRules.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)
TestMachineRules = MachineRules.TestCase
