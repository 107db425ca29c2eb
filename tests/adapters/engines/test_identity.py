"""What engines tell of their model: real pages of vLLM and llama.cpp, and the others' documented ones."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.adapters.engines.identity import IDENTITIES, METRICS, MODELS, TRITON_CONFIG
from envoy_ext.adapters.engines.identity_words import MAX_WORD_CHARS, hash_text, read_model, read_word
from envoy_ext.domain.fingerprint import FIELDS, Fingerprint
from envoy_ext.domain.ids import PoolName

REAL = Path(__file__).parents[2] / "data" / "real"
POOL = PoolName("chat")


def read(engine: str, pages: dict[str, object]) -> Fingerprint:
    encoded = {
        path: page if isinstance(page, bytes) else json.dumps(page).encode() for path, page in pages.items()
    }
    return IDENTITIES[engine].read(encoded, POOL)


def known(fingerprint: Fingerprint) -> dict[str, object]:
    return {field: value for field in FIELDS if (value := getattr(fingerprint, field)) is not None}


def card(name: str, root: str | None, *, parent: str | None = None, **more: object) -> dict[str, object]:
    """One entry of vLLM's list, in the order of its own fields."""
    shape = {"id": name, "object": "model", "created": 1_795_969_002, "owned_by": "vllm"}
    return {**shape, "root": root, "parent": parent, "max_model_len": 2048, "permission": [], **more}


def models(*cards: dict[str, object]) -> dict[str, object]:
    return {"object": "list", "data": list(cards)}


# --- vLLM -----------------------------------------------------------------------------------------


def test_a_real_vllm_page_tells_the_cache_and_its_list_the_model() -> None:
    pages = {
        MODELS: models(card("tiny", "/models/tiny-llama/")),
        METRICS: (REAL / "vllm_metrics.raw").read_bytes(),
    }
    assert known(read("vllm", pages)) == {
        "model": "tiny-llama",
        "kv_dtype": "auto",
        "context": "2048",
        "adapters": (),
    }


def test_adapters_are_those_with_a_parent_whatever_the_order_of_loading() -> None:
    base = card("m", "org/m")
    sql, de = card("sql", "/l/sql", parent="m", max_model_len=None), card("de", "/l/de", parent="m")
    one, other = read("vllm", {MODELS: models(base, sql, de)}), read("vllm", {MODELS: models(base, de, sql)})
    assert one == other
    assert one.adapters == ("de", "sql")


def test_a_list_without_parents_tells_nothing_of_adapters() -> None:
    other = card("m", "org/m")
    del other["parent"]
    assert read("vllm", {MODELS: models(other)}).adapters is None


def test_a_snapshot_of_the_hub_tells_the_revision() -> None:
    root = "/models/hub/models--org--m-8B/snapshots/e985a63cdc139290c5f700ff1929f0b5942cced2"
    told = read("vllm", {MODELS: models(card("m", root))})
    assert (told.model, told.weights) == ("m-8B", "e985a63cdc139290c5f700ff1929f0b5942cced2")


def test_several_names_of_one_model_are_one_model() -> None:
    assert read("vllm", {MODELS: models(card("a", "org/m"), card("b", "org/m"))}).model == "m"


def test_engines_of_one_replica_that_disagree_tell_nothing_of_the_cache() -> None:
    line = 'vllm:cache_config_info{{cache_dtype="{}",engine="{}"}} 1.0\n'
    page = (line.format("auto", 0) + line.format("fp8", 1)).encode()
    assert read("vllm", {METRICS: page}).kv_dtype is None
    assert read("vllm", {METRICS: (line.format("fp8", 0) + line.format("fp8", 1)).encode()}).kv_dtype == "fp8"


def test_an_unnamed_engine_is_read_as_vllm_only_if_it_says_so() -> None:
    page = models(card("m", "org/m"))
    assert read("generic", {MODELS: page}).model == "m"
    page["data"][0]["owned_by"] = "somebody"  # type: ignore[index]
    assert known(read("generic", {MODELS: page})) == {}


