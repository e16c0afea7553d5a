"""What is wrong with a configuration, in the words of the person who wrote it. Pure.

Pydantic knows what it could not parse; an operator needs what was found, what was expected, and the
name that was probably meant.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trainctl.job.settings import Settings
from trainctl.job.toml_lines import KeyPath

# What other trainers call it (Megatron-LM, Hugging Face, nanoGPT, torchtitan, Lightning).
_KEY_ALIASES = {
    "learning_rate": "train.lr", "max_lr": "train.lr", "base_lr": "train.lr",
    "batch_size": "train.micro_batch", "micro_batch_size": "train.micro_batch",
    "local_batch_size": "train.micro_batch", "per_device_train_batch_size": "train.micro_batch",
    "global_batch_size": "train.global_batch", "max_steps": "train.steps", "max_iters": "train.steps",
    "train_iters": "train.steps", "iterations": "train.steps", "warmup": "train.warmup_steps",
    "warmup_iters": "train.warmup_steps", "lr_warmup_iters": "train.warmup_steps",
    "adam_beta1": "train.beta1", "adam_beta2": "train.beta2", "eps": "train.adam_eps",
    "adam_epsilon": "train.adam_eps", "clip_grad": "train.grad_clip", "max_grad_norm": "train.grad_clip",
    "max_norm": "train.grad_clip", "dtype": "train.precision", "logging_steps": "train.log_interval",
    "log_freq": "train.log_interval", "eval_every": "train.eval_interval",
    "num_layers": "model.layers", "n_layer": "model.layers", "n_layers": "model.layers",
    "num_hidden_layers": "model.layers", "depth": "model.layers", "hidden_size": "model.hidden",
    "n_embd": "model.hidden", "dim": "model.hidden", "d_model": "model.hidden",
    "n_head": "model.heads", "n_heads": "model.heads", "num_heads": "model.heads",
    "num_attention_heads": "model.heads", "n_kv_head": "model.kv_heads",
    "num_key_value_heads": "model.kv_heads", "num_query_groups": "model.kv_heads",
    "ffn_hidden_size": "model.ffn_hidden", "intermediate_size": "model.ffn_hidden",
    "block_size": "model.seq_len", "seq_length": "model.seq_len", "max_seq_len": "model.seq_len",
    "context_length": "model.seq_len", "vocab_size": "model.vocab", "tie_word_embeddings": "model.tied_head",
    "tied_embeddings": "model.tied_head", "num_experts": "model.experts", "rotary_base": "model.rope_theta",
    "tensor_parallel": "parallel.tp", "tensor_model_parallel_size": "parallel.tp",
    "pipeline_parallel": "parallel.pp", "pipeline_model_parallel_size": "parallel.pp",
    "context_parallel": "parallel.cp", "context_parallel_size": "parallel.cp",
    "expert_parallel": "parallel.ep", "data_parallel": "parallel.dp",
    "nnodes": "cluster.nodes", "num_nodes": "cluster.nodes", "nproc_per_node": "cluster.procs_per_node",
    "gpus": "cluster.procs_per_node", "gpus_per_node": "cluster.procs_per_node",
    "master_port": "cluster.rendezvous_port", "save_interval": "checkpoint.save_steps",
    "save_every": "checkpoint.save_steps", "checkpoint_interval": "checkpoint.save_steps",
    "save_total_limit": "checkpoint.keep", "keep_last": "checkpoint.keep",
    "output_dir": "job.runs_dir", "out_dir": "job.runs_dir", "save_dir": "job.runs_dir",
    "command": "job.script", "dataset": "data.path", "data_path": "data.path",
    "retries": "restart.max_restarts", "timeout": "watchdog.stall_s", "mtbf": "ledger.prior_mtbf_h",
}  # fmt: skip
_SECTION_ALIASES = {
    "training": "train", "trainer": "train", "optimizer": "train", "optim": "train", "network": "model",
    "dataset": "data", "checkpointing": "checkpoint", "distributed": "parallel", "parallelism": "parallel",
    "environment": "env", "restarts": "restart", "hang": "watchdog", "checks": "preflight", "run": "job",
}  # fmt: skip

# Patterns of settings.py in words.
_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": 'letters, digits, ".", "_" and "-", with a letter or digit first',
    r"^TC\d{3,4}$": 'the code of a finding, such as "TC103"',
    r"^[^\x00]*$": "text in quotes, without the character NUL",
}

_SECTIONS: dict[str, tuple[str, ...]] = {
    name: tuple(field.annotation.model_fields)
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


def explain(error: ValidationError) -> list[tuple[KeyPath, str]]:
    """(path, what is wrong) of everything that pydantic refused, each key once."""
    found: dict[KeyPath, str] = {}  # a union reports each of its alternatives, under the same path
    for detail in error.errors():
        path, annotation, metadata = _resolve(detail["loc"])
        value, name = detail["input"], dotted(path)
        if detail["type"] == "extra_forbidden":
            found[path] = unknown_name(path, value)
        elif detail["type"] == "missing":
            found[path] = f"{name} is missing, expected {expected(annotation, metadata)}"
        elif detail["type"] == "value_error":
            found[path] = f"{name}: {detail['ctx']['error']}"
        elif detail["loc"][-1] == "[key]":
            found[path] = f"{name}: the name of a variable has letters, digits and _, and no digit first"
        elif detail["type"] == "model_type" and len(path) == 1:
            found[path] = f"{name}: found {describe(value)}, expected one table, [{name}]"
        else:
            found[path] = f"{name}: found {describe(value)}, expected {expected(annotation, metadata)}"
    return list(found.items())


def unknown_name(path: KeyPath, value: object = None) -> str:
    """Says that there is no such key or section, and which one was probably meant."""
    *tables, last = path
    name = str(last)
    if not tables:
        if isinstance(value, dict):
            return f"[{name}] is not a section; {_nearest_section(name)}"
        meant = _nearest_key(name, None)
        return f"{name} stands outside any section" + (f"; nearest is {meant}" if meant else "")
    if len(tables) > 1:  # inside a list of tables
        keys = tuple(_model_at(tuple(tables)).model_fields)
        return f"{dotted(path)} is not a key; {_one_of(keys)}"
    section = str(tables[0])
    meant = _nearest_key(name, section)
    if meant is None:
        return f"{section}.{name} is not a key of [{section}]; {_one_of(_SECTIONS[section])}"
    other, _, key = meant.partition(".")
    nearest = key if other == section else meant
    return f"{section}.{name} is not a key of [{section}]; nearest is {nearest}"


def expected(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What a field takes, in words: 'a whole number of at least 1, or "auto"'."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return expected(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, UnionType):
        return ", or ".join(expected(one, metadata) for one in arguments if one is not NoneType)
    if origin is Literal:
        quoted = [f'"{value}"' for value in arguments]
        return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
    if origin is tuple:
        if arguments[0] is str:
            return 'a list of text, such as ["a", "b"]'
        return f"a list of tables with {' and '.join(arguments[0].model_fields)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"a table with {' and '.join(annotation.model_fields)}"
    bounds = _bounds(metadata)
    if annotation is bool:
        return "true or false"
    if annotation is int:
        return f"a whole number{_range(bounds)}"
    if annotation is float:
        return f"a number{_range(bounds)}"
    if "pattern" in bounds:
        limit = f", at most {bounds['max_length']} characters" if "max_length" in bounds else ""
        return _PATTERNS.get(bounds["pattern"], f"text that matches {bounds['pattern']}") + limit
    if "min_length" in bounds:
        return f"text of at least {bounds['min_length']} characters"
    return "text in quotes"


def accepts_text(annotation: Any) -> bool:
    """Whether any text is a value of this field, so that 123 from the environment means "123"."""
    if get_origin(annotation) in (Union, UnionType):
        return any(accepts_text(one) for one in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return accepts_text(get_args(annotation)[0])
    return annotation is str


def describe(value: object) -> str:
    """A value as it was found: '"fast" (text)', '3 (whole number)'."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"{json.dumps(value if len(value) <= 60 else value[:57] + '...', ensure_ascii=False)} (text)"
    if isinstance(value, int):
        return f"{value} (whole number)"
    if isinstance(value, float):
        return f"{value} (number)" if math.isfinite(value) else f"{value} (not finite)"
    if isinstance(value, (list, tuple)):
        return "a list of tables" if value and isinstance(value[0], dict) else "a list"
    return "a table" if isinstance(value, dict) else f"{value} (date or time)"


