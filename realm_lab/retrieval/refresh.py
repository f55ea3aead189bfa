"""Refresh policies: at which step the index is embedded anew (section 4.5), each one small class.

A policy decides from plain numbers; nothing is embedded here and no clock is read. "At step s" means: after s finished
optimiser steps, before the next. A policy is registered under a name, or it is a user's own and
`pretrain.refresh.policy` says where: `package.module:Class`,
    class Doubling:
        def __init__(self, settings: Refresh): ...
        def wants_refresh(self, now: Progress) -> bool:
            return now.step.bit_count() == 1
How late a refresh comes into use (`delay_steps`) is the same for every policy: training/index.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from realm_lab.core.extensions import Registry, calling, check_takes, own_code
from realm_lab.errors import UserError
from realm_lab.params.sections import Refresh

PARAMETER = "pretrain.refresh.policy"


class Progress(NamedTuple):
    """What a policy may know at a step, the first being 1: at step 0 there is always a fresh index."""

    step: int
    under_way: int  # refreshes that were asked for and are not searched yet
    training_flops: float  # floating-point operations so far, without refreshing
    refresh_flops: float  # of refreshing and of checking for drift
    overlap: Callable[[], float]  # measures which share of the fresh top k the index still finds; costs a few passages


class RefreshPolicy(Protocol):
    """Decides when to refresh. Its decision must be a pure function of `now`, so that a resumed run decides alike."""

    def wants_refresh(self, now: Progress) -> bool:
        """Whether to embed the corpus with the weights of this step."""


RefreshPolicyClass = Callable[[Refresh], RefreshPolicy]
REFRESH_POLICIES: Registry[RefreshPolicyClass] = Registry("policy", "Class")
register_refresh = REFRESH_POLICIES.register  # makes a policy selectable as `pretrain.refresh.policy: NAME`


def refresh_policy(settings: Refresh) -> RefreshPolicy:
    """The policy that the parameters name. UserError: there is none of that name, or a user's own cannot be made."""
    name = settings.policy
    return OwnPolicy(settings) if ":" in name else REFRESH_POLICIES.named(PARAMETER, name)(settings)


def check_refresh(settings: Refresh) -> None:
    """Refuse a policy that there is not, or a user's own that cannot be made or asked: it is asked once on trial."""
    refresh_policy(settings).wants_refresh(Progress(1, 0, 1.0, 0.0, lambda: 1.0))


class OwnPolicy:
    """A user's own policy, whose errors are those of one line."""

    def __init__(self, settings: Refresh):
        self._name = settings.policy
        make = own_code(PARAMETER, self._name, "settings")
        with calling(PARAMETER, self._name):
            self._policy = make(settings)
        decide = getattr(self._policy, "wants_refresh", None)
        if not callable(decide):
            problem = f"parameter '{PARAMETER}': '{self._name}' has no method wants_refresh(now)"
            raise UserError(problem, parameter=PARAMETER, remedy="add it")
        check_takes(PARAMETER, f"{self._name}.wants_refresh", decide, "now")

    def wants_refresh(self, now: Progress) -> bool:
        """As the policy decides."""
        with calling(PARAMETER, self._name):
            return bool(self._policy.wants_refresh(now))


@register_refresh("never")
class Never:
    """The index of the first step is kept."""

    def __init__(self, settings: Refresh):
        pass

    def wants_refresh(self, now: Progress) -> bool:
        """No."""
        return False


@register_refresh("interval")
class Interval:
    """Every `interval_steps` (Guu, section 4.5: about 500)."""

    def __init__(self, settings: Refresh):
        self._interval = settings.interval_steps

    def wants_refresh(self, now: Progress) -> bool:
        """At each multiple of the interval."""
        return now.step % self._interval == 0


@register_refresh("schedule")
class Schedule:
    """Intervals that change: pairs [from_step, interval_steps], each valid until the next."""

    def __init__(self, settings: Refresh):
        self._pairs = settings.schedule

    def wants_refresh(self, now: Progress) -> bool:
        """At each from_step, then in its interval; the interval 0 asks for none."""
        start, interval = next(pair for pair in reversed(self._pairs) if pair[0] <= now.step)
        return bool(interval) and (now.step - start) % interval == 0


@register_refresh("drift")
class Drift:
    """When a check, every `interval_steps`, finds that the index has drifted: an overlap below `drift_overlap`."""

    def __init__(self, settings: Refresh):
        self._interval, self._least = settings.interval_steps, settings.drift_overlap

    def wants_refresh(self, now: Progress) -> bool:
        """One refresh follows the other: nothing is checked while one is under way."""
        return now.step % self._interval == 0 and not now.under_way and now.overlap() < self._least


@register_refresh("budget")
class Budget:
    """Whenever the share of all floating-point operations spent on refreshing has fallen below `budget_fraction`."""

    def __init__(self, settings: Refresh):
        self._most = settings.budget_fraction

    def wants_refresh(self, now: Progress) -> bool:
        """One refresh follows the other."""
        total = now.training_flops + now.refresh_flops
        return not now.under_way and now.refresh_flops < self._most * total
