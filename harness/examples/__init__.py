"""Examples that run: python -m harness example NAME."""

NAMES = ("residual_block",)
"""Of the modules here that have a `run`."""

RECIPES = ("none", "fp8_delayed", "fp8_current", "mxfp8", "nvfp4")
