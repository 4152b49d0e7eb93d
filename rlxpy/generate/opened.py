"""A model on disk, opened: configuration, weights under Hugging Face names, tokeniser; and the check that nothing was left out."""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlxpy import settings
from rlxpy.compiler.options import WEIGHTS, CompileOptions
from rlxpy.errors import InputError, LoadError, nearest
from rlxpy.flow.core import BuiltModel
from rlxpy.flow.families import ENCODERS, check_supported
from rlxpy.flow.weights import Rounded, WeightSource, as_stored, model_config, open_weights
from rlxpy.frozen import dataclass
from rlxpy.generate.tokenizer import Tokenizer
from rlxpy.ir.encoding import ENCODINGS, registered_encodings

# what checkpoints carry beside what a forward pass needs: position buffers, rope tables, BERT's pooler and pre-training heads
IDLE = re.compile(r"(.*\.)?(position_ids|rotary_emb\.inv_freq|rope_freqs\.weight)$|(bert\.)?pooler\.|cls\.")


@dataclass(frozen=True)
class OpenedModel:
    path: Path
    config: dict[str, Any]
    weights: WeightSource
    tokenizer: Tokenizer

    def check_complete(self, built: BuiltModel) -> None:
        """Raises LoadError when the model has weights that its flow never read: it would run, and be wrong."""
        left = [n for n in self.weights.names() if n not in built.weights and not IDLE.match(n)]
        if left:
            raise LoadError(f"{len(left)} weights of {self.path.name} have no place in its flow", where=str(self.path), why=f"first: {', '.join(left[:3])}",
                            fix="the model is a variant this family does not know; write its flow: docs/add_a_block.md")


def open_model(path: Path, wanted: tuple[str, ...]) -> OpenedModel:
    """A GGUF file or a Hugging Face folder of one of the `wanted` model types.  Raises LoadError naming what is missing."""
    source = open_weights(path)
    config = model_config(source)
    check_supported(config, wanted, str(path))
    if "general.architecture" in source.metadata:
        weights, config = as_stored(source)
        return OpenedModel(path, config, weights, Tokenizer.from_gguf(source.metadata))
    return OpenedModel(path, config, source, Tokenizer.from_folder(path))


def int8_of(config: Mapping[str, Any]) -> str:
    """The encoding that "int8" stands for: a scale for each row for encoders, whose products are of many rows; for decoders, whose values have outliers, one for 32."""
    return "int8_rows" if config.get("model_type") in ENCODERS else "q8_0"


def asked(model: OpenedModel, weights: str, numerics: str | None, debug: bool | None) -> tuple[OpenedModel, CompileOptions]:
    """The model and the options that a caller's words stand for.

    weights: as CompileOptions has them, or an encoding by name: matrices of floats are packed in it at load, by the quantiser of RLX_QUANTISER, and
    stay packed.  "int8" is what `int8_of` says, and activations are rounded too unless `numerics` says otherwise.  numerics: None is RLX_NUMERICS."""
    options = options_for(weights, numerics, debug)
    return (model if weights in WEIGHTS else replace(model, weights=Rounded(model.weights, int8_of(model.config) if weights == "int8" else weights))), options


def options_for(weights: str, numerics: str | None, debug: bool | None = None) -> CompileOptions:
    """The options alone.  Raises InputError for words that are no weights."""
    if weights in WEIGHTS or not isinstance(weights, str):
        return CompileOptions(weights=weights, numerics=numerics or settings.setting("numerics"), debug=debug)
    encodings = ENCODINGS | registered_encodings()
    if weights != "int8" and weights not in encodings:
        words = [*WEIGHTS, "int8", *encodings]
        raise InputError(f"weights={weights!r}", why=f"it is one of {', '.join((*WEIGHTS, 'int8'))}, or an encoding: {', '.join(encodings)}", fix=f"near it: {nearest(weights, words)}")
    return CompileOptions(weights="packed", numerics=numerics or ("low" if weights == "int8" else settings.setting("numerics")), debug=debug)
