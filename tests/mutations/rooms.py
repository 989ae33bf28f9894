"""Bugs room by room: in each pure file of the registry, what a slip of the hand could break."""

from mutations.bug import Bug

STATE = (
    Bug(
        "a model that drains can't return",
        "state.py",
        "Event.RETURNED: ModelState.LOADED,\n            Event.PREEMPTION_STARTED",
        "Event.PREEMPTION_STARTED",
    ),
    Bug(
        "a failed load looks like none",
        "state.py",
        "Event.LOAD_FAILED: ModelState.FAILED",
        "Event.LOAD_FAILED: ModelState.UNLOADED",
    ),
    Bug(
        "an abandoned load has ended at once",
        "state.py",
        "Event.ABANDONED: ModelState.UNLOADING",
        "Event.ABANDONED: ModelState.UNLOADED",
    ),
    Bug(
        "impossible changes pass",
        "state.py",
        'raise ImpossibleChange(f"{event} in state {state}") from None',
        "return state",
    ),
)

LEDGER = (
    Bug("charges beyond the budget", "ledger.py", "if growth > self.available_nbytes:", "if False:"),
    Bug("remembers the sum too long", "ledger.py", "        self._used = None\n        return", "        return"),
    Bug("reserves nothing", "ledger.py", "if not entry.settled)", "if entry.settled)"),
    Bug(
        "charges twice",
        "ledger.py",
        "        if key in self._entries:\n            raise",
        "        if False:\n            raise",
    ),
)

TICKETS = (
    Bug("everybody is first", "tickets.py", "return bisect_left(self._places, ticket.place)", "return 0"),
    Bug(
        "the last ticket's priority counts",
        "tickets.py",
        "self._places[0][1]].priority",
        "self._places[-1][1]].priority",
    ),
    Bug(
        "one who left may still preempt",
        "tickets.py",
        "while self._preempting and self._preempting[0][1] not in self.tickets:",
        "while False:",
    ),
    Bug(
        "fairness counts from the youngest",
        "tickets.py",
        "next(iter(self.tickets.values())).arrived_at",
        "next(reversed(self.tickets.values())).arrived_at",
    ),
    Bug(
        "tickets are served as they arrived",
        "tickets.py",
        "[self.tickets[number] for _, number in self._places]",
        "list(self.tickets.values())",
    ),
    Bug(
        "those who preempt are patient",
        "tickets.py",
        "if ticket.patience.fails_at_once or ticket.patience.fails_when_blocked:",
        "if ticket.patience.fails_at_once:",
    ),
    Bug(
        "groups stand in the order of their names",
        "tickets.py",
        "tuple(self._heads) if name",
        "sorted(self._heads, key=lambda head: head[1]) if name",
    ),
)

POLICY = (
    Bug(
        "wait_then_preempt never gives up",
        "policy.py",
        "frozenset({Strategy.WAIT_THEN_FAIL, Strategy.WAIT_THEN_PREEMPT})",
        "frozenset({Strategy.WAIT_THEN_FAIL})",
    ),
    Bug(
        "wait_then_preempt does not wait",
        "policy.py",
        "arrived_at + policy.preempt_after_seconds",
        "arrived_at",
    ),
    Bug("every rival is the same", "policy.py", "if by == rival and at >", "if at >"),
    Bug(
        "spares a request for too long",
        "policy.py",
        "sorted(recent)[-1 - PREEMPTIONS_BY_ONE_RIVAL]",
        "sorted(recent)[-1]",
    ),
    Bug("the backoff has no end", "policy.py", "min(LONGEST_BACKOFF_SECONDS, ", "max(0.0, "),
    Bug("priority makes one wait", "policy.py", "arrived_at - priority *", "arrived_at + priority *"),
)

PLANNER = (
    Bug(
        "nothing delays the head",
        "planner.py",
        "return enough < len(awaited.sums) and awaited.sums[enough] < missing_then_nbytes",
        "return False",
    ),
    Bug(
        "what fits beside the head delays it",
        "planner.py",
        "    if missing_then_nbytes <= 0:\n        return False",
        "    if missing_then_nbytes <= 0:\n        return True",
    ),
    Bug(
        "busy instances end one at a time",
        "planner.py",
        "sums |= {total + nbytes for total in sums}",
        "sums |= {nbytes}",
    ),
    Bug(
        "nothing delays the head where many run",
        "planner.py",
        "return missing_nbytes <= 0 or awaited.smallest < missing_then_nbytes",
        "return False",
    ),
)

