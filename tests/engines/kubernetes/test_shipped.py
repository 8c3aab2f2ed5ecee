"""Jobs in pods whose image has only Python and numpy: the manifests bring distrun and the code."""

from __future__ import annotations

import base64
import io
import random
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

TRAIN = """
import importlib.util, os, sys
import distrun, numpy
from models import net
distrun.init()
total = distrun.allreduce(numpy.ones(1000), op=distrun.Sum)[0]
print(net.NAME, int(total), distrun.__file__, os.getcwd(), *sys.argv[1:])
"""
IMAGE = ("numpy*", "cryptography*", "*cffi*")
SITE = Path(sysconfig.get_path("purelib"))


@pytest.fixture
def project(tmp_path):
    """A folder of a user's, with a script, a module that it imports, and what is not to travel."""
    folder = tmp_path / "project"
    (folder / "models").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "models" / "net.py").write_text("NAME = 'ours'\n")
    (folder / "models" / "latest.py").symlink_to("net.py")
    (folder / "click.py").write_text("raise SystemExit('a module of the user was imported by the agent')\n")
    (folder / ".gitignore").write_text("*.secret\n")
    (folder / "key.secret").write_text("hidden")
    return folder


def printed(project: Path, *options: str, status: int = 0) -> str:
    """The output of `distrun k8s` in the user's folder; what it complains of if it refuses."""
    command = [
        str(Path(sys.executable).with_name("distrun")),
        "k8s",
        "--image",
        "python:3",
        "--name",
        "train",
        *options,
    ]
    command += ["--agent-args", "--start-timeout 200", "--", "python", "train.py", f"{project}/a.yaml", "$(HOME)"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=240)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def pieces(text: str) -> dict[str, bytes]:
    """The files of all ConfigMaps."""
    documents = [item for item in yaml.safe_load_all(text) if item["kind"] == "ConfigMap"]
    return {name: base64.b64decode(data) for item in documents for name, data in item["binaryData"].items()}


