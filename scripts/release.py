"""Makes a release, or shows its steps: version, changelog, tag, sdist, wheel, checksums, SBOM.

The wheel is built from the sdist and checked: auditwheel's policy, device code of every architecture, its size, and
that it contains only our files.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import uuid
import zipfile
from datetime import date, datetime, timezone
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
INIT, CHANGELOG = ROOT / "graphopt" / "__init__.py", ROOT / "CHANGELOG.md"
ARCHITECTURES = ROOT / "native" / "device" / "architectures.h"
PLATFORM = "manylinux_2_34_x86_64"
# PyPI allows 100 MB for each file; these limits are stricter, for users.
MOST_BYTES = {"wheel": 40_000_000, "sdist": 2_000_000}
LIBRARY = "graphopt/lib/libgraphopt.so"


def fail(message: str) -> None:
    """Exits with a message of one line."""
    sys.exit(f"scripts/release: {message}")


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Returns the output of a command; exits with its messages if it fails."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        fail(f"{' '.join(map(str, command[:4]))} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def current_version() -> Version:
    """Returns the version of the sources."""
    return Version(re.findall(r'^__version__ = "(.*)"$', INIT.read_text(), re.M)[0])


def release_notes() -> str:
    """Returns the text under [Unreleased]."""
    section = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## \[|\Z)", CHANGELOG.read_text(), re.M | re.S)
    return section.group(1).strip() if section else ""


def with_version(version: Version, day: date) -> dict[Path, str]:
    """Returns the files that a release changes, with their new text."""
    init = re.sub(r'^__version__ = ".*"$', f'__version__ = "{version}"', INIT.read_text(), flags=re.M)
    heading = f"## [Unreleased]\n\n## [{version}] - {day.isoformat()}"
    changelog = CHANGELOG.read_text().replace("## [Unreleased]", heading, 1)
    return {INIT: init, CHANGELOG: changelog}


def check_version(text: str) -> Version:
    """Returns the version to release: newer than any tag, and with changes in the changelog."""
    try:
        version = Version(text)
    except InvalidVersion:
        fail(f"'{text}' is not a version")
    tags = [Version(t[1:]) for t in run("git", "tag", "--list", "v*").split() if re.fullmatch(r"v\d[\w.]*", t)]
    if tags and version <= max(tags):
        fail(f"{version} is not newer than {max(tags)}")
    if not release_notes():
        fail("the changelog has nothing under [Unreleased]")
    return version


def build(out: Path) -> tuple[Path, Path]:
    """Builds the sdist and the wheel of HEAD; equal sources and tools give equal bytes on every machine."""
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        sources, raw = Path(scratch) / "sources", Path(scratch) / "raw"
        command = (sys.executable, "-m", "build", "--no-isolation")
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as content:
            content.extractall(sources, filter="data")
        run(*command, "--sdist", "--outdir", raw, cwd=sources, SOURCE_DATE_EPOCH=epoch)
        (sdist,) = raw.glob("*.tar.gz")
        with tarfile.open(sdist) as content:
            content.extractall(scratch, filter="data")
        (unpacked,) = (path for path in Path(scratch).glob("graphopt-*") if path.is_dir())
        run(*command, "--wheel", "--outdir", raw, cwd=unpacked, SOURCE_DATE_EPOCH=epoch)
        (wheel,) = raw.glob("*.whl")
        repair = ("auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "--wheel-dir", out, wheel)
        run(*repair, SOURCE_DATE_EPOCH=epoch)
        place = out / sdist.name
        place.write_bytes(sdist.read_bytes())
    (repaired,) = out.glob(f"*{PLATFORM}.whl")
    return place, repaired


def architectures() -> list[str]:
    """Returns the AMD architectures that the library must have code for."""
    return re.findall(r'^ {4}\{"(gfx[^"]*)", Code::kOwn', ARCHITECTURES.read_text(), re.M)


def check_wheel(wheel: Path, *, wanted: set[str]) -> str:
    """Describes a wheel in a line; exits if it is invalid or lacks code for one of the `wanted` architectures."""
    policy = " ".join(run("auditwheel", "show", wheel).split())
    if "manylinux" not in policy:
        fail(f"{wheel.name}: auditwheel finds no policy for it: {policy}")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        strange = [
            n for n in names if not re.match(r"graphopt(/|-[\w.]+\.dist-info/)", n) or n.endswith((".pyc", ".onnx"))
        ]
        if strange or LIBRARY not in names:
            fail(f"{wheel.name}: {', '.join(strange) or 'no library'}")
        library = content.read(LIBRARY)
    found = [arch for arch in architectures() if f"amdgcn-amd-amdhsa--{arch}".encode() in library]
    if missing := wanted - {*found}:
        lacking = ",".join(sorted(missing))
        fail(f"{wheel.name} has no device code for {lacking}: a newer clang and lld are needed, or --without {lacking}")
    if wheel.stat().st_size > MOST_BYTES["wheel"]:
        fail(f"{wheel.name} has {wheel.stat().st_size:,} bytes, its budget is {MOST_BYTES['wheel']:,}")
    tag = re.findall(r'"(manylinux_\w+)"', policy)[0]
    return f"{wheel.stat().st_size:,} bytes, library {len(library):,}, code for {len(found)} architectures, {tag}"


def check_sdist(sdist: Path) -> str:
    """Describes a source distribution in a line; exits if it is invalid."""
    with tarfile.open(sdist) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    folders = {name.split("/")[0] for name in names if "/" in name}
    strange = sorted(folders - {"docs", "graphopt", "native"})
    if strange or not {"pyproject.toml", "LICENSE", "native/CMakeLists.txt", "docs/refusals/README.md"} <= names:
        fail(f"{sdist.name}: holds {', '.join(strange) or 'too little'}")
    if sdist.stat().st_size > MOST_BYTES["sdist"]:
        fail(f"{sdist.name} has {sdist.stat().st_size:,} bytes, its budget is {MOST_BYTES['sdist']:,}")
    return f"{sdist.stat().st_size:,} bytes, {len(names)} files"


def bill_of_materials(version: Version, files: list[Path]) -> str:
    """Returns the CycloneDX document: files with digests, their dependencies, and libraries linked into ours."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense
    from cyclonedx.output.json import JsonV1Dot5

    package = Component(
        name="graphopt",
        version=str(version),
        type=ComponentType.LIBRARY,
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
        bom_ref=f"graphopt=={version}",
    )
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"graphopt-{version}"))
    bom.metadata.component = package
    bom.metadata.timestamp = datetime.fromtimestamp(int(run("git", "log", "-1", "--format=%ct")), timezone.utc)
    text = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[(.*?)^\]", text, re.M | re.S)
    parts = [
        Component(name=r.name, version=str(r.specifier), type=ComponentType.LIBRARY, bom_ref=r.name)
        for r in map(Requirement, re.findall(r'"(.+?)"', listed))
    ]
    compiler = run(os.environ.get("CXX", "g++"), "-dumpfullversion").strip()
    parts.append(
        Component(
            name="libstdc++",
            version=compiler,
            type=ComponentType.LIBRARY,
            description="linked into libgraphopt.so",
            bom_ref="libstdc++",
        )
    )
    for file in files:
        digest = HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(file.read_bytes()).hexdigest())
        parts.append(Component(name=file.name, type=ComponentType.FILE, hashes=[digest], bom_ref=file.name))
    bom.components.update(parts)
    bom.register_dependency(package, parts)
    text = str(JsonV1Dot5(bom).output_as_string(indent=2))
    return text + "\n"


