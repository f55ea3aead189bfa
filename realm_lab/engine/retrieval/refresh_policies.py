"""Refresh policies decide at which steps the corpus is embedded again (section 4.5). Each is one small class.

A policy decides from the numbers of `Progress`, and reads no clock. "At step s" means: after s finished optimiser
steps, before the next. A policy is registered under a name, or `pretrain.refresh.policy` names custom code,
`package.module:Class`,
    class First(Section):
        first: int = 1
    class Doubling:
        def __init__(self, settings: Refresh, options: First): ...
        def wants_refresh(self, now: Progress) -> bool:
            return now.step >= self._first and now.step.bit_count() == 1
A policy without options takes only the settings (records/plugins.py).
The delay until a new index is searched (`delay_steps`) is applied in training/refreshed_index.py, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import Field

from realm_lab.engine.params.sections import Refresh, Section
from realm_lab.errors import UserError
from realm_lab.records.plugins import Kind, Plugin, calling, check_takes

PARAMETER = "pretrain.refresh.policy"


class Progress(NamedTuple):
    """Numbers that a policy may use at a step. Policies are asked from step 1 on: at step 0 the index is fresh."""

    step: int
    under_way: int  # refreshes that were asked for, and whose index is not searched yet
    overlap: Callable[[], float]  # an upper estimate of the share of the fresh top k that the index finds


class RefreshPolicy(Protocol):
    """Decides when to refresh. The decision must be a pure function of `now`, so that a resumed run decides alike."""

    def wants_refresh(self, now: Progress) -> bool | Mapped:
        """True if the corpus must be embedded with the weights of this step; `Mapped()` if only the queries are mapped
        to the vectors of the index."""


REFRESH_POLICIES: Kind[Callable[..., RefreshPolicy]] = Kind("refresh policy", "Class", "settings")
register_refresh = REFRESH_POLICIES.register  # makes a policy selectable as `pretrain.refresh.policy: NAME`


def refresh_policy(settings: Refresh) -> RefreshPolicy:
    """Return the policy that the parameters name. UserError: an unknown name, a wrong option, or custom code that
    cannot be constructed."""
    chosen = REFRESH_POLICIES.choose(PARAMETER, settings.policy)
    return OwnPolicy(chosen, settings) if chosen.is_own else chosen(settings)


def check_refresh(settings: Refresh) -> None:
    """Refuse an unknown policy, one that cannot be constructed, and a custom one that fails when it is called once."""
    policy = refresh_policy(settings)
    if isinstance(policy, OwnPolicy):
        policy.wants_refresh(Progress(1, 0, lambda: 1.0))


class OwnPolicy:
    """A custom policy; an error in it becomes a UserError of one line."""

    def __init__(self, chosen: Plugin[Callable[..., RefreshPolicy]], settings: Refresh):
        self._chosen, self._policy = chosen, chosen(settings)
        decide = getattr(self._policy, "wants_refresh", None)
        if not callable(decide):
            problem = f"parameter '{PARAMETER}': '{chosen.name}' has no method wants_refresh(now)"
            raise UserError(problem, parameter=PARAMETER, remedy="add it")
        check_takes(PARAMETER, f"{chosen.name}.wants_refresh", decide, "now")

    def wants_refresh(self, now: Progress) -> bool | Mapped:
        with calling(PARAMETER, self._chosen.name, self._chosen.target):
            wanted = self._policy.wants_refresh(now)
            return wanted if isinstance(wanted, Mapped) else bool(wanted)


@register_refresh("never")
class Never:
    """Keeps the index of the first step."""

    def __init__(self, settings: Refresh):
        pass

    def wants_refresh(self, now: Progress) -> bool:
        return False


@register_refresh("interval")
class Interval:
    """Refreshes every `interval_steps` (Guu, section 4.5: about 500)."""

    def __init__(self, settings: Refresh):
        self._interval = settings.interval_steps

    def wants_refresh(self, now: Progress) -> bool:
        """True at each multiple of the interval."""
        return now.step % self._interval == 0


class Overlap(Section):
    """Options of the refresh policy `drift`."""

    overlap: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """The smallest share of the fresh top k that the index may find."""


@register_refresh("drift")
class Drift:
    """Refreshes when a check, every `interval_steps`, finds that the index has drifted."""

    def __init__(self, settings: Refresh, options: Overlap):
        self._interval, self._least = settings.interval_steps, options.overlap

    def wants_refresh(self, now: Progress) -> bool:
        """True if the index has drifted; nothing is checked while a refresh is under way."""
        return now.step % self._interval == 0 and not now.under_way and now.overlap() < self._least


class Mapped(Section):
    """Options of the refresh policy `map`. The policy returns them to ask for a map."""

    sample: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    """The share of the passages that is embedded to fit a map."""
    kind: Literal["orthogonal", "affine"] = "orthogonal"
    """The map from old to current vectors: a rotation, or any linear map and a shift."""
    every_steps: Annotated[int, Field(ge=1)] = 5
    """Steps between two maps."""


@register_refresh("map")
class Map:
    """Maps the queries to the vectors of the index (index_map.py) between two refreshes."""

    def __init__(self, settings: Refresh, options: Mapped):
        self._options, self._interval = options, settings.interval_steps
        if options.every_steps >= self._interval:
            problem = f"'map': no map every {options.every_steps} steps comes between rebuilds every {self._interval}"
            remedy = "set a smaller every_steps, or a larger pretrain.refresh.interval_steps"
            raise UserError(f"parameter '{PARAMETER}': {problem}", parameter=PARAMETER, remedy=remedy)

    def wants_refresh(self, now: Progress) -> bool | Mapped:
        """True at multiples of `interval_steps`; the options at other multiples of `every_steps`, to ask for a map."""
        return now.step % self._interval == 0 or (now.step % self._options.every_steps == 0 and self._options)
