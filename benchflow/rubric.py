"""`Rubric`: weighted reward functions that score a node or a stored rollout from Python."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from benchflow.contracts.reward import JudgeRubric, RewardFunc, RolloutNode, VerifyResult
from benchflow.errors import ConfigError, VerifierError
from benchflow.planes.reward import output
from benchflow.planes.reward.score import Scored, compute_mean, run_function
from benchflow.rescoring.process_workbench import open_stored_workbench
from benchflow.tasks.rubric_file import load_rubric
from benchflow.trajectories.nodes import find_last_node, load_rollout
from benchflow.trajectories.stored import load_tree


class Rubric:
    """Weighted reward functions."""

    def __init__(
        self,
        reward_funcs: Sequence[RewardFunc],
        weights: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        """Make it.

        Args:
            reward_funcs: Objects with `async def score(self, node)`.
            weights: Weight of each, normalised to a sum of 1; equal ones by default.
            names: Unique name of each one's metric; by default its `name`, else that of its class.

        Raises:
            ConfigError: An object is no reward function, or weights or names do not fit.
        """
        self.reward_funcs = tuple(reward_funcs)
        for index, function in enumerate(self.reward_funcs):
            if isinstance(function, type) or not callable(getattr(function, "score", None)):
                raise ConfigError(
                    f"{function!r} is no reward function",
                    key=f"reward_funcs[{index}]",
                    remedy="give an object with `async def score(self, node)`",
                )
        if not self.reward_funcs:
            raise ConfigError("there is nothing to score by", key="reward_funcs", remedy="give at least one function")
        self.weights = _normalise_weights(weights, len(self.reward_funcs))
        self.names = _choose_names(self.reward_funcs, names)

    def __repr__(self) -> str:
        """Return names, weights and functions."""
        parts = zip(self.names, self.weights, self.reward_funcs, strict=True)
        return f"Rubric({', '.join(f'{name}={weight!r}*{function!r}' for name, weight, function in parts)})"

    async def score(
        self, node: RolloutNode | str | None = None, *, rollout_dir: Path | str | None = None, trust: bool = False
    ) -> VerifyResult:
        """Score a node, or a stored rollout at its end or at a named node, by all functions at the same time.

        A function that fails is in `errors`; if it has a weight, the reward is None, and `error` has the reason. A
        function that has to run something fails if the world of that state was not retained, or if the rollout's job
        was not submitted with this user's state directory and is not trusted.

        Args:
            node: A node; or, with `rollout_dir`, the name of one in its tree, such as `n1.0/n2`. None for the rollout's
                end.
            rollout_dir: Results directory of a rollout.
            trust: Whether functions may run something for a job that this user did not submit.

        Returns:
            The result. `reward` is the weighted mean, in [0, 1]; `items` has each function's value by its name, and its
            other metrics as `<name>.<item>`.

        Raises:
            ConfigError: Neither a node nor a directory is given, or both.
            UsageError: There is no such node, or no result in the directory (`JobNotFoundError`).
            ResultFileError: A file of the rollout cannot be read.
            VerifierError: The rollout finished no step, or branched and so has no one end.
        """
        if isinstance(node, RolloutNode) and rollout_dir is None:
            return await self._score(node)
        if rollout_dir is None or isinstance(node, RolloutNode):
            raise ConfigError(
                "give a node or a rollout_dir, and not both; a name is of a node there", key="rollout_dir"
            )
        directory = Path(rollout_dir).expanduser().absolute()
        # Read before a workbench is opened, so that a directory without a rollout is reported as such.
        if node is None:
            at = _find_end(directory, await asyncio.to_thread(load_rollout, directory, whole=True))
        else:
            at = await asyncio.to_thread(_load_node, directory, node)
        async with AsyncExitStack() as stack:
            chain = at.rollout.directory
            if at.step is not None and chain is not None:
                workbench = await stack.enter_async_context(open_stored_workbench(chain, step=at.step, trust=trust))
                at = replace(at, rollout=replace(at.rollout, workbench=workbench))
            return await self._score(at)

    async def _score(self, node: RolloutNode) -> VerifyResult:
        parts = zip(self.reward_funcs, self.names, self.weights, strict=True)
        running = (run_function(function, name, node, weight=weight) for function, name, weight in parts)
        return _combine(await asyncio.gather(*running))


def _load_node(directory: Path, name: str) -> RolloutNode:
    """Return a node, by its name, of the tree that a directory's rollout belongs to."""
    stored = load_tree(directory)
    return load_rollout(stored.paths.root)[stored.node(name).id]


