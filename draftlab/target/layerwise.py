"""One decoder layer at a time, each called exactly as the model's own forward calls it.

For every layer and every pass the decoder's forward runs as it is: embeddings, positions, rotary
tables, and the mask of each kind of layer come from the model's code. Only the layers differ: the
others hand on what they get, and the one that is loaded is given the states that the layer before
it has left. So nothing about masks, windows or positions is restated here.

Shape letters: R sequences, T positions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from draftlab.base.errors import TargetError
from draftlab.target.loading import LoadedTarget

_STATES = "hidden_states"
_CONTAINERS = (MutableMapping, MutableSequence)
_UNREAD = ("shared_kv_states",)
"""Gemma 4 fills this in every model; those in which a later layer reads it are not opened at all
(`Skeleton.open`)."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one layer made of the states of one pass."""

    states_RTH: Tensor
    """Its output, before any final norm."""
    normed_RTH: Tensor
    """The decoder's final norm of that; of use after the last layer."""


@contextmanager
def passing_through(target: LoadedTarget) -> Iterator[None]:
    """While the body runs, every decoder layer hands on what it gets."""
    layers: list[Any] = list(target.layers)
    for layer in layers:
        layer.forward = _hand_on
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def run_layer(target: LoadedTarget, number: int, ids_RT: Tensor, states: Tensor | None) -> Step:
    """Run one loaded layer on the states [R, T, H] that the layer before it has left.

    To be called inside `passing_through`. Without states the layer gets the embedded tokens.

    Raises:
        TargetError: the layer gives or takes more than hidden states.
    """
    outputs: list[Tensor] = []

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        args, kwargs = _with_states(args, kwargs, states)
        shared = {
            k: len(v) for k, v in kwargs.items() if isinstance(v, _CONTAINERS) and k not in _UNREAD
        }
        output: object = type(layer).forward(layer, *args, **kwargs)
        grown = [key for key, length in shared.items() if len(kwargs[key]) != length]
        if grown or not isinstance(output, Tensor):
            raise _more_than_states(target, ", ".join(grown) or type(output).__name__)
        outputs.append(output)
        return output

    layer: Any = target.layers[number]
    layer.forward = forward
    try:
        normed = target.model.get_decoder()(input_ids=ids_RT, use_cache=False).last_hidden_state
    finally:
        layer.forward = _hand_on
    if len(outputs) != 1 or outputs[0].shape != normed.shape:
        raise _more_than_states(target, f"{len(outputs)} outputs of layer {number}")
    return Step(outputs[0], normed)


def _hand_on(*args: Any, **kwargs: Any) -> object:
    return args[0] if args else kwargs[_STATES]


def _with_states(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], states: Tensor | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A layer's arguments, with its states in place of what was handed on."""
    if states is None:
        return args, dict(kwargs)
    if args:
        return (states, *args[1:]), dict(kwargs)
    return (), {**kwargs, _STATES: states}


def _more_than_states(target: LoadedTarget, what: str) -> TargetError:
    return TargetError(
        f"the layers of {target.facts.architecture} hand on more than hidden states ({what}).",
        mend="This architecture cannot be streamed; use --no-stream on a machine that holds it.",
    )