PLACEMENT = (
    Bug("looks at one group only", "placement.py", "if looked_at > LOOKAHEAD_GROUPS:", "if looked_at > 1:"),
    Bug(
        "promises the same bytes twice",
        "placement.py",
        "self._spoken_for += model.need_nbytes",
        "self._spoken_for += 0",
    ),
    Bug("drains though fairness is off", "placement.py", "if patience_seconds <= 0:", "if False:"),
    Bug("fails who may hope, keeps who may not", "placement.py", "if not blocked_for_good:", "if blocked_for_good:"),
    Bug(
        "takes from the head what is idle",
        "placement.py",
        "if victims is None or not any(victim.instance.leases for victim in victims):",
        "if victims is None:",
    ),
    Bug(
        "a reload waits for room beside it",
        "placement.py",
        "if model.state is ModelState.LOADED and self._drain_for_reload(",
        "if False and self._drain_for_reload(",
    ),
    Bug("nobody drains", "placement.py", "if head is None and self._is_due(group, now) and", "if False and"),
    Bug(
        "claims are never carried out",
        "placement.py",
        "        self._advance_claims(now)\n        head",
        "        head",
    ),
)

ROOM = (
    Bug(
        "claimed bytes come to everybody",
        "room.py",
        "elif instance.claimed_by or instance.state in",
        "elif instance.state in",
    ),
    Bug(
        "what grows owns nothing",
        "room.py",
        "return residency.ledger.available_nbytes - owed - growing",
        "return residency.ledger.available_nbytes - owed",
    ),
    Bug("nobody wakes when a youth ends", "room.py", "elif youth_ends_at < room.youth_ends_at:", "elif False:"),
    Bug(
        "a load on its way is pinned by nobody",
        "room.py",
        "return model.pinned and instance.state is ModelState.LOADING",
        "return False",
    ),
)

MACHINE = (
    Bug(
        "a ticket that preempts is no news",
        "machine.py",
        "return ticket.patience.preempts_at <= now < group.preempts_at",
        "return False",
    ),
    Bug(
        "loads for those who asked not to",
        "machine.py",
        "if not request.load_if_needed and not request.interrupted:",
        "if False:",
    ),
    Bug("tries again within the backoff", "machine.py", "if lingers or now < failure.retry_at:", "if lingers:"),
    Bug(
        "those too large for the budget wait",
        "machine.py",
        "if model.need_nbytes > self.limits.budget_nbytes:",
        "if False:",
    ),
    Bug(
        "waits for others' loads count as one's own",
        "machine.py",
        "max(asked_at, instance.load_started_at)",
        "instance.load_started_at",
    ),
    Bug(
        "the planner asks for no wake",
        "machine.py",
        "            self._plan_at = self.placement.plan(now) if",
        "            self._plan_at = max(math.inf, self.placement.plan(now)) if",
    ),
    Bug(
        "the last who leaves leaves his load behind",
        "machine.py",
        "            self.residency.unwant(self.residency.models[ticket.model], now)\n",
        "",
    ),
    Bug("a lease comes back twice", "machine.py", "self._leases.pop(lease, None)", "self._leases.get(lease)"),
    Bug(
        "a removed model still answers",
        "machine.py",
        "None if model is None or model.removed else",
        "None if model is None else",
    ),
)

ALARMS = (
    Bug("rings too late", "alarms.py", "if self.next_at() <= now:", "if self.next_at() < now:"),
    Bug(
        "rings for the dead",
        "alarms.py",
        "while self._heap and not self._is_live(",
        "while False and not self._is_live(",
    ),
)

RESIDENCY = (
    Bug(
        "what was given back last is evicted first",
        "residency.py",
        "        instance.unpreemptible -= not record.request.preemptible\n        instance.last_used_at = now\n",
        "        instance.unpreemptible -= not record.request.preemptible\n",
    ),
    Bug("preemptions are forgotten", "residency.py", "record.preemptions += ((rival, now),)", "pass"),
    Bug("interrupted for good", "residency.py", "        if interrupted:\n", "        if False:\n"),
    Bug(
        "a claim trusts in a victim that died",
        "residency.py",
        "            self.drop_claim(instance.claimed_by, now)  #",
        "            pass  #",
    ),
    Bug("generations repeat", "residency.py", "model.generations += 1", "model.generations = 1"),
    Bug(
        "engines may die for ever",
        "residency.py",
        "model.deaths = 1 if long_lived else model.deaths + 1",
        "model.deaths = 1",
    ),
    Bug(
        "measured bytes are not charged",
        "residency.py",
        "self.ledger.settle(instance.key, instance.weights_nbytes)",
        "self.ledger.settle(instance.key, 0)",
    ),
    Bug("unpreemptible for ever", "residency.py", "instance.unpreemptible -= not record.request.preemptible", "pass"),
)