# --- llama.cpp ------------------------------------------------------------------------------------


def llamacpp(**pages: object) -> dict[str, object]:
    real = {"/props": json.loads((REAL / "xllamacpp_props.raw").read_bytes())}
    real[MODELS] = json.loads((REAL / "xllamacpp_models.raw").read_bytes())
    return {**real, "/lora-adapters": [], **pages}


def test_a_real_llamacpp_tells_file_size_quantisation_template_and_context() -> None:
    template = json.loads((REAL / "xllamacpp_props.raw").read_bytes())["chat_template"]
    assert known(read("llamacpp", llamacpp())) == {
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf (96576768 bytes)",
        "quantization": "Q4_1",
        "chat_template": "sha256:" + sha256(template.encode()).hexdigest()[:16],
        "context": "2048",
        "adapters": (),
    }


def test_no_text_of_a_template_is_kept() -> None:
    assert "im_start" not in repr(read("llamacpp", llamacpp()))


def test_an_adapter_counts_with_its_scale() -> None:
    pages = llamacpp(
        **{"/lora-adapters": [{"id": 0, "path": "/l/b.gguf", "scale": 1.0}, {"path": "a.gguf", "scale": 0.5}]}
    )
    assert read("llamacpp", pages).adapters == ("a.gguf x 0.5", "b.gguf")
    assert read("llamacpp", llamacpp(**{"/lora-adapters": [{"id": 0}]})).adapters is None
    for scale in (10**400, -(10**400), float("inf"), float("nan"), True, "1"):
        pages = llamacpp(**{"/lora-adapters": [{"path": "a.gguf", "scale": scale}]})
        assert read("llamacpp", pages).adapters is None
    without = llamacpp()
    del without["/lora-adapters"]
    assert read("llamacpp", without).adapters is None


# --- the others -----------------------------------------------------------------------------------

SERVER_INFO = {
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_path": "meta-llama/Llama-3.1-8B-Instruct",
    "revision": "0e9e39f",
    "weight_version": "default",
    "quantization": "fp8",
    "kv_cache_dtype": "auto",
    "tp_size": 2,
    "pp_size": 1,
    "ep_size": 1,
    "attention_backend": "fa3",
    "chat_template": None,
    "enable_lora": None,
    "lora_paths": None,
    "api_key": "sk-secret",
    "admin_api_key": "sk-admin",
    "internal_states": [{"last_gen_throughput": 0.0}],
    "version": "0.5.4",
}


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang_tells_most_and_no_key_of_it_is_read(path: str) -> None:
    told = read("sglang", {path: SERVER_INFO, MODELS: models(card("llama", "llama", max_model_len=131072))})
    assert known(told) == {
        "model": "Llama-3.1-8B-Instruct",
        "weights": "0e9e39f",
        "quantization": "fp8",
        "tokenizer": "Llama-3.1-8B-Instruct",
        "attention": "fa3",
        "kv_dtype": "auto",
        "parallel": "tp=2",
        "context": "131072",
        "adapters": (),
    }
    assert "sk-" not in repr(told)


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ({"weight_version": "step-5"}, "weights", "0e9e39f step-5"),
        ({"weight_version": "step-5", "revision": None}, "weights", "step-5"),
        ({"quantization": None}, "quantization", None),
        ({"tp_size": 4, "pp_size": 2, "ep_size": 4}, "parallel", "tp=4,pp=2,ep=4"),
        ({"tp_size": None}, "parallel", None),
        ({"enable_lora": True}, "adapters", None),
        ({"lora_paths": ["x"]}, "adapters", None),
        ({"chat_template": "/templates/tool.jinja"}, "chat_template", "tool.jinja"),
    ],
)
def test_what_sglang_s_arguments_mean(arguments: dict[str, object], field: str, value: object) -> None:
    assert getattr(read("sglang", {"/server_info": {**SERVER_INFO, **arguments}}), field) == value


