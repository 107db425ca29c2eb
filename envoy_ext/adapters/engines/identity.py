"""What each engine tells of the model it serves: which pages to read, and what they mean.

The readers are pure: pages in, a `Fingerprint` out, with None for whatever they do not tell. Engine
versions are left out on purpose: in a rolling update every replica would be nobody's equal.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from envoy_ext.adapters.engines.exposition import NotMetrics
from envoy_ext.adapters.engines.figures import read_families
from envoy_ext.adapters.engines.identity_words import (
    JsonObject,
    Pages,
    hash_text,
    read_cards,
    read_child,
    read_factor,
    read_model,
    read_object,
    read_objects,
    read_size,
    read_word,
)
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import PoolName

METRICS: Final = "metrics"
"""Stands for the engine's metrics page, wherever that is."""
MODELS: Final = "/v1/models"
CACHE_CONFIG: Final = b"vllm:cache_config_info"
TRITON_CONFIG: Final = "/v2/models/tensorrt_llm/config"
"""The backend's model has this name in its own repository of models (tensorrtllm_backend, all_models)."""


@dataclass(frozen=True, slots=True)
class IdentityPages:
    """How one kind of engine is asked."""

    pages: tuple[tuple[str, ...], ...]
    """The first of each group that answers is read."""
    read: Callable[[Pages, PoolName], Fingerprint]


def read_vllm(pages: Pages, pool: PoolName) -> Fingerprint:
    """vLLM: `/v1/models`, and the info metric of its cache.

    A card's `root` is the path or hub name it was started with, for an adapter that of the adapter,
    whose `parent` is the base model (vllm/entrypoints/openai/models/serving.py). `cache_dtype` is "auto"
    where the model decides.
    """
    return replace(_read_vllm_cards(read_cards(pages), pool), kv_dtype=_read_cache_dtype(pages))


def _read_vllm_cards(cards: Sequence[JsonObject] | None, pool: PoolName) -> Fingerprint:
    base = next((card for card in cards or () if card.get("parent") is None), None)
    if cards is None or base is None:
        return Fingerprint(pool)
    model, revision = read_model(base.get("root"))
    loaded = _sort(card.get("id") for card in cards if card.get("parent") is not None)
    return Fingerprint(
        pool,
        model=model,
        weights=revision,
        context=read_size(base.get("max_model_len")),
        # A server whose list has no parents tells nothing of adapters.
        adapters=loaded if "parent" in base or loaded else None,
    )


def _read_cache_dtype(pages: Pages) -> str | None:
    try:
        family = read_families(pages.get(METRICS, b""), frozenset({CACHE_CONFIG})).get(CACHE_CONFIG, ())
    except NotMetrics:
        return None
    dtypes = {series.labels.get("cache_dtype") for series in family}
    return read_word(dtypes.pop()) if len(dtypes) == 1 else None


def read_sglang(pages: Pages, pool: PoolName) -> Fingerprint:
    """SGLang: `/server_info` (until 2025 `/get_server_info`), its arguments after it has filled them in.

    That page can hold keys for its API, so nothing but these fields is looked at. `quantization` null
    is not known: a model's own configuration may ask for one. `/v1/models` has the context in effect
    and, since the end of 2025, the adapters.
    """
    arguments = read_object(pages, "/server_info") or read_object(pages, "/get_server_info")
    cards = read_cards(pages)
    model, snapshot = read_model(arguments.get("model_path"))
    tokenizer, _ = read_model(arguments.get("tokenizer_path"))
    base = next((card for card in cards or () if card.get("parent") is None), None)
    return Fingerprint(
        pool,
        model=model,
        weights=_read_sglang_weights(arguments, snapshot),
        quantization=read_word(arguments.get("quantization")),
        tokenizer=tokenizer,
        chat_template=read_model(arguments.get("chat_template"))[0],
        attention=read_word(arguments.get("attention_backend")),
        kv_dtype=read_word(arguments.get("kv_cache_dtype")),
        parallel=_read_parallel(arguments),
        context=read_size(None if base is None else base.get("max_model_len")),
        adapters=_read_sglang_adapters(arguments, cards),
    )


def _read_sglang_weights(arguments: JsonObject, snapshot: str | None) -> str | None:
    """The hub's revision, and the version that whoever updates weights in place gives them."""
    revision = read_word(arguments.get("revision")) or snapshot
    version = read_word(arguments.get("weight_version"))
    return " ".join(word for word in (revision, version) if word and word != "default") or None