UNLOADING = (
    Bug(
        "IF_IDLE unloads what is pinned",
        "unloading.py",
        "if model.pinned and model.state not in",
        "if False and model.state not in",
    ),
    Bug("IF_IDLE unloads what runs", "unloading.py", "if running or model.state in", "if model.state in"),
    Bug(
        "a drain given up drains on",
        "unloading.py",
        "            self._residency.return_to_service(current, now)",
        "            pass",
    ),
    Bug("no bytes are told", "unloading.py", "order.freed_nbytes += freed_nbytes", "pass"),
    Bug(
        "a forced unload keeps its tickets",
        "unloading.py",
        "                self._refuse(ticket, error, now)",
        "                pass",
    ),
)

LOADS = (
    Bug(
        "a dead engine is closed under its leases",
        "loads.py",
        "        if not instance.leases:\n            self._residency.close_engine",
        "        if True:\n            self._residency.close_engine",
    ),
    Bug(
        "grows into what is owned",
        "loads.py",
        "if instance.growing_nbytes and unowned_nbytes(self._residency) >= 0:",
        "if instance.growing_nbytes:",
    ),
    Bug("an older check counts", "loads.py", " or model.checks != finished.check:", ":"),
    Bug(
        "unloads that failed are never answered",
        "loads.py",
        "        self._unloading.fail(model, failed.error)",
        "        pass",
    ),
    Bug(
        "a load that hangs is not told so",
        "loads.py",
        "        else:\n            self._residency.effects.append(AbandonLoad",
        "        elif False:\n            self._residency.effects.append(AbandonLoad",
    ),
    Bug("files beyond the budget are loaded", "loads.py", "if files_nbytes > limit_nbytes and", "if False and"),
)

LATE = (
    Bug("detached loads pile up", "machine.py", "self.queue.remove(earlier)", "pass"),
    Bug("a later detached load loses its place", "machine.py", "ticket.arrived_at = earlier.arrived_at", "pass"),
    Bug("a detached load forgets the earlier pin", "machine.py", "ticket.order.after(earlier.order)", "ticket.order"),
    Bug(
        "a detached load forgets the earlier patience",
        "machine.py",
        "ticket.patience.joined(earlier.patience)",
        "ticket.patience",
    ),
    Bug("claimants are not in the way", "placement.py", "(charged | self._residency.claims.keys())", "charged"),
    Bug(
        "the young are not in the way",
        "placement.py",
        "            return False\n        return instance.loaded_at + "
        "self._residency.limits.min_residency_seconds <= now",
        "            return False\n        return True",
    ),
    Bug(
        "drains are not interrupted",
        "placement.py",
        "for victim in [*room.busy, *room.draining]:",
        "for victim in room.busy:",
    ),
    Bug("pinned drains are interrupted", "room.py", "not (model.pinned or model.removed)", "not model.removed"),
    Bug(
        "drains of removed models are interrupted", "room.py", "not (model.pinned or model.removed)", "not model.pinned"
    ),
    Bug(
        "an older generation is interrupted",
        "room.py",
        "drains = instance.state is ModelState.DRAINING and instance is "
        "model.current\n    return drains and bool(model.orders)",
        "drains = instance.state is ModelState.DRAINING\n    return drains",
    ),
    Bug("a removed model serves again", "residency.py", "if model.orders or model.removed:", "if model.orders:"),
    Bug("stated sizes follow the files", "residency.py", "if not model.entry.is_estimate_stated:", "if True:"),
    Bug("old files' needs are remembered", "residency.py", "if nbytes != model.files_nbytes:", "if False:"),
    Bug(
        "what a load needed is forgotten",
        "residency.py",
        "            model.loaded_nbytes = nbytes",
        "            pass",
    ),
    Bug(
        "a claim outlives its configuration",
        "residency.py",
        "            return\n        self.drop_claim(model.name, now)\n        if model.check is not",
        "            return\n        if model.check is not",
    ),
    Bug(
        "every configuration ends claims",
        "residency.py",
        "if (older.engine, older.estimated_bytes) == (entry.engine, entry.estimated_bytes):",
        "if False:",
    ),
)
"""Promises that came after the others."""

BUGS = (
    *STATE, *LEDGER, *TICKETS, *POLICY, *PLANNER, *PLACEMENT, *ROOM, *MACHINE, *ALARMS, *RESIDENCY, *UNLOADING, *LOADS,
    *LATE,
)  # fmt: skip