class Deployed:
    """The job of printed manifests, in pods of this machine."""

    def __init__(self, cluster, text: str, image: tuple[str, ...] = IMAGE) -> None:
        self._cluster = cluster
        *_, job = yaml.safe_load_all(text)
        (self._container,) = job["spec"]["template"]["spec"]["containers"]
        self.pieces = cluster.folder / "pieces"
        self.python = cluster.folder / "python"
        for folder in (self.pieces, self.python):
            shutil.rmtree(folder, ignore_errors=True)
        self.pieces.mkdir()
        for name, data in pieces(text).items():
            (self.pieces / name).write_bytes(data)
            (self.pieces / name).chmod(0o444)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.python)], check=True)
        (site,) = self.python.glob("lib/python*/site-packages")
        for path in {path for name in image for path in SITE.glob(name)}:
            # Not by links: a pod has a /tmp of its own, and this environment may lie in /tmp.
            if path.is_dir():
                shutil.copytree(path, site / path.name)
            else:
                shutil.copy(path, site)

    def start(self, index: int, **more: Path):
        """Start a pod, with a /tmp of its own."""
        tmp = self._cluster.folder / f"tmp{index}"
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir()
        tmp.chmod(0o1777)
        told = {item["name"]: item.get("value", "0123456789abcdef" * 4) for item in self._container["env"]}
        volumes = {"/mnt/distrun": self.pieces, "/mnt/python": self.python, "/tmp": tmp}
        volumes |= {f"/mnt/{name}": folder for name, folder in more.items()}
        told |= {"TMPDIR": "/tmp", "PATH": "/mnt/python/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        words = [*self._container["command"], *(word.replace("$$", "$") for word in self._container["args"])]
        return self._cluster.start(index, *words, volumes=volumes, **told)


@pytest.mark.gate
def test_an_image_without_distrun_and_code_trains_with_what_the_manifests_bring(cluster, project):
    deployed = Deployed(cluster, printed(project, "--ship", ".", "--hosts", "2", "--slots", "2"))
    pods = [deployed.start(index) for index in (1, 0)]
    assert [pod.wait() for pod in pods] == [0, 0], pods[0].log + pods[1].log
    line = "ours 4 /tmp/distrun/package/distrun/__init__.py /tmp/distrun/trees/0 /tmp/distrun/trees/0/a.yaml $(HOME)"
    for rank in range(4):
        assert f"[{rank}] {line}" in pods[1].log, pods[1].log


def test_the_packages_of_bootstrap_come_on_top_of_those_of_the_image(cluster, project, tmp_path):
    (project / "train.py").write_text(
        "import added, distrun, numpy, sys; print(added.NAME, sys.prefix, numpy.__file__)"
    )
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "added-1.0-py3-none-any.whl", "w") as file:
        file.writestr("added.py", "NAME = 'added'")
        file.writestr("added-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
        file.writestr("added-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("added-1.0.dist-info/RECORD", "")
    indexless = ("-x", "PIP_NO_INDEX=1", "-x", "PIP_FIND_LINKS=/mnt/wheels")
    image = (*IMAGE, "psutil*", "cloudpickle*", "click*", "pycparser*")
    deployed = Deployed(cluster, printed(project, "--ship", ".", "--bootstrap=added", *indexless), image)
    tmp_path.chmod(0o755)
    pod = deployed.start(0, wheels=wheels)
    assert pod.wait() == 0, pod.log
    assert "distrun: installing added, numpy" in pod.log
    assert "[0] added /tmp/.cache/distrun/environments/" in pod.log, pod.log


def test_requirements_that_cannot_be_had_are_refused_with_what_pip_says(cluster, project):
    indexless = ("-x", "PIP_NO_INDEX=1")
    missing = Deployed(cluster, printed(project, "--ship", ".", "--bootstrap=absent", *indexless))
    pod = missing.start(0)
    assert pod.wait() == 1
    assert "distrun: the environment of --bootstrap cannot be made with /mnt/python/bin/python3: " in pod.log
    assert "No matching distribution found for absent" in pod.log


def test_an_image_that_lacks_what_cannot_be_brought_is_refused_with_the_remedy(cluster, project):
    deployed = Deployed(cluster, printed(project, "--ship", ".", "--hosts", "2"), ("numpy*",))
    pod = deployed.start(0)
    assert pod.wait() == 1
    assert pod.log == (
        "distrun: cryptography, by which pods encrypt what they say, is not in the image: put it into the image, or "
        "give --bootstrap, which installs it in each pod\n"
    )


def test_a_piece_that_is_damaged_or_of_another_job_is_refused_in_one_sentence(cluster, project):
    deployed = Deployed(cluster, printed(project, "--ship", "."))
    piece = deployed.pieces / "piece1"
    data = piece.read_bytes()
    piece.write_bytes(data[:1000] + b"x" + data[1001:])
    pod = deployed.start(0)
    assert pod.wait() == 1
    assert pod.log == (
        "distrun: the ConfigMaps of this job are not those that it was made with: create all of it again\n"
    )


def test_what_has_not_changed_has_the_same_names_and_each_piece_is_small_enough_for_kubectl(project):
    first, again = printed(project, "--ship", "."), printed(project, "--ship", ".")
    assert pieces(first) == pieces(again)
    names = [item["metadata"]["name"] for item in yaml.safe_load_all(first)]
    assert names == [item["metadata"]["name"] for item in yaml.safe_load_all(again)]
    (project / "train.py").write_text("print()")
    assert names != [item["metadata"]["name"] for item in yaml.safe_load_all(printed(project, "--ship", "."))]
    secret, *rest = yaml.safe_load_all(first)
    maps = [item for item in rest if item["kind"] == "ConfigMap"]
    assert all(item["immutable"] for item in maps)
    assert max(len(str(item)) for item in maps) < 256 << 10
    assert secret["stringData"]["key"] not in "".join(map(str, rest))


def test_what_git_ignores_stays_here(project):
    data = b"".join(pieces(printed(project, "--ship", ".")).values())
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        names = file.getnames()
    assert {"trees/0/train.py", "trees/0/models/latest.py", "package/distrun/__init__.py"} < set(names)
    assert not any("secret" in name for name in names)


@pytest.mark.parametrize(
    ("ship", "said"),
    [
        ("absent", "--ship 'absent': 'absent' is not a folder"),
        (".:work", "--ship '.:work' names a folder on hosts that is kept, and pods keep nothing: give --ship ."),
    ],
)
def test_a_folder_that_cannot_be_brought_is_refused(project, ship, said):
    assert said in printed(project, "--ship", ship, status=2)


def test_a_folder_with_too_much_is_refused_with_its_largest_files_and_the_remedy(project):
    (project / "weights.bin").write_bytes(random.Random(0).randbytes(5 << 20))
    text = " ".join(printed(project, "--ship", ".", status=2).split())
    assert "has 5.0 MiB, and allowed are 4.0 MiB, compressed and with distrun; its largest files are" in text
    assert "weights.bin (5.0 MiB)" in text
    assert "let .gitignore leave out what is no code, or put it into the image or on a volume" in text
    with open(project / "weights.bin", "wb") as file:
        file.truncate(65 << 20)
    assert "has 65.0 MiB, and allowed are 64.0 MiB" in " ".join(printed(project, "--ship", ".", status=2).split())
