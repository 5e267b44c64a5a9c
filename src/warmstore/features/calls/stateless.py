"""Checks that a module computes the same output for a sample each time: it is frozen and not random."""

from torch import nn

from warmstore.errors import NotStateless
from warmstore.identity.kinds.torch_objects import looks_at_training, names_used


def check_stateless(module: nn.Module) -> None:
    """Refuse a module that cannot be cached.

    Raises:
        NotStateless: the module has trainable parameters, or a part in training mode that is random in this mode.
    """
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if trainable:
        names = ", ".join(trainable[:3]) + (", ..." if len(trainable) > 3 else "")
        raise NotStateless(
            f"the module has trainable parameters ({names}): its outputs change as it learns. Freeze it with "
            "module.requires_grad_(False), or pass enforce_stateless=False if it is not trained"
        )
    random = [
        type(child).__name__
        for child in module.modules()
        if child.training and looks_at_training(child) and is_random_in_training(child)
    ]
    if random:
        raise NotStateless(
            f"the module is in training mode and has {random[0]}, whose outputs differ from call to call. Call "
            "module.eval() before wrapping it, or pass enforce_stateless=False"
        )


def is_random_in_training(module: nn.Module) -> bool:
    """Whether a module whose code reads `training` changes its outputs or itself between calls in training mode."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.modules.batchnorm._NormBase | nn.RReLU):
        return True
    return any("training" in names and any("dropout" in name.lower() for name in names) for names in names_used(module))
