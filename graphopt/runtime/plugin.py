"""The functions that ONNX Runtime expects in a Python package with a plugin provider.

Source: https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries/packaging.html. Nothing here imports ONNX
Runtime, because the caller may use any installation of it.
"""

from __future__ import annotations

from graphopt.runtime.discovery import DEVICE_PROVIDER, library_path


def get_library_path() -> str:
    """Returns the path for both `register_execution_provider_library` and `register_custom_ops_library`.

    Raises:
        RuntimeMissingError: the native library is not installed.
    """
    return str(library_path())


def get_ep_names() -> list[str]:
    """Returns the names of the providers in the library, as in `OrtEpDevice.ep_name`."""
    return [DEVICE_PROVIDER]


def get_ep_name() -> str:
    """Returns the name of the only provider in the library."""
    return DEVICE_PROVIDER
