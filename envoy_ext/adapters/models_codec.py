"""The list of models, as the gateway gives it in the place of an engine."""


def build_models_json(models: tuple[str, ...]) -> dict[str, object]:
    """The list as OpenAI has it (https://platform.openai.com/docs/api-reference/models/list).

    When each was made is not known here; clients want a number.
    """
    data = [{"id": model, "object": "model", "created": 0, "owned_by": "envoy-ext"} for model in models]
    return {"object": "list", "data": data}