def _read_sglang_adapters(
    arguments: JsonObject, cards: Sequence[JsonObject] | None
) -> tuple[str, ...] | None:
    loaded = _sort(card.get("id") for card in cards or () if card.get("parent") is not None)
    if loaded:
        return loaded
    none_possible = "enable_lora" in arguments and not arguments["enable_lora"]
    return () if none_possible and not arguments.get("lora_paths") else None


def _read_parallel(arguments: JsonObject) -> str | None:
    sizes = [(name, arguments.get(f"{name}_size")) for name in ("tp", "pp", "ep")]
    known = [(name, size) for name, size in sizes if type(size) is int and size > 0]
    return ",".join(f"{name}={size}" for name, size in known if name == "tp" or size > 1) or None


def read_llamacpp(pages: Pages, pool: PoolName) -> Fingerprint:
    """llama.cpp: `/props`, `/v1/models` with `meta`, `/lora-adapters` (tools/server/README.md).

    The size of the weights stands beside the file's name: one name is soon given to two quantisations.
    The kind of quantisation is in `meta.ftype` of builds since 2026. An adapter counts with its scale.
    """
    props = read_object(pages, "/props")
    cards = read_cards(pages)
    meta = read_child(cards[0], "meta") if cards is not None and len(cards) == 1 else {}
    settings = read_child(props, "default_generation_settings")
    name, revision = read_model(props.get("model_path"))
    size = read_size(meta.get("size"))
    return Fingerprint(
        pool,
        model=name if name is None or size is None else f"{name} ({size} bytes)",
        weights=revision,
        quantization=read_word(meta.get("ftype")) or read_word(props.get("model_ftype")),
        chat_template=hash_text(props.get("chat_template")),
        context=read_size(settings.get("n_ctx")),
        adapters=_read_scaled_adapters(read_objects(pages, "/lora-adapters")),
    )


def _read_scaled_adapters(adapters: list[JsonObject] | None) -> tuple[str, ...] | None:
    if adapters is None:
        return None
    names = []
    for adapter in adapters:
        name, scale = read_model(adapter.get("path"))[0], read_factor(adapter.get("scale"))
        if name is None or scale is None:
            return None
        names.append(name if scale == 1 else f"{name} x {scale:g}")
    return _sort(names)


def read_tgi(pages: Pages, pool: PoolName) -> Fingerprint:
    """TGI: `/info` (docs/openapi.json, `Info`). It tells neither quantisation nor adapters."""
    info = read_object(pages, "/info")
    model, revision = read_model(info.get("model_id"))
    return Fingerprint(
        pool,
        model=model,
        weights=read_word(info.get("model_sha")) or revision,
        context=read_size(info.get("max_total_tokens")),
    )


def read_trtllm(pages: Pages, pool: PoolName) -> Fingerprint:
    """trtllm-serve: `/v1/models` has one model's name and nothing more."""
    cards = read_cards(pages)
    model, _ = read_model(cards[0].get("id")) if cards is not None and len(cards) == 1 else (None, None)
    return Fingerprint(pool, model=model)


def read_triton(pages: Pages, pool: PoolName) -> Fingerprint:
    """Triton with the TensorRT-LLM backend: the configuration of its model, as Triton gives it back.

    Where the engine's files are is a parameter (docs/protocol/extension_model_configuration.md).
    """
    parameters = read_child(read_object(pages, TRITON_CONFIG), "parameters")
    model, revision = read_model(read_child(parameters, "gpt_model_path").get("string_value"))
    return Fingerprint(pool, model=model, weights=revision)


def read_generic(pages: Pages, pool: PoolName) -> Fingerprint:
    """An engine whose name is not configured: read as vLLM's when its list of models says that it is."""
    cards = read_cards(pages)
    owners = {card.get("owned_by") for card in cards or ()}
    return _read_vllm_cards(cards, pool) if owners == {"vllm"} else Fingerprint(pool)


IDENTITIES: Final = {
    "vllm": IdentityPages(((MODELS,), (METRICS,)), read_vllm),
    "sglang": IdentityPages((("/server_info", "/get_server_info"), (MODELS,)), read_sglang),
    "llamacpp": IdentityPages((("/props",), (MODELS,), ("/lora-adapters",)), read_llamacpp),
    "tgi": IdentityPages((("/info",),), read_tgi),
    "trtllm": IdentityPages(((MODELS,),), read_trtllm),
    "triton": IdentityPages(((TRITON_CONFIG,),), read_triton),
    "generic": IdentityPages(((MODELS,),), read_generic),
}


def _sort(names: Iterable[object]) -> tuple[str, ...]:
    words = (read_word(name) for name in names)
    return tuple(sorted({word for word in words if word is not None}))
