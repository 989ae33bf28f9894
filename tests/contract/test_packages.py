"""What a user installs: the wheel, its import names, the lowest versions it names; and no word of our network."""

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What the extra `server` adds: a client must work without them.
SERVER_ONLY = ("mlx", "mlx_lm", "transformers", "tokenizers", "pydantic", "yaml", "structlog", "grpc_reflection")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Standard output of a command that must succeed; what it said otherwise goes into the failure."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tracked_files() -> list[Path]:
    return [ROOT / name for name in run("git", "ls-files", "-z").split("\0") if name]


def empty_venv(folder: Path) -> Path:
    """The Python of a new environment without pip."""
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def install(python: Path, *arguments: str) -> None:
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *arguments)


def test_the_import_names_of_the_stubs_take_no_one_elses() -> None:
    in_a_new_process = """
from google.protobuf import descriptor_pool
from inferd.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc
from inferd.v1 import model_service_pb2, model_service_pb2_grpc
import google.protobuf, grpc, mlx.core, sys
for module in (generation_pb2, inference_service_pb2, model_service_pb2):
    name = module.DESCRIPTOR.name
    assert name.startswith("inferd/v1/"), name
    assert module.DESCRIPTOR.package == "inferd.v1"
    assert descriptor_pool.Default().FindFileByName(name) is module.DESCRIPTOR
    for imported in module.DESCRIPTOR.dependencies:
        assert imported.name.startswith(("inferd/v1/", "google/protobuf/")), imported.name
"""
    run(sys.executable, "-W", "error", "-c", in_a_new_process)
    assert {path.name for path in (ROOT / "generated").iterdir()} == {"inferd"}


def test_the_client_and_its_command_do_without_the_server_s_packages() -> None:
    as_if_not_installed = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {SERVER_ONLY!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
import inferd_client
from inferd_client.cli import main
sys.argv = ["inferd", "--help"]
main()
"""
    assert "generate" in run(sys.executable, "-c", as_if_not_installed)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_wheel_of_the_source_archive_installs_and_runs(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), ".")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1
    names = zipfile.ZipFile(wheel).namelist()
    packages = {"inferd", "inferd_client", "inferd_server"}
    assert {name.split("/")[0] for name in names} == packages | {f"inferd-{PROJECT['version']}.dist-info"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)

    python = empty_venv(tmp_path / "venv")
    install(python, "--no-deps", "--no-index", str(wheel))
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # The dependencies of this environment, but not its editable inferd: a path in a .pth brings no further .pth.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(
        python,
        "-c",
        "import inferd_client, inferd_server.app, inferd.v1 as v1; print(inferd_server.__file__, v1.__file__)",
        cwd=tmp_path,
    )
    assert all(path.startswith(str(site)) for path in where.split())
    for command in ("serve", "generate", "check"):
        assert command in run(tmp_path / "venv/bin/inferd", "--help", cwd=tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_lowest_versions_it_names_carry_stubs_and_client(tmp_path: Path) -> None:
    lowest = [re.sub(r">=([\d.]+).*", r"==\1", requirement) for requirement in PROJECT["dependencies"]]
    assert "protobuf==5.29.1" in lowest
    assert "grpcio==1.71.2" in lowest
    python = empty_venv(tmp_path / "venv")
    install(python, *lowest)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "sources.pth").write_text(f"{ROOT / 'generated'}\n{ROOT / 'clients/python'}\n")
    run(python, "-c", "from inferd.v1 import inference_service_pb2_grpc, model_service_pb2_grpc", cwd=tmp_path)
    run(python, "-c", "import sys; from inferd_client.cli import main; sys.argv = ['inferd', '--help']; main()")


def test_the_pinned_requirements_are_names_and_versions_alone() -> None:
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        requirement = line.split("#")[0].split(";")[0].strip()
        assert not requirement or re.fullmatch(r"[a-z0-9.-]+(\[[a-z,]+\])?==[0-9a-z.+]+", requirement), line
        assert "://" not in line


def test_no_tracked_file_names_the_host_of_a_package_registry() -> None:
    hosts = re.compile(
        "|".join(
            re.escape(".".join(parts))
            for parts in (
                ("pypi", "org"),
                ("pythonhosted", "org"),
                ("registry", "npmjs"),
                ("npmjs", "com"),
                ("deb", "debian"),
                ("proxy", "golang"),
                ("crates", "io"),
            )
        )
    )
    found = {
        str(path.relative_to(ROOT)): match.group()
        for path in tracked_files()
        if path.is_file() and (match := hosts.search(path.read_text(errors="ignore")))
    }
    assert found == {}
