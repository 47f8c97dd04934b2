"""The scripts and manifests of the page about clusters: they parse, and say what the page says of them."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

FILES = Path(__file__).parent / "clusters"
PAGE = (Path(__file__).parent / "clusters.md").read_text(encoding="utf-8")
SCRIPTS = sorted([*FILES.glob("*.sh"), *FILES.glob("*.sbatch")])


def test_every_file_is_on_the_page() -> None:
    shown = re.findall(r"literalinclude} clusters/(\S+)", PAGE)

    assert sorted(shown) == sorted(path.name for path in FILES.iterdir())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_stop_at_the_first_failure(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert "\nset -euo pipefail\n" in script.read_text(encoding="utf-8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_programs_inside_of_scripts_parse(script: Path) -> None:
    programs = re.findall(r"<<'(\w+)'[^\n]*\n(.*?)^\1$", script.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

    for name, program in programs:
        compile(program, f"{script.name}:{name}", "exec")
    assert len(programs) == (script.suffix == ".sbatch")


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    text = (FILES / "kuberay.yaml").read_text(encoding="utf-8")
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(text)}


def test_the_job_runs_in_the_cluster(manifests: dict[str, Any]) -> None:
    cluster, job = manifests["RayCluster"], manifests["RayJob"]

    assert {manifest["apiVersion"] for manifest in manifests.values()} == {"ray.io/v1"}
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    assert job["spec"]["entrypoint"].startswith("python ")


def test_pods_have_what_the_page_says(manifests: dict[str, Any]) -> None:
    spec = manifests["RayCluster"]["spec"]
    head, (workers,) = spec["headGroupSpec"], spec["workerGroupSpecs"]

    assert head["rayStartParams"] == {"num-cpus": "0"}
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 2
    assert spec["authOptions"] == {"mode": "token"}
    for group in (head, workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {"shm": "/dev/shm"}
        assert [volume["name"] for volume in pod["volumes"]] == ["shm"]
        assert pod["volumes"][0]["emptyDir"]["medium"] == "Memory"
    environment = {entry["name"] for entry in workers["template"]["spec"]["containers"][0]["env"]}
    assert environment == {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}
