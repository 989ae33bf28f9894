"""Bugs that break a promise of docs/semantics.md, whatever file keeps it."""

from mutations.bug import Bug

BUGS = (
    Bug(
        "evicts most recently used first",
        "room.py",
        "room.idle.sort(key=lambda",
        "room.idle.sort(reverse=True, key=lambda",
    ),
    Bug(
        "spares least recently used first", "planner.py", "for candidate in reversed(taken):", "for candidate in taken:"
    ),
    Bug("spares nobody", "planner.py", "if candidate.nbytes <= surplus:", "if candidate.nbytes < 0:"),
    Bug("plans one byte short", "planner.py", "surplus = -missing_nbytes", "surplus = 1 - missing_nbytes"),
    Bug(
        "later tickets delay the head",
        "placement.py",
        "if head is None or not self._delays(",
        "if True or not self._delays(",
    ),
    Bug(
        "nobody passes the head",
        "placement.py",
        "if head is None or not self._delays(",
        "if head is None and not self._delays(",
    ),
    Bug(
        "evicts the young",
        "room.py",
        "if youth_ends_at <= now and not victim.instance.leases:",
        "if not victim.instance.leases:",
    ),
    Bug(
        "interrupts the young",
        "room.py",
        "    if youth_ends_at <= now:\n        is_loaded",
        "    if True:\n        is_loaded",
    ),
    Bug(
        "evicts the pinned",
        "room.py",
        "if not model.pinned and model.successor is None:",
        "if model.successor is None:",
    ),
    Bug("interrupts those nobody may", "room.py", "    if instance.unpreemptible:\n        return math.inf\n", ""),
    Bug(
        "never spares a request from its rival", "policy.py", "if len(recent) <= PREEMPTIONS_BY_ONE_RIVAL:", "if True:"
    ),
    Bug(
        "highest priority is preempted first",
        "room.py",
        "max((record.request.priority for",
        "-max((record.request.priority for",
    ),
    Bug(
        "most work is lost first",
        "room.py",
        "sum(record.request.work_done() for",
        "-sum(record.request.work_done() for",
    ),
    Bug(
        "freed room is offered to anybody",
        "room.py",
        "return max(0, claim.need_nbytes -",
        "return 0 * max(0, claim.need_nbytes -",
    ),
    Bug("no drain for fairness", "placement.py", "return due_at <= now", "return False"),
    Bug(
        "a drain never becomes a preemption",
        "placement.py",
        "                if moment <= now:\n                    self._residency.preempt",
        "                if False:\n                    self._residency.preempt",
    ),
    Bug(
        "a due head is passed by preemptions",
        "placement.py",
        "return not self._is_due(head, now)",
        "return True",
    ),
    Bug(
        "a head that waiting can't help holds others up",
        "placement.py",
        "return self._residency.ledger.limit_nbytes - fixed_nbytes >= model.need_nbytes",
        "return True",
    ),
    Bug(
        "a model that drains holds others up",
        "placement.py",
        "if model.state in (ModelState.DRAINING, ModelState.PREEMPTING):\n            return False",
        "if False:\n            return False",
    ),
    Bug(
        "evicts before the check",
        "placement.py",
        "if model.check is not Check.PASSED or model.retiring:",
        "if model.retiring:",
    ),
    Bug(
        "loads while the last engine lingers",
        "placement.py",
        "return model.current.engine is EngineLife.ABSENT",
        "return True",
    ),
    Bug("interrupted tickets fail like others", "policy.py", "if interrupted:", "if False:"),
    Bug(
        "preempt never fails",
        "policy.py",
        "fails_when_blocked=strategy is Strategy.PREEMPT",
        "fails_when_blocked=False",
    ),
    Bug("aging favours the young", "policy.py", "return arrived_at - priority", "return -arrived_at - priority"),
    Bug("the backoff never grows", "policy.py", "2.0 ** min(failures - 1, 30)", "2.0 ** 0"),
    Bug(
        "a victim is not returned to service",
        "residency.py",
        "                self.return_to_service(instance, now)\n\n    def _forget",
        "                pass\n\n    def _forget",
    ),
    Bug(
        "a drain of the server ends interrupted requests",
        "machine.py",
        "            if not ticket.is_interrupted:",
        "            if True:",
    ),
    Bug(
        "closes under a lease",
        "residency.py",
        "        if not instance.leases:\n            self.change(instance, Event.UNLOAD_STARTED",
        "        if True:\n            self.change(instance, Event.UNLOAD_STARTED",
    ),
    Bug(
        "releases bytes when the unload starts",
        "residency.py",
        "        instance.engine = EngineLife.CLOSING\n",
        "        instance.engine = EngineLife.CLOSING\n        self.ledger.release(instance.key)\n",
    ),
    Bug(
        "charges the estimate only",
        "ledger.py",
        "max(self._entries[key].nbytes, measured_nbytes)",
        "self._entries[key].nbytes",
    ),
    Bug(
        "a failed load keeps its waiters",
        "loads.py",
        "            if not reloads_only or ticket.wants_reload:",
        "            if ticket.wants_reload:",
    ),
    Bug(
        "a failure is never forgotten",
        "residency.py",
        "        model.failure = None\n        self.counters.loads += 1",
        "        self.counters.loads += 1",
    ),
    Bug("a load without tickets is never abandoned", "room.py", "    room.idle += unwanted\n", ""),
    Bug(
        "a load with tickets is abandoned",
        "room.py",
        "and not model.pinned and model.name not in wanted:",
        "and not model.pinned:",
    ),
    Bug(
        "a load never times out",
        "deadlines.py",
        "self._alarms.set(now + self._residency.limits.load_timeout_seconds, LoadDeadline(name, generation))",
        "pass",
    ),
    Bug(
        "tickets time out while their model loads",
        "deadlines.py",
        "return ticket is not None and not self._residency.models[ticket.model].is_loading",
        "return ticket is not None",
    ),
    Bug(
        "a pinned model is unloaded when idle",
        "deadlines.py",
        "<= 0 or model.pinned or model.successor",
        "<= 0 or model.successor",
    ),
    Bug(
        "idle time counts from the load",
        "deadlines.py",
        "max(instance.last_used_at + seconds",
        "max(instance.loaded_at + seconds",
    ),
    Bug(
        "a drain order serves later tickets too",
        "unloading.py",
        "return min((order.last_ticket for",
        "return max((math.inf for",
    ),
    Bug(
        "an unload answers before the end",
        "unloading.py",
        "if not order.generations and not order.waits_for_load]",
        "if not order.waits_for_load]",
    ),
    Bug(
        "a lost growth is not made room for",
        "loads.py",
        "if growth <= max(0, unowned_nbytes(self._residency)):",
        "if growth <= 0:",
    ),
    Bug(
        "an older generation still admits",
        "residency.py",
        "        if older.state is ModelState.LOADED:\n            self.drain(older, Cause.RELOAD, now)",
        "        pass",
    ),
)
