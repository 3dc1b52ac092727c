"""What ONNX Runtime asks of a Python package that brings a provider: where its library is, and what it is called.

Source: https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries/packaging.html. Nothing here imports ONNX
Runtime: the program that asks has one of its own, whichever that is.
"""

from __future__ import annotations

from graphopt.runtime.discovery import DEVICE_PROVIDER, library_path


def get_library_path() -> str:
    """The path for `register_execution_provider_library` and for `register_custom_ops_library`: one file holds both.

    Raises:
        RuntimeMissingError: the native library is not installed.
    """
    return str(library_path())


def get_ep_names() -> list[str]:
    """The names of the providers in the library, as `OrtEpDevice.ep_name` has them."""
    return [DEVICE_PROVIDER]


def get_ep_name() -> str:
    """The name of the only provider in the library."""
    return DEVICE_PROVIDER
