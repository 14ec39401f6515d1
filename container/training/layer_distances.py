"""How far from the top of its encoder each parameter lies, for learning rates that decay with depth."""

from torch import nn

from container.models.encoder import TextEncoder
from container.models.families import encoder_family
from contracts.errors import ContractError


def layer_distances(module: nn.Module) -> dict[str, int]:
    """Layers between each backbone parameter in `module` and the top of its backbone, by the parameter's name.

    Of a backbone of L layers the last has distance 0, as what comes after it (a final norm), the first L - 1; the
    embeddings, and what all layers share, L.

    Args:
        module: a classifier, or what a pipeline left of it: layers keep their names, whichever rank they are on.

    Raises:
        ContractError: a backbone whose layers are not known, or are one set of weights run several times.
    """
    distances = {}
    for path, encoder in module.named_modules():
        if isinstance(encoder, TextEncoder):
            for name, distance in _backbone_distances(encoder, path).items():
                distances[f"{path}.backbone.{name}"] = distance
    return distances


def _backbone_distances(encoder: TextEncoder, path: str) -> dict[str, int]:
    backbone = encoder.backbone
    kind = backbone.config.model_type
    family = encoder_family(kind)
    if family.layers is None or family.shared_layers:
        why = "runs one set of weights for every layer" if family.shared_layers else "has layers that are not known"
        raise ContractError(
            f"layer_lr_decay: is below 1, but the encoder of {path}, of model_type {kind!r}, {why}",
            "Set layer_lr_decay to 1.0, or use an encoder of another family.",
        )
    layers, depth = f"{family.layers}.", backbone.config.num_hidden_layers
    children = [name for name, _ in backbone.named_children()]
    middle = children.index(family.layers.partition(".")[0])
    distances = {}
    for name, _ in backbone.named_parameters():
        if name.startswith(layers):
            distances[name] = depth - 1 - int(name.removeprefix(layers).partition(".")[0])
        else:
            distances[name] = 0 if children.index(name.partition(".")[0]) > middle else depth
    return distances