def dotted(path: Iterable[str | int]) -> str:
    """("preflight", "waive", 0, "code") -> "preflight.waive[0].code"."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _resolve(loc: KeyPath) -> tuple[KeyPath, Any, list[Any]]:
    """The part of a pydantic location that is a place in the file, and the field it leads to."""
    annotation: Any = Settings
    metadata: list[Any] = []
    path: list[str | int] = []
    for part in loc:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(str(part))
            path.append(part)
            if field is None:
                break
            annotation, metadata = field.annotation, field.metadata
        elif get_origin(annotation) in (tuple, dict):
            path.append(part)
            is_list = get_origin(annotation) is tuple
            annotation, metadata = get_args(annotation)[0 if is_list else 1], []
        else:
            break
    return tuple(path), annotation, metadata


def _model_at(path: KeyPath) -> type[BaseModel]:
    annotation = _resolve(path)[1]
    assert isinstance(annotation, type)
    assert issubclass(annotation, BaseModel)
    return annotation


def _nearest_section(name: str) -> str:
    meant = _SECTION_ALIASES.get(name.lower()) or _closest(name, Settings.model_fields)
    return f"nearest is [{meant}]" if meant else _one_of([f"[{one}]" for one in Settings.model_fields])


def _nearest_key(name: str, section: str | None) -> str | None:
    """The dotted key that was probably meant. The own section is asked first, then all."""
    own = _SECTIONS.get(section or "", ())
    alias = _KEY_ALIASES.get(name.lower().replace("-", "_"))
    close = _closest(name, own)
    if close and not (alias and alias.startswith(f"{section}.")):
        return f"{section}.{close}"
    if alias:
        return alias
    everywhere = {key: f"{one}.{key}" for one, keys in reversed(_SECTIONS.items()) for key in keys}
    key = name if name in everywhere else _closest(name, everywhere, cutoff=0.8)
    return everywhere[key] if key else None


def _closest(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), list(valid), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def _one_of(names: Sequence[str]) -> str:
    return f"expected one of {', '.join(names)}"


def _bounds(metadata: Sequence[Any]) -> dict[str, Any]:
    """Constraints by name: ge, gt, le, lt, pattern, min_length, max_length."""
    found: dict[str, Any] = {}
    for entry in metadata:
        for constraint in entry.metadata if isinstance(entry, FieldInfo) else (entry,):
            for name in ("ge", "gt", "le", "lt", "pattern", "min_length", "max_length"):
                if getattr(constraint, name, None) is not None:
                    found[name] = getattr(constraint, name)
    return found


def _range(bounds: dict[str, Any]) -> str:
    match bounds:
        case {"ge": low, "le": high}:
            return f" from {low} to {high}"
        case {"ge": low, "lt": high}:
            return f" from {low} to below {high}"
        case {"gt": low, "lt": high}:
            return f" above {low} and below {high}"
        case {"gt": low}:
            return f" above {low}"
        case {"ge": low}:
            return f" of at least {low}"
    return ""