def finish(version: Version, files: list[Path], out: Path) -> None:
    """Writes the checksums and the bill of materials next to the files."""
    bom = out / f"graphopt-{version}.cdx.json"
    bom.write_text(bill_of_materials(version, files))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in [*files, bom]]
    (out / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    print((out / "SHA256SUMS").read_text(), end="")


def dry_run() -> None:
    """Checks everything except the build and the writing of files, within seconds."""
    version = current_version()
    following = check_version(f"{version.major}.{version.minor + 1}.0")
    texts = with_version(following, date.today())
    assert f'__version__ = "{following}"' in texts[INIT]
    wheels = sorted((ROOT / "dist").glob("graphopt-*.whl"))
    for wheel in wheels:
        print(f"{wheel.name}: {check_wheel(wheel, wanted=set())}")
    bom = json.loads(bill_of_materials(version, wheels))
    print(f"bill of materials: {bom['specVersion']}, {len(bom['components'])} components")
    print(f"{version} would become {following} with {len(release_notes().splitlines())} lines of notes")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("version", nargs="?")
    what.add_argument("--dry-run", action="store_true")
    what.add_argument("--build", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "release")
    parser.add_argument("--without", default="", metavar="ARCH,...", help="architectures unknown to this clang")
    arguments = parser.parse_args()
    if arguments.dry_run:
        dry_run()
        return
    if run("git", "status", "--porcelain"):
        fail("the working tree has changes")
    version = current_version()
    if arguments.version:
        version = check_version(arguments.version)
        notes = release_notes()
        for path, text in with_version(version, date.today()).items():
            path.write_text(text)
        run("git", "commit", "--quiet", "--all", "--message", f"Release {version}")
        run("git", "tag", "--annotate", f"v{version}", "--message", f"graphopt {version}\n\n{notes}")
    tags = run("git", "tag", "--points-at", "HEAD", "--list", "v*").split()
    if tags and f"v{version}" not in tags:
        fail(f"HEAD is tagged {', '.join(tags)}, but its version is {version}")
    sdist, wheel = build(arguments.out)
    print(f"{sdist.name}: {check_sdist(sdist)}")
    print(f"{wheel.name}: {check_wheel(wheel, wanted={*architectures()} - {*arguments.without.split(',')})}")
    finish(version, [sdist, wheel], arguments.out)


if __name__ == "__main__":
    main()