def test_sglang_s_loaded_adapters_are_in_its_list() -> None:
    cards = models(card("llama", "llama"), card("sql", "/l/sql", parent="llama"))
    told = read("sglang", {"/server_info": {**SERVER_INFO, "enable_lora": True}, MODELS: cards})
    assert told.adapters == ("sql",)


def test_tgi_tells_the_revision() -> None:
    info = {
        "model_id": "bigscience/blomm-560m",
        "model_sha": "e985a63cdc139290c5f700ff1929f0b5942cced2",
        "max_total_tokens": 2048,
        "version": "3.3.5",
        "router": "text-generation-router",
    }
    assert known(read("tgi", {"/info": info})) == {
        "model": "blomm-560m",
        "weights": "e985a63cdc139290c5f700ff1929f0b5942cced2",
        "context": "2048",
    }


def test_trtllm_tells_a_name_and_triton_where_its_engine_is() -> None:
    listed = models({"id": "llama-3.1-8b", "object": "model", "owned_by": "tensorrt_llm"})
    assert known(read("trtllm", {MODELS: listed})) == {"model": "llama-3.1-8b"}
    parameters = {"gpt_model_path": {"string_value": "/engines/llama-fp8-tp2"}}
    page = {"name": "tensorrt_llm", "backend": "tensorrtllm", "parameters": parameters}
    assert known(read("triton", {TRITON_CONFIG: page})) == {"model": "llama-fp8-tp2"}


# --- whatever is answered -------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 10**4000])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["data", "meta", "id", "root", "parent", "model_path", "parameters", "path", "scale", "size"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
PATHS = st.sampled_from(
    sorted({path for one in IDENTITIES.values() for group in one.pages for path in group})
)


@given(
    st.sampled_from(sorted(IDENTITIES)),
    st.dictionaries(PATHS, st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode())),
)
def test_no_page_breaks_a_reader_and_every_word_can_be_shown(engine: str, pages: dict[str, bytes]) -> None:
    for value in known(IDENTITIES[engine].read(pages, POOL)).values():
        for word in value if isinstance(value, tuple) else (value,):
            assert isinstance(word, str)
            assert word.isprintable()
            assert len(word) <= MAX_WORD_CHARS + 40


@pytest.mark.parametrize("engine", sorted(IDENTITIES))
def test_without_a_page_nothing_is_known(engine: str) -> None:
    assert known(read(engine, {})) == {}


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("fp8", "fp8"),
        (" a\n b ", "a b"),
        (8, "8"),
        (True, None),
        ("", None),
        ("None", None),
        (None, None),
        ([], None),
        ("x" * 201, hash_text("x" * 201)),
        ("\x00", hash_text("\x00")),
    ],
)
def test_a_word_is_short_and_printable_or_a_hash(value: object, word: str | None) -> None:
    assert read_word(value) == word


def test_a_size_of_a_thousand_digits_is_kept_as_a_hash() -> None:
    cards = {"data": [{"id": "m", "root": "m", "max_model_len": 10**1000}]}
    assert read("vllm", {"/v1/models": cards}).context == hash_text(str(10**1000))


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("org/name", ("name", None)),
        ("/mnt/models/", ("models", None)),
        ("C:\\models\\m.gguf", ("m.gguf", None)),
        ("/hub/models--org--m-GGUF/snapshots/0123abc/m.Q4.gguf", ("m.Q4.gguf", "0123abc")),
        # No path is so long, and a search for the hub's folders would take minutes in a megabyte of them.
        (
            "models--" * 600 + "a/snapshots/0123abc",
            (hash_text("models--" * 600 + "a/snapshots/0123abc"), None),
        ),
        ("", (None, None)),
        (None, (None, None)),
    ],
)
def test_a_model_is_called_by_the_last_part_of_its_path(
    path: object, model: tuple[str | None, str | None]
) -> None:
    assert read_model(path) == model