def _find_end(directory: Path, nodes: Mapping[str, RolloutNode]) -> RolloutNode:
    """Return the node at which a rollout ended. Raise `VerifierError` if its children ended in its place."""
    end = find_last_node(nodes)
    if end.rollout.directory == directory:
        return end
    children = sorted(str(child.relative_to(directory)) for child in directory.glob("children/*") if child.is_dir())
    raise VerifierError(
        f"this rollout branched, and ended in {len(children)} children: what it is worth is V(s), and no one state",
        file=str(directory),
        remedy=f"score each by its own directory: {', '.join(children[:5])}; or the whole job: bench rescore",
    )


def _combine(scored: Sequence[Scored]) -> VerifyResult:
    """Return the results of all functions as one."""
    done = [(one, one.result) for one in scored if one.result is not None]
    errors = {one.name: one.error for one in scored if one.result is None}
    reward = compute_mean(scored)
    items: list[tuple[str, float]] = []
    for one, result in done:
        items += [(one.name, value) for value in (result.reward,) if value is not None]
        items += [(f"{one.name}.{item}", value) for item, value in result.items.items()]
        errors |= {f"{one.name}.{part}": error for part, error in result.errors.items()}
    spaces = {one.space for one in scored if one.space is not None}
    return VerifyResult(
        reward=reward,
        items=dict(items),
        events=[event for _, result in done for event in result.events],
        space=spaces.pop() if len(spaces) == 1 else "output",
        metadata={one.name: result.metadata for one, result in done if result.metadata},
        warnings=[f"{one.name}: {note}" for one, result in done for note in result.warnings],
        error="\n".join(f"{name}: {error}" for name, error in errors.items()) if reward is None else None,
        errors=errors,
    )


def _normalise_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Return the weights with a sum of 1. Raise `ConfigError` for invalid ones."""
    given = [1.0] * count if weights is None else list(weights)
    if len(given) != count:
        raise ConfigError(
            f"there are {len(given)} weights for {count} functions", key="weights", remedy="give one for each"
        )
    for index, weight in enumerate(given):
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not isfinite(weight) or weight < 0:
            raise ConfigError(
                f"{weight!r} is no weight", key=f"weights[{index}]", remedy="give a finite number, 0 or more"
            )
    largest = max(given)
    if largest == 0:
        raise ConfigError("all weights are 0", key="weights", remedy="give at least one a positive weight")
    # Divided by the largest first: the sum of the given weights may overflow.
    scaled = [weight / largest for weight in given]
    return tuple(weight / sum(scaled) for weight in scaled)


def _choose_names(functions: Sequence[RewardFunc], given: Sequence[str] | None) -> tuple[str, ...]:
    """Return a unique name per function. Raise `ConfigError` for given names that do not fit."""
    if given is not None:
        if len(given) != len(functions):
            raise ConfigError(
                f"there are {len(given)} names for {len(functions)} functions", key="names", remedy="give one for each"
            )
        twice = [name for name, times in Counter(given).items() if times > 1]
        if twice or not all(isinstance(name, str) and name for name in given):
            raise ConfigError(
                f"{twice[0]!r} is there twice" if twice else "a name is empty",
                key="names",
                remedy="give each function a name of its own",
            )
        return tuple(given)
    own = [str(getattr(function, "name", None) or type(function).__name__) for function in functions]
    found: list[str] = []
    for name in own:
        number, free = 1, name
        # A generated name must not be that of another function.
        while free in found or (number > 1 and free in own):
            number += 1
            free = f"{name}-{number}"
        found.append(free)
    return tuple(found)


class LLMJudgeRewardFunc(output.ModelJudgeRewardFunc):
    """Reward function by an LLM judge, whose rubric may also be given as the path of its file (TOML, JSON)."""

    def __init__(self, rubric: JudgeRubric | str | Path | Sequence[Any] | dict[str, Any], **options: Any) -> None:
        """Make it.

        Args:
            rubric: Rubric, or path of its file.
            options: Arguments of `benchflow.planes.reward.output.ModelJudgeRewardFunc`.

        Raises:
            TaskError: The file is no rubric.
        """
        given: Any = load_rubric(Path(rubric).expanduser()) if isinstance(rubric, str | Path) else rubric
        super().__init__(given, **options)
