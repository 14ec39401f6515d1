"""Let a thread beside the training work on the rank's GPU."""

import torch


def use_side_stream(device: torch.device) -> None:
    """Make `device` and a new stream current in this thread, which otherwise has GPU 0 and the training's stream."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))
