"""Conditions of a frozen model: each takes one part away, as a context manager, and says how to read the outcome.

    with binding_off(model):
        ...              # the same weights, no word keys; the model is bit-identical afterwards

Config and tensors are put back bit for bit, also after an error. interventions.py measures a model under each of them.
"""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

import torch

PHASE_DRAW = 0x9E3779B9  # xor with the hash seed: the other draw of phases


@contextmanager
def changed_config(model: Any, **fields: Any) -> Iterator[None]:
    """The model with other config fields, which it reads at every forward pass."""
    before = {name: getattr(model.config, name) for name in fields}
    try:
        for name, value in fields.items():
            setattr(model.config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(model.config, name, value)


@contextmanager
def changed_tensors(model: Any, tensors: dict[str, torch.Tensor]) -> Iterator[None]:
    """The model with other values in some of its parameters and buffers, by name."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    before = {name: own[name].detach().clone() for name in tensors}

    def put(values: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                own[name].copy_(value)

    try:
        put(tensors)
        yield
    finally:
        put(before)


def zero_phases(model: Any) -> AbstractContextManager[None]:
    """Every word key has phase 0; the record norm stays."""
    return changed_config(model, lexical_phases=False)


def binding_off(model: Any) -> AbstractContextManager[None]:
    """The designated head turns by position and address like any other; the record norm goes too."""
    return changed_config(model, binding="none", record_norm=None)


def record_norm_off(model: Any) -> AbstractContextManager[None]:
    """The keys of records keep the lengths that the weights give them."""
    return changed_config(model, record_norm=None)


def new_phases(model: Any) -> AbstractContextManager[None]:
    """Key phases of another hash seed."""
    return changed_config(model, hash_seed=model.config.hash_seed ^ PHASE_DRAW)


def addresses_off(model: Any) -> AbstractContextManager[None]:
    """The address planes are not turned; the position planes are."""
    return changed_config(model, rotate_addresses=False)


def flat_values(model: Any) -> AbstractContextManager[None]:
    """Every row of a digit's value table is its row 0: the value path no longer tells addresses apart."""
    values = model.embeddings.address_values.detach()  # [digits, base, D]
    return changed_tensors(model, {"embeddings.address_values": values[:, :1].expand_as(values).clone()})


def fresh_start(model: Any, seed: int) -> AbstractContextManager[None]:
    """The weights that training began with: those of a new model after `torch.manual_seed(seed)`."""
    devices = [] if model.device.type == "cpu" else [model.device]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        start = type(model)(copy.deepcopy(model.config))
    return changed_tensors(model, {name: value.detach() for name, value in start.named_parameters()})


@dataclass(frozen=True)
class Condition:
    """One intervention, and how to read it.

    Attributes:
        name: in reports. removes: what it takes away. also: what goes or stays with it. refuted_by: the outcome that
            would show that the part did not do what it is there for.
        apply: the context manager of a model. missing: why it does not apply to a config, or None.
    """

    name: str
    removes: str
    also: str
    refuted_by: str
    apply: Callable[[Any], AbstractContextManager[None]]
    missing: Callable[[Any], str | None]


def _needs_structure(config: Any) -> str | None:
    if config.position_type == "structured":
        return None
    return f"position_type is {config.position_type!r}: no addresses and no word keys"


def _needs_binding(config: Any) -> str | None:
    return _needs_structure(config) or (
        "binding is 'none': no word keys" if config.binding == "none" else None
    )


def _needs_norm(config: Any) -> str | None:
    return _needs_binding(config) or ("record_norm is None" if config.record_norm is None else None)


def conditions(seed: int | None, seed_note: str = "") -> tuple[Condition, ...]:
    """Every condition, the fresh start from `seed` last; without a seed it does not apply."""
    no_seed = None if seed is not None else "no seed: give a run folder, or --seed-of-start"
    start = f"all training: the weights are those of the start, from seed {seed}{seed_note}"
    return (
        Condition(
            "zero phases",
            "the differences between word keys: every phase is 0",
            "the record norm stays; bound positions have no position or address angle, as before",
            "lookup as good as intact: words were told apart by something else",
            zero_phases,
            _needs_binding,
        ),
        Condition(
            "binding off",
            "word keys: the designated head turns by position and address",
            "the record norm is bypassed too, and bound positions get their position and address angles back",
            "lookup as good as intact: word keys were not used",
            binding_off,
            _needs_binding,
        ),
        Condition(
            "record norm off",
            "the equal length of record keys in the designated head",
            "key phases stay; records may draw less, or more, attention from every query",
            "nothing moves: the norm was not needed after training",
            record_norm_off,
            _needs_norm,
        ),
        Condition(
            "new phases",
            "the phases that were trained with: another hash seed",
            "nothing else: equal words still have equal phases, different words still differ",
            "lookup falls: particular phases were learned instead of equality",
            new_phases,
            _needs_binding,
        ),
        Condition(
            "addresses off",
            "the turns of the address planes, in every head",
            "position planes stay, and so do the value tables and key phases; bound positions had none of these turns "
            "in the designated head",
            "nothing moves: attention did not read addresses",
            addresses_off,
            _needs_structure,
        ),
        Condition(
            "flat values",
            "differences between addresses in the value path: each table's rows are its row 0",
            "tokens with an address still differ from those without; the rotations stay",
            "nothing moves: the value tables carried no address",
            flat_values,
            _needs_structure,
        ),
        Condition(
            "fresh start",
            start,
            "the structure stays: addresses, word keys and the record norm, where the model has them",
            "lookup far above uniform: the structure alone finds records, and training shows nothing",
            partial(fresh_start, seed=seed or 0),
            lambda config: no_seed,
        ),
    )


def tensors_digest(model: Any) -> str:
    """SHA-256 over name, type, shape and bytes of every parameter and buffer."""
    digest = sha256()
    for name, value in sorted((dict(model.named_parameters()) | dict(model.named_buffers())).items()):
        value = value.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def config_digest(model: Any) -> str:
    """SHA-256 over every attribute of the config object."""
    return sha256(json.dumps(vars(model.config), sort_keys=True, default=repr).encode()).hexdigest()


def identity(model: Any) -> dict[str, str]:
    """Both digests."""
    return {"tensors": tensors_digest(model), "config": config_digest(model)}
